"""Lengths of requests: one, a percentile, and those of a file."""

import json

import pytest

from vllm_tuning.reading.lengths import read_lengths
from vllm_tuning.units import InputError
from vllm_tuning.workload import Workload, at_percentile, largest

TWO = [Workload(100, 20), Workload(50, 60)]


def written(tmp_path, text, name="lengths"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("bad", [0, -5, 1.5, float("nan"), "1024", None, [1]], ids=str)
def test_a_length_that_is_no_count_is_refused(bad):
    for lengths in ((bad, 1), (1, bad)):
        with pytest.raises(InputError, match=r"put_len is .*; it must be"):
            Workload(*lengths)


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens,output_tokens\n100,20\n50,60\n",
        "\ufeffoutput_len,input_len\r\n20,100\r\n60,50\r\n",
        "id,prompt_len,max_tokens,x\na,100,20,\nb,50,60,?\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n1,100,20\n2,50,60\n",
        'Timestamp,"Request tokens","Response tokens"\n1,100,20\n2,50,60\n',
        "prompt_tokens,output_tokens,max_tokens\n100,20,512\n50,60,512\n",
        '{"prompt_tokens": 100, "output_tokens": 20}\n\n'
        '{"input_tokens": 50, "completion_tokens": 60}\n',
        '\n  {"prompt_len": "100", "max_tokens": 20}\n'
        '{"prompt_len": 50, "max_tokens": 60, "id": 3}',
    ],
)
def test_the_lengths_of_a_file(tmp_path, text):
    assert read_lengths(written(tmp_path, text)) == TWO


def test_many_lines_keep_their_order(tmp_path):
    lines = [json.dumps({"prompt_tokens": n, "output_tokens": 1}) for n in range(1, 5000)]
    found = read_lengths(written(tmp_path, "\n".join(lines)))
    assert [workload.input_len for workload in found] == list(range(1, 5000))


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no request; expected a CSV"),
        ("prompt_tokens,output_tokens\n", "no request"),
        ("prompt,answer\n1,2\n", ":2: no prompt tokens; expected one of prompt_tokens, "),
        ("prompt_tokens\n1\n", ":2: no output tokens"),
        ("prompt_tokens,output_tokens\n1\n", ":2: no output"),
        ("prompt_tokens,output_tokens\n1,2\n3,\n", ":3: no output tokens"),
        (
            "prompt_tokens,output_tokens\n1,2\n3,0\n",
            ":3: output_tokens is '0'; expected a whole number",
        ),
        ("prompt_tokens,output_tokens\n1,-2\n", "'-2'"),
        ("prompt_tokens,output_tokens\n1.5,2\n", "'1.5'"),
        ("prompt_tokens,output_tokens\nnan,2\n", "'nan'"),
        ("prompt_tokens,output_tokens\n9999999999999999999999,2\n", "whole number"),
        ('{"prompt_tokens": 1, "output_tokens": true}', ":1: output_tokens is 'True'"),
        ('{"prompt_tokens": 1, "output_tokens": [2]}', "output_tokens is"),
        (
            '{"prompt_tokens": 1, "output_tokens": 2}\n{"prompt',
            ":2: no JSON object; JSONL has one a line",
        ),
        ('{"prompt_tokens": 1, "output_tokens": 2}\n3', ":2: no JSON object"),
        ("[1, 2]", ":1: no JSON"),
        (b"prompt_tokens,output_tokens\n\xff,2\n", "not a text in UTF-8"),
        (b"\x1f\x8b\x08\x00", "cannot be read"),
        ("[" * 10**5, "no JSON object"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, text, reason):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_lengths(path)
    assert str(error.value).startswith(f"{path}:") and reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("near", [0, 1, 7, 500, 1000, 5000])
@pytest.mark.parametrize("most", [0, 1, 2, 6, 7, 999, 1000])
def test_the_largest_count_from_any_guess(most, near):
    assert largest(lambda count: count <= most, near=near) == most


@pytest.mark.parametrize("length", [0, -1, 1.5, "8K", None])
def test_a_length_is_a_whole_number_of_tokens(length):
    with pytest.raises(InputError, match="input_len"):
        Workload(length, 10)


def test_a_file_that_cannot_be_read(tmp_path):
    for name, problem in (("", "a directory"), ("none.csv", "cannot be read: No such file")):
        with pytest.raises(InputError, match=f"^{tmp_path / name}: {problem}.*; expected a CSV"):
            read_lengths(tmp_path / name)


def test_percentile_by_nearest_rank():
    twenty = [Workload(1, n) for n in range(20, 0, -1)]
    assert at_percentile(twenty).output_len == 19 and at_percentile(twenty, 100).output_len == 20
    assert at_percentile(twenty, 1).output_len == 1 == at_percentile(twenty, 5).output_len
    assert at_percentile(TWO[:1]) == TWO[0]
