import csv

import pytest

from vllm_tuning.diagnosis.contradictions import check_launches
from vllm_tuning.launch import Launch
from vllm_tuning.reading.tables import COLUMNS, DATA, parse_launches, read_launches, write_launches
from vllm_tuning.releases import release
from vllm_tuning.units import GIB, InputError

HEADER = "max_num_seqs,max_num_batched_tokens,kv_cache_gib\n"


def test_columns_are_the_json_names_of_the_contract():
    assert list(COLUMNS) == [
        "source",
        "vllm_version",
        "model",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "total_memory_gib",
        "gpu_memory_utilization",
        "model_weights_gib",
        "non_torch_gib",
        "peak_activation_gib",
        "cuda_graph_gib",
        "cuda_graph_estimated_gib",
        "cuda_graph_charged",
        "kv_cache_gib",
        "kv_cache_tokens",
        "block_size",
        "num_gpu_blocks",
        "max_concurrency",
        "kv_cache_dtype",
        "cold_start",
        "model_runner",
        "status",
        "error",
        "warnings",
    ]


def test_any_subset_in_any_order_with_comments_blanks_and_sizes():
    launch, other = parse_launches(
        "# a comment, with a comma\n\nkv_cache_gib, max_num_batched_tokens ,cuda_graph_charged\n"
        "11.32,80K,TRUE\n# between\n,80k,\n",
        "x.csv",
    )
    assert launch.kv_cache == 11.32 * GIB and launch.max_num_batched_tokens == 81920
    assert launch.cuda_graph_charged is True and launch.max_num_seqs is None
    assert other.kv_cache is None and other.max_num_batched_tokens == 80000
    assert (launch.where, other.where) == ("x.csv:4", "x.csv:6")


def test_a_byte_order_mark_crlf_and_trailing_commas_do_no_harm(tmp_path):
    path = tmp_path / "launches.csv"
    path.write_bytes(b"\xef\xbb\xbfmax_num_seqs,kv_cache_gib,,\r\n16,3.9,,\r\n")
    assert read_launches(tmp_path)[0].max_num_seqs == 16


@pytest.mark.parametrize(
    "cell, complaint",
    [
        ("nan", "nan"),
        ("inf", "inf"),
        ("-inf", "inf"),
        ("11,32", "cells"),
        ("11.32GiB", "number of GiB"),
        ("0x10", "0x10"),
        ("1e400", "out of range"),
    ],
)
def test_bad_gib_figures_are_refused_with_file_line_and_column(cell, complaint):
    with pytest.raises(InputError, match="f.csv:2: .*" + complaint):
        parse_launches(HEADER + f"16,512,{cell}\n", "f.csv")


@pytest.mark.parametrize(
    "column, cell",
    [
        ("max_num_seqs", "0"),
        ("kv_cache_tokens", "0"),
        ("max_num_batched_tokens", "-1"),
        ("max_num_seqs", "1.5"),
        ("max_num_batched_tokens", "1" + 309 * "0"),
        ("block_size", "9" * 5000),
        ("kv_cache_tokens", "9" * 400 + ".5k"),
        ("gpu_memory_utilization", "1.01"),
        ("gpu_memory_utilization", "0"),
        ("total_memory_gib", "0"),
        ("peak_activation_gib", "-0.1"),
        ("status", "fine"),
        ("cuda_graph_charged", "yes"),
        ("max_concurrency", "nan"),
    ],
)
def test_values_out_of_range_are_refused_by_column_name(column, cell):
    with pytest.raises(InputError, match=f"f.csv:2: {column}: "):
        parse_launches(f"{column}\n{cell}\n", "f.csv")


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "empty"),
        ("# only\n", "empty"),
        (HEADER, "no launches"),
        (HEADER + ",,\n", "no launches"),
        ("max_num_seq\n4\n", "unknown column 'max_num_seq'"),
        ("status,status\nok,ok\n", "twice"),
        (HEADER + "1,2,3,4\n", "4 cells"),
        ('max_num_seqs\n"4\n', "CSV"),
    ],
)
def test_what_is_not_a_launches_csv_gets_one_sentence(text, complaint):
    with pytest.raises(InputError, match=complaint):
        parse_launches(text)


def test_binary_missing_and_folder_without_launches(tmp_path):
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x81")
    for path in (tmp_path / "b.csv", tmp_path, tmp_path / "none.csv", "no-such-set"):
        with pytest.raises(InputError):
            read_launches(path)


def test_negative_pool_and_negative_non_torch_are_figures_vllm_prints():
    (launch,) = parse_launches("kv_cache_gib,non_torch_gib,cuda_graph_gib\n-0.94,-0.51,-0.42\n")
    assert launch.kv_cache == -0.94 * GIB and launch.non_torch == -0.51 * GIB


@pytest.mark.parametrize(
    "version, numbers",
    [("0.20.2rc1.dev249+g1", (0, 20, 2)), ("v0.9.0", (0, 9, 0)), (None, ()), ("main", ())],
)
def test_release_numbers(version, numbers):
    assert release(version) == numbers


@pytest.mark.parametrize(
    "version, charged, gib",
    [
        ("0.19.0", None, 0),
        ("0.20.2", None, 0.84),
        ("0.32.0", None, 0.84),
        ("0.32.0", False, 0),
        ("0.19.0", True, 0.84),
        (None, None, 0),
    ],
)
def test_graphs_are_charged_from_0_20_2_unless_the_record_says_otherwise(version, charged, gib):
    launch = Launch(
        vllm_version=version, cuda_graph_charged=charged, cuda_graph_estimated=0.84 * GIB
    )
    assert launch.graph_charge == gib * GIB


def test_left_over_by_hand():
    launch = Launch(
        total_memory=80 * GIB, gpu_memory_utilization=0.5, model_weights=15 * GIB, non_torch=1 * GIB
    )
    assert launch.left_over == 24 * GIB
    assert Launch(total_memory=80 * GIB).left_over is None


def test_write_then_read_gives_the_same_launches(tmp_path):
    for table in sorted(DATA.glob("*/launches.csv")):
        launches = read_launches(table)
        write_launches(launches, tmp_path / "launches.csv")
        assert read_launches(tmp_path / "launches.csv") == launches


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "launches.csv"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        write_launches([Launch(max_num_seqs=4)], path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_every_carried_set_names_its_origin():
    for path in DATA.glob("*/launches.csv"):
        assert (path.parent / "README.md").read_text().strip()
        rows = list(csv.reader(line for line in path.read_text().splitlines() if line[:1] != "#"))
        assert set(rows[0]) <= set(COLUMNS)


def test_a_row_is_named_by_its_first_line_and_odd_separators_do_not_split_it():
    with pytest.raises(InputError, match=r"f\.csv:4: max_num_seqs"):
        parse_launches('error,max_num_seqs\n"two\nlines\u2028more\x0b",4\n,x\n', "f.csv")


def test_a_hundred_thousand_equal_rows_are_checked_in_time():
    row = "128,512,3.6,472416\n512,512,3.1,406816\n16,2048,3.7,484416\n16,8192,2.85,373824\n"
    text = "max_num_seqs,max_num_batched_tokens,kv_cache_gib,kv_cache_tokens\n" + row * 25_000
    assert len(check_launches(parse_launches(text))) == 0


def test_a_folder_of_logs_asks_for_the_logs_by_name(tmp_path):
    (tmp_path / "a.log").write_text("")
    with pytest.raises(InputError, match=r"name the logs themselves: .*/\*\.log"):
        read_launches(tmp_path)
