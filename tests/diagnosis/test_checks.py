"""Section 5.1: what must be equal across the launches of one fit, and who breaks it."""

from dataclasses import replace

import pytest

from vllm_tuning.diagnosis.contradictions import check_launches, of_one_kind
from vllm_tuning.launch import Launch
from vllm_tuning.reading.tables import parse_launches, read_launches
from vllm_tuning.units import InputError

COLUMNS = (
    "vllm_version,model,total_memory_gib,gpu_memory_utilization,model_weights_gib,"
    "non_torch_gib,peak_activation_gib,kv_cache_gib,kv_cache_tokens,block_size"
)
GOOD = ["0.9.2", "m", "80", "0.9", "15.3", "0.6", "1.1", "55", "450560", "16"]


def launches(**changes):
    odd = dict(zip(COLUMNS.split(","), GOOD, strict=True)) | changes
    rows = [GOOD, GOOD, list(odd.values())]
    return parse_launches("\n".join([COLUMNS, *map(",".join, rows)]), "f.csv")


def test_launches_that_agree_raise_nothing():
    assert check_launches(launches()) == []


def test_two_utilizations_need_the_total_memory_and_three_give_it():
    every = [replace(each, total_memory=None) for each in launches(gpu_memory_utilization="0.8")]
    with pytest.raises(InputError, match=r"f.csv:2: .*0.8, 0.9.*--gpu-memory"):
        check_launches(every)
    assert check_launches([*every, replace(every[0], gpu_memory_utilization=0.7)]) == []


def test_a_cold_start_is_never_mixed_with_warm_ones():
    """The flags of cold starts are named, to be started once more."""
    cold, warm, other = launches()
    mixed = [
        replace(cold, cold_start=True, max_num_seqs=256, max_num_batched_tokens=2048),
        replace(warm, cold_start=False),
        other,
    ]
    used, said = of_one_kind(mixed)
    assert used == mixed[1:] and [notice.name for notice in said] == ["cold_starts_left_out"]
    assert "256/2048" in said[0].text
    used, said = of_one_kind(mixed[:1])
    assert used == mixed[:1] and [notice.name for notice in said] == ["cold_start"]
    assert of_one_kind(mixed[1:]) == (mixed[1:], [])


@pytest.mark.parametrize(
    "column, value, others",
    [
        ("vllm_version", "0.19.0", "0.9.2 in rows 2, 3"),
        ("model", "other", "m in rows 2, 3"),
        ("total_memory_gib", "79.9", "the others say 80"),
        ("model_weights_gib", "15.28", "the others say 15.3"),
        ("kv_cache_tokens", "131072", "the others say 131,0"),
    ],
)
def test_a_contradiction_names_row_column_value_and_the_others(column, value, others):
    with pytest.raises(InputError) as error:
        check_launches(launches(**{column: value}))
    message = str(error.value)
    assert message.startswith("f.csv:4: ") and column in message and others in message
    assert f"{int(value):,}" in message if value.isdigit() else value in message


def test_rounding_is_no_contradiction():
    assert (
        check_launches(
            launches(total_memory_gib="80.01", model_weights_gib="15.31", kv_cache_gib="55.01")
        )
        == []
    )


def test_another_process_on_the_gpu_is_told_but_allowed():
    (notice,) = check_launches(
        launches(non_torch_gib="2.6", kv_cache_gib="53", kv_cache_tokens="434176")
    )
    assert notice.name == "non_torch_differs" and "f.csv:4" in notice.text and "2.6" in notice.text


def test_a_balance_that_does_not_close_is_told():
    (notice,) = check_launches(launches(peak_activation_gib="2.1"))
    assert notice.name == "balance_does_not_close" and "54.00 GiB" in notice.text


def test_the_four_releases_of_one_model_are_refused_as_one_fit():
    with pytest.raises(InputError, match="vllm_version"):
        check_launches(read_launches("qwen3-14b-h100-releases"))


def test_mns_above_mnbt_negative_pool_and_failed_launch_have_their_sentence():
    names = [
        notice.name
        for notice in check_launches(
            parse_launches(
                "max_num_seqs,max_num_batched_tokens,kv_cache_gib,status,error\n512,256,1.5,ok,\n"
                "16,512,-0.22,failed,no memory\n16,1024,0.3,failed,out of memory\n"
            )
        )
    ]
    assert names == ["mns_above_mnbt", "negative_kv_cache", "failed_launch"]


def test_no_launches():
    with pytest.raises(InputError):
        check_launches([])


def test_a_path_and_a_name_of_one_model_are_one_model():
    names = ("/models/Llama-3", "meta-llama/llama-3", "Llama-3/")
    assert check_launches([Launch(model=name) for name in names]) == []


def test_places_in_several_files_name_the_file():
    launches = [
        Launch(where="a.log:1", vllm_version="0.25.0"),
        Launch(where="a.log:9", vllm_version="0.25.0"),
        Launch(where="logs/b.log:1", vllm_version="0.26.0"),
    ]
    with pytest.raises(InputError, match=r"logs/b.log:1: .* 0.25.0 in rows a.log:1, a.log:9"):
        check_launches(launches)
