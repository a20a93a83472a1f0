"""vllm-tuning simulate: the contract of its files, its JSON and its errors."""

import errno
import json
import os

import pytest
from click.testing import CliRunner
from test_scheduler import OWN

from vllm_tuning.cli import main
from vllm_tuning.cli.options import on_a_terminal
from vllm_tuning.reading.tables import DATA
from vllm_tuning.scheduler.replay import read_workload

LLAMA = DATA / "llama-3.1-8b-rtx3090/config.json"
FLAGS = ["--max-num-seqs", "16", "--max-num-batched-tokens", "512", "--num-gpu-blocks", "97"]
LENGTHS = ["--input-len", "128", "--output-len", "64", "--requests", "64"]


def run(*args):
    return CliRunner().invoke(main, ["simulate", *map(str, args)])


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_trace_of_the_real_scheduler_comes_back_step_by_step(tmp_path, name):
    for path in OWN:
        result = run("--workload", path, "--trace", tmp_path / name)
        assert result.exit_code == 0 and result.stderr == ""
        real, ours = (read_workload(file)[2] for file in (path, tmp_path / name))
        assert ours["steps"] == real["steps"]
        assert (ours["config"], ours["requests"]) == (real["config"], real["requests"])
        assert ours["summary"].items() >= real["summary"].items()


