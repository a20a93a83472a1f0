"""Workload and trace files: round trips, and one clear line for each kind of bad file."""

import gzip
import json

import pytest

from vllm_tuning.scheduler.config import Request, SchedulerConfig
from vllm_tuning.scheduler.replay import read_workload, write_trace
from vllm_tuning.scheduler.simulation import simulate
from vllm_tuning.units import InputError

CONFIG = {"mns": 2, "mnbt": 16, "blocks": 9}
REQUEST = {"id": "a", "prompt_len": 3, "max_tokens": 2}


def written(tmp_path, text, name="w.json"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def file_of(tmp_path, config=CONFIG, requests=(REQUEST,)):
    return written(tmp_path, json.dumps({"config": config, "requests": list(requests)}))


def test_defaults_and_every_key(tmp_path):
    config, requests, _ = read_workload(file_of(tmp_path))
    assert config == SchedulerConfig(2, 16, 9) and requests == [Request("a", 3, 2)]
    assert (config.block_size, config.max_model_len) == (16, 8192)
    every = CONFIG | {
        "block_size": 4,
        "max_model_len": 12,
        "chunked": False,
        "prefix": True,
        "lpt": 5,
        "reserve": False,
        "watermark": 0.25,
    }
    config, requests, _ = read_workload(
        file_of(tmp_path, every, [{"id": 7, "prompt": [5, 6, 7], "max_tokens": 2, "at": 3}])
    )
    assert config == SchedulerConfig(2, 16, 9, 4, 12, False, True, 5, False, 0.25)
    assert requests == [Request(7, 3, 2, 3, (5, 6, 7))]


def test_a_written_trace_is_a_workload_again(tmp_path):
    config = SchedulerConfig(2, 16, 5, block_size=4)
    requests = [Request("A", 4, 8), Request("B", 4, 8, at=1), Request("C", 4, 2)]
    simulation = simulate(config, requests, concurrency=2, trace=True)
    for name in ("out.json", "out.json.gz"):
        write_trace(tmp_path / name, simulation)
        back, again, document = read_workload(tmp_path / name)
        assert back == config and list(simulation.trace.requests) == again
        assert document["steps"] == list(simulation.trace.to_json())
        assert document["summary"]["n_steps"] == simulation.summary.n_steps
        assert list(simulate(back, again, trace=True).trace.to_json()) == document["steps"]


def test_a_zipped_trace_is_the_same_bytes_each_time_and_names_are_kept(tmp_path):
    """Also names that no file could hold as UTF-8, and numbers beside words."""
    names = ["\ud800", "\0", "ü", 7, ""]
    path = file_of(
        tmp_path, {"mns": 9, "mnbt": 99, "blocks": 99}, [REQUEST | {"id": name} for name in names]
    )
    for copy in ("1.json.gz", "2.json.gz", "3.json"):
        config, requests, document = read_workload(path)
        write_trace(tmp_path / copy, simulate(config, requests, trace=True), document)
    first, second, plain = (tmp_path / f"{copy}" for copy in ("1.json.gz", "2.json.gz", "3.json"))
    assert first.read_bytes() == second.read_bytes()
    assert gzip.decompress(first.read_bytes()) == plain.read_bytes()
    assert json.loads(plain.read_bytes())["steps"][0]["new"] == names


def test_the_documents_own_words_are_kept(tmp_path):
    config, requests, document = read_workload(file_of(tmp_path))
    write_trace(tmp_path / "out.json", simulate(config, requests, trace=True), document)
    kept = json.loads((tmp_path / "out.json").read_text())
    assert kept["config"] == CONFIG and kept["requests"] == [REQUEST]
    assert kept["steps"] == [
        {
            "s": 0,
            "sched": [["a", 3]],
            "run": 1,
            "wait": 0,
            "used": 1,
            "pre": [],
            "new": ["a"],
            "fin": [],
            "used_after": 1,
        },
        {
            "s": 1,
            "sched": [["a", 1]],
            "run": 1,
            "wait": 0,
            "used": 1,
            "pre": [],
            "fin": ["a"],
            "used_after": 0,
        },
    ]


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"mns": 17}, "max_num_batched_tokens 16 is below max_num_seqs 17"),
        ({"mns": 2.0}, r"config.mns is 2.0; expected a whole number"),
        ({"mns": True}, "config.mns is true"),
        ({"mns": "2"}, 'config.mns is "2"'),
        ({"mnbt": -1}, "config.mnbt is -1"),
        ({"blocks": 10**16}, "config.blocks is 1000"),
        ({"max_num_seqs": 2}, 'config has an unknown key "max_num_seqs"; known: mns, mnbt'),
        ({"prefix": 1}, "config.prefix is 1; expected true or false"),
        ({"watermark": "x"}, 'config.watermark is "x"'),
        ({"watermark": 1}, "watermark is 1"),
        ({"watermark": float("nan")}, "config.watermark is NaN"),
        ({"watermark": 10**400}, "config.watermark is 1000"),
        ({"lpt": 8193}, "to max_model_len 8192"),
        ({"max_model_len": 10**8 + 1}, "requests of at most 100,000,000 tokens"),
        ({"block_size": None}, "is null"),
    ],
)
def test_a_bad_config(tmp_path, change, reason):
    with pytest.raises(InputError, match=rf"^{tmp_path}/w.json: .*{reason}"):
        read_workload(file_of(tmp_path, CONFIG | change))


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"max_tokens": 0}, "request a: 3 prompt tokens and 0 to generate"),
        ({"prompt_len": 0}, "request a: 0 prompt tokens"),
        ({"prompt_len": 126, "max_tokens": 4}, "129 tokens of KV cache need 9 blocks of 16"),
        ({"prompt_len": 8192}, "8194 tokens are more than max_model_len 8192"),
        ({"prompt_len": None}, r"requests\[1\].prompt_len is null"),
        ({"at": -1}, r"requests\[1\].at"),
        ({"at": 10**16}, "expected a whole number, 0 to 1,0"),
        ({"at": float("nan")}, "at is NaN"),
        ({"prompt": [1, 2]}, "2 tokens, prompt_len is 3"),
        ({"prompt": "abc"}, "expected a list of token ids"),
        ({"prompt": [1, 2, -1]}, "prompt is -1"),
        ({"id": [1]}, r"requests\[1\].id is \[1\]; expected a name"),
        ({"out": 3}, "unknown key"),
        ({"id": "b"}, 'two requests have the same id "b"'),
    ],
)
def test_a_bad_request(tmp_path, change, reason):
    with pytest.raises(InputError, match=rf"^{tmp_path}/w.json: .*{reason}"):
        read_workload(file_of(tmp_path, requests=[REQUEST | {"id": "b"}, REQUEST | change]))


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "not JSON"),
        ("[]", "no config"),
        ("{}", "no config"),
        ('{"config": {}}', "no requests"),
        ('{"config": {}, "requests": []}', "config has no mns"),
        ("[" * 10**5, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"\x1f\x8b\x08", "cannot be read"),
        (gzip.compress(b"{}" * 99, mtime=0)[:-9], "cannot be read"),
        (
            json.dumps({"config": CONFIG, "requests": [3]}),
            r"requests\[0\] is 3; expected an object",
        ),
        (
            json.dumps({"config": CONFIG, "requests": [{"id": 1}]}),
            r"requests\[0\] has no max_tokens",
        ),
    ],
)
def test_a_file_that_is_no_workload(tmp_path, text, reason):
    with pytest.raises(InputError, match=rf"^{tmp_path}/w.json: .*{reason}"):
        read_workload(written(tmp_path, text))
    with pytest.raises(InputError, match="a directory; expected a workload"):
        read_workload(tmp_path)