def test_json_holds_the_server_and_the_summary():
    """64 requests of 12 blocks on a pool of 96: eight fit when full, more are let in."""
    result = run(*FLAGS, *LENGTHS, "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0 and result.stderr == ""
    assert answer["config"]["blocks"] == 97 and answer["config"]["max_model_len"] == 192
    summary = answer["summary"]
    assert (summary["n_requests"], summary["max_used"], summary["usable_blocks"]) == (64, 96, 96)
    assert summary["n_preempt"] > 0 and summary["sched_tokens"] == (
        64 * 191 + summary["recomputed_tokens"]
    )
    few = json.loads(run(*FLAGS, "--max-num-seqs", "8", *LENGTHS, "--json").stdout)["summary"]
    assert few["n_preempt"] == few["recomputed_tokens"] == 0


def test_arrivals_and_options(tmp_path):
    def summary(*args):
        return json.loads(run(*FLAGS, *LENGTHS, "--json", *args).stdout)["summary"]

    assert summary("--arrival", "burst") == summary()
    assert summary("--arrival", "closed:2")["max_run"] == 2
    apart = ("--arrival", "poisson:0.1", "--step-time", "0.02")
    assert summary(*apart)["idle_steps"] > 0 and summary(*apart) == summary(*apart, "--seed", "0")
    assert summary(*apart) != summary(*apart, "--seed", "1")
    assert summary("--no-chunked-prefill") != summary()
    assert summary("--watermark", "0.2")["n_preempt"] < summary()["n_preempt"]
    assert summary("--prefix-caching")["hit_tokens"] > 0
    assert summary("--no-prefix-caching")["hit_tokens"] == 0
    assert summary("--block-size", "32")["n_preempt"] == 0
    out = tmp_path / "out.json"
    run(*FLAGS, *LENGTHS, "--long-prefill-token-threshold", "100", "--trace", out)
    config, requests, document = read_workload(out)
    assert config.long_prefill_token_threshold == 100 and len(requests) == 64
    assert document["steps"][0]["sched"][0] == ["r0", 100]


def test_launches_give_the_pool_and_the_flags():
    lengths = ["--input-len", "1K", "--output-len", "256", "--requests", "400"]
    answer = json.loads(run("llama-3-8b-2-layers", *lengths, "--json").stdout)
    best = json.loads(
        CliRunner()
        .invoke(
            main,
            [
                "recommend",
                "llama-3-8b-2-layers",
                "--input-len",
                "1024",
                "--output-len",
                "256",
                "--json",
            ],
        )
        .stdout
    )["recommended"]
    assert answer["config"]["mns"] == best["max_num_seqs"]
    assert answer["config"]["blocks"] * answer["config"]["block_size"] == best["kv_cache_tokens"]
    assert answer["summary"]["n_preempt"] == 0


def test_lengths_of_a_file(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_tokens,output_tokens\n" + "100,20\n50,60\n" * 40)
    answer = json.loads(run(*FLAGS, "--lengths", path, "--json").stdout)
    assert answer["summary"]["n_requests"] == 80
    assert answer["summary"]["output_tokens"] == 40 * (20 + 60)
    assert answer["config"]["max_model_len"] == 120
    few = json.loads(run(*FLAGS, "--lengths", path, "--requests", "3", "--json").stdout)["summary"]
    assert (few["n_requests"], few["output_tokens"]) == (3, 20 + 60 + 20)
    poisson = ("--arrival", "poisson:1", "--step-time", "0.1")
    assert run(*FLAGS, "--lengths", path, *poisson).exit_code == 0
    for args in (LENGTHS[:2], ["--workload", "x.json"]):
        assert run(*FLAGS, "--lengths", path, *args).exit_code == 2
    for args, reason in (
        (["--requests", "81"], "has 80 requests, fewer than --requests 81"),
        (["--num-gpu-blocks", "8"], "need 8 blocks of 16, and the pool has 7"),
    ):
        result = run(*FLAGS, "--lengths", path, *args)
        assert result.exit_code == 1 and reason in result.stderr and result.stderr.count("\n") == 1


def test_launches_take_the_flags_for_the_length_of_95_percent(tmp_path):
    path = tmp_path / "lengths.jsonl"
    path.write_text(
        95 * '{"prompt_tokens": 1024, "output_tokens": 256}\n'
        + 5 * '{"prompt_tokens": 1536, "output_tokens": 512}\n'
    )
    answer = json.loads(run("llama-3-8b-2-layers", "--lengths", path, "--json").stdout)
    fixed = json.loads(
        run(
            "llama-3-8b-2-layers",
            "--input-len",
            "1024",
            "--output-len",
            "256",
            "--requests",
            "1",
            "--json",
        ).stdout
    )
    assert answer["config"] == fixed["config"]


def test_the_answer_is_a_table_of_80_columns_without_a_progress_bar():
    result = run(*FLAGS, *LENGTHS)
    assert result.exit_code == 0 and result.stderr == "" and "preemptions" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_the_progress_bar_is_on_stderr_of_a_terminal(monkeypatch):
    monkeypatch.setattr("vllm_tuning.cli.options.on_a_terminal", lambda: True)
    result = run(*FLAGS, *LENGTHS, "--json")
    assert "requests" in result.stderr and json.loads(result.stdout)["summary"]["n_requests"] == 64


@pytest.mark.parametrize(
    "args",
    [
        [],
        LENGTHS,
        FLAGS,
        [*FLAGS, *LENGTHS, "llama-3-8b-2-layers"],
        [*FLAGS[:4], *LENGTHS],
        [*FLAGS[2:], *LENGTHS],
        [*FLAGS, *LENGTHS[:4]],
        ["--workload", "x.json", *FLAGS],
        ["--workload", "x.json", "--arrival", "closed:3"],
        [*FLAGS, *LENGTHS, "--arrival", "poisson:3"],
        [*FLAGS, *LENGTHS, "--gpu", "L4"],
        [*FLAGS, *LENGTHS, "--gpu", "B300", "--config", str(LLAMA)],
        [*FLAGS, *LENGTHS, "--arrival", "poisson:3", "--gpu", "L4", "--config", "config.json"],
        [*FLAGS, *LENGTHS, "--gpu", "L4", "--config", "config.json", "--step-time", "1"],
        [*FLAGS, *LENGTHS, "--config", "config.json"],
        ["--workload", str(OWN[0]), "--trace", str(OWN[0])],
        *(
            [*FLAGS, *LENGTHS, "--arrival", text]
            for text in (
                "closed",
                "closed:0",
                "closed:x",
                "poisson:nan",
                "poisson:-1",
                "poisson:",
                "often",
            )
        ),
        [*FLAGS, *LENGTHS[:2], "--output-len", "0", *LENGTHS[4:]],
    ],
)
def test_bad_usage_exits_2(args):
    assert run(*args).exit_code == 2


@pytest.mark.parametrize(
    "args, reason",
    [
        (["--max-num-batched-tokens", "15"], "max_num_batched_tokens 15 is below max_num_seqs 16"),
        (["--num-gpu-blocks", "12"], "need 12 blocks of 16, and the pool has 11"),
        (["--max-model-len", "191"], "192 tokens are more than max_model_len 191"),
        (["--watermark", "1"], "watermark is 1"),
        (["--num-gpu-blocks", "1"], "null block"),
        (["--no-chunked-prefill", "--max-model-len", "513"], "below max_model_len 513"),
        (["--arrival", "poisson:1", "--step-time", "nan"], "step time nan s must be above 0"),
        (["--arrival", "poisson:1e-300", "--step-time", "1e-9"], "rate 1e-300 a second is too low"),
        (
            ["--input-len", "1000000m", "--num-gpu-blocks", "10000000m"],
            "at most 100,000,000 tokens",
        ),
        (["--gpu", "L4", "--config", "none.json"], "none.json: cannot be read"),
        (["--trace", "no/such/folder/out.json"], os.strerror(errno.ENOENT)),
    ],
)
def test_bad_input_exits_1_with_one_line(args, reason):
    result = run(*FLAGS, *LENGTHS, *args)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith("vllm-tuning: ") and result.stderr.count("\n") == 1
    assert reason in result.stderr


def times_of(*args):
    return json.loads(run(*FLAGS, *LENGTHS, "--json", *args).stdout)["times"]


def test_times_are_given_bounded_or_null_with_a_reason(tmp_path):
    """Eight at a time, 64 of 128 + 64: at 512 tokens a step the prompts of eight take two steps."""
    given = times_of("--max-num-seqs", "8", "--step-time", "0.5")
    assert given["kind"] == "given" and given["relative_error"] is given["reason"] is None
    summary = json.loads(run(*FLAGS, "--max-num-seqs", "8", *LENGTHS, "--json").stdout)["summary"]
    assert given["duration_s"] == pytest.approx(0.5 * summary["n_steps"])
    assert given["throughput_tokens_per_s"] == pytest.approx(64 * 64 / given["duration_s"])
    assert given["tpot_s"]["median"] == pytest.approx(0.5) and given["ttft_s"]["p99"] > 0.5

    bound = times_of("--gpu", "H100", "--config", LLAMA)
    assert bound["kind"] == "lower bound of the step time" and bound["reason"] is None
    reading = 2 * (32 * 218_103_808 + 128256 * 4096) / 3.35e12  # the weights, in every step
    assert 1 < bound["tpot_s"]["median"] / reading < 1.2

    none = times_of()
    assert none["reason"].startswith("a step has no time of its own: give --gpu")
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads(LLAMA.read_text()) | {"num_experts": 8, "num_experts_per_tok": 2})
    )
    experts = times_of("--gpu", "L4", "--config", tmp_path / "config.json")
    assert "experts" in experts["reason"]
    for unknown in (none, experts):
        unknown.pop("reason")
        assert unknown == dict.fromkeys(
            ("kind", "relative_error", "duration_s", "throughput_tokens_per_s")
        ) | {name: {"median": None, "p99": None} for name in ("ttft_s", "tpot_s")}


def test_the_option_that_went_names_what_takes_its_place():
    result = run("--load-runs", "runs.csv")
    assert result.exit_code == 2 and result.stdout == "" and result.stderr.count("\n") == 1
    assert result.stderr.startswith("vllm-tuning: --load-runs is gone: ")
    for word in ("vllm-tuning throughput", "--step-time", "--gpu"):
        assert word in result.stderr
    assert "--load-runs" not in run("--help").stdout


def test_one_token_and_no_request_have_no_tpot(tmp_path):
    one = times_of("--output-len", "1", "--step-time", "1")
    assert one["tpot_s"] == {"median": None, "p99": None} and one["ttft_s"]["median"] >= 1
    (tmp_path / "w.json").write_text(
        '{"config": {"mns": 1, "mnbt": 1, "blocks": 2}, "requests": []}'
    )
    result = run("--workload", tmp_path / "w.json", "--step-time", "1", "--json")
    none = json.loads(result.stdout)["times"]
    assert (none["duration_s"], none["throughput_tokens_per_s"]) == (0, None)
    assert run("--workload", tmp_path / "w.json", "--step-time", "1").exit_code == 0


def test_the_launches_tell_how_many_gpus_share_a_step(tmp_path):
    """Two GPUs read half of the weights each."""
    lengths = ["--input-len", "64", "--output-len", "64", "--requests", "1", "--json"]
    table = (
        "max_num_seqs,max_num_batched_tokens,kv_cache_gib,kv_cache_tokens,{}_parallel_size\n"
        + ("128,512,9.9,81101,2\n512,512,9.5,77824,2\n16,2048,9.9,81101,2\n16,8192,9.5,77824,2\n")
    )
    for kind, half in (
        ("tensor", 2 * (32 * 218_103_808 + 128256 * 4096) / 2 / 3.35e12),
        ("pipeline", None),
    ):
        (tmp_path / "launches.csv").write_text(table.format(kind))
        (tmp_path / "config.json").write_text(LLAMA.read_text())
        result = run(
            tmp_path / "launches.csv",
            "--gpu",
            "H100",
            "--max-num-seqs",
            "64",
            "--max-num-batched-tokens",
            "512",
            *lengths,
        )
        times = json.loads(result.stdout)["times"]
        assert times["tpot_s"]["median"] == (half and pytest.approx(half, rel=0.01))
        assert (times["reason"] is None) == bool(half)


@pytest.mark.parametrize(
    "args, kind",
    [
        (["--gpu", "L4", "--config", "LLAMA"], "tokens/s at most"),
        (["--step-time", "1"], "tokens/s"),
        ([], "(no times: a step has"),
    ],
)
def test_the_table_marks_what_a_time_is(args, kind):
    result = run(*FLAGS, *LENGTHS, *(str(LLAMA) if each == "LLAMA" else each for each in args))
    assert kind in result.stdout and "prefix" not in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_a_trace_that_cannot_be_written_stops_before_the_first_step(monkeypatch, tmp_path):
    monkeypatch.setattr("vllm_tuning.scheduler.simulate", None)
    for path in (tmp_path, tmp_path / "no" / "out.json", ""):
        result = run(*FLAGS, *LENGTHS, "--trace", path)
        assert result.exit_code == 1 and result.stderr.count("\n") == 1


def test_without_a_stderr_there_is_no_bar(monkeypatch):
    monkeypatch.setattr("vllm_tuning.cli.options.sys.stderr", None)
    assert not on_a_terminal()


def test_a_missing_or_broken_workload_is_one_line(tmp_path):
    (tmp_path / "w.json").write_text("{")
    assert run("--workload", "").exit_code == 1
    for path in (tmp_path / "w.json", tmp_path / "none.json", tmp_path):
        result = run("--workload", path)
        assert result.exit_code == 1 and result.stderr.startswith(f"vllm-tuning: {path}: ")
        assert result.stderr.count("\n") == 1
