"""The driver against a stand-in server: every figure it should read, every way it can go wrong."""

import json
import multiprocessing
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner
from conftest import ROOT

from vllm_tuning.cli import main
from vllm_tuning.measure import driver as measure
from vllm_tuning.measure.campaign import _settings
from vllm_tuning.measure.folder import Folder
from vllm_tuning.reading.log import read_log
from vllm_tuning.reading.tables import read_launches

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

SERVE = [
    sys.executable,
    "-S",
    "-E",
    str(ROOT / "tests/standin_vllm.py"),
    "serve",
    "/models/llama-3-8b-2-layers",
]
MARK = "STANDIN_OF"
LENGTHS = ["--input-len", "1024", "--output-len", "256"]
CONFIG = ["--config", str(ROOT / "data/llama-3-8b-2-layers/config.json")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """DIR of a run; afterwards nothing that was started for it is alive."""
    monkeypatch.setenv(MARK, str(tmp_path))
    yield tmp_path / "run"
    assert not left_over(tmp_path)


def left_over(mark, patience=60.0):
    """Processes started for a run that are still alive, after a while."""
    end = time.monotonic() + patience
    while (alive := _alive(f"{MARK}={mark}".encode())) and time.monotonic() < end:
        time.sleep(0.02)
    return alive


def _alive(mark):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                mark in (process / "environ").read_bytes().split(b"\0")
                and (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            ):
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return found


def run(folder, *options, behaviour=""):
    """Options of measure; those of the server are the stand-in's behaviour."""
    return CliRunner().invoke(
        main,
        [
            "measure",
            "-o",
            str(folder),
            "--grace",
            "0.3",
            *options,
            "--",
            *SERVE,
            *(["--behaviour", behaviour] if behaviour else []),
        ],
    )


def figures(folder, *options, behaviour=""):
    done = run(folder, *options, "--json", behaviour=behaviour)
    answer = json.loads(done.stdout)
    nothing = all(launch["status"] == "failed" for launch in answer["launches"])
    assert done.exit_code == nothing, done.output
    assert ("no launch came up" in done.stderr) == nothing
    return answer


def at(answer, seqs, tokens):
    return next(
        launch
        for launch in answer["launches"]
        if (launch["max_num_seqs"], launch["max_num_batched_tokens"]) == (seqs, tokens)
    )


def test_four_launches_by_the_plan_and_a_fifth_at_the_answer(folder, exact_launches):
    answer = figures(folder, *LENGTHS, *CONFIG, "--verify")
    assert [launch["status"] for launch in answer["launches"]] == ["ok"] * 4
    for row in exact_launches:
        if (row["max_num_seqs"], row["max_num_batched_tokens"]) == (16, 512):
            continue
        made = at(answer, row["max_num_seqs"], row["max_num_batched_tokens"])
        assert made["kv_cache_tokens"] == row["kv_cache_bytes"] // (32 * 8192) * 32
        assert round(made["kv_cache_gib"] * 2**30) == row["kv_cache_bytes"]
        assert made["source"].startswith(f"mns{row['max_num_seqs']}-mnbt")
    best = answer["recommend"]["recommended"]
    left = 6442450944 - 2172062269  # TM*U - M - N, bytes
    seqs = (left - 8192 * best["max_num_batched_tokens"]) / (1280 * 8192 + 3094568)
    assert int(seqs) - 2 <= best["max_num_seqs"] <= int(seqs)  # 17 MiB at most
    verified = answer["verify"]
    assert verified["holds"] and all(check["within"] for check in verified["checks"])
    assert [launch.max_num_seqs for launch in read_launches(folder / "verify.csv")] == [
        best["max_num_seqs"]
    ]
    assert (folder / "config.json").read_text() == Path(CONFIG[1]).read_text()


def test_what_was_made_is_not_made_again(folder):
    table = folder.parent / "two.csv"
    table.write_text("max_num_seqs,max_num_batched_tokens\n128,512\n512,512\n")
    first = figures(folder, "--launches", str(table))
    logs = {log: log.stat().st_mtime_ns for log in (folder / "logs").iterdir()}
    assert figures(folder, "--launches", str(table)) == first and len(logs) == 2
    assert {log: log.stat().st_mtime_ns for log in (folder / "logs").iterdir()} == logs
    table.write_text(table.read_text() + "16,2048\n")
    assert len(figures(folder, "--launches", str(table))["launches"]) == 3
    refused = run(folder, "--launches", str(table), behaviour="slow")
    assert refused.exit_code == 1 and "another command" in refused.stderr
    (folder / "launches.csv").write_text("max_num_seqs,max_num_batched_tokens\n128,512\n")
    refused = run(folder, "--launches", str(table))
    assert refused.exit_code == 1 and "measure did not make this launch" in refused.stderr


@pytest.mark.parametrize(
    "behaviour, reason, pool",
    [
        ("oom@512", "out of memory occurred when warming up sampler with 512 dummy requests", True),
        ("dies@512", "unrecognized arguments: --no-such-flag", False),
        ("killed@512", "the server ended by signal 9", False),
        ("hangs@512", "the server gave no figures within 8 s", False),
    ],
)
def test_a_failed_launch_has_its_reason_and_the_others_are_made(folder, behaviour, reason, pool):
    table = folder.parent / "three.csv"
    table.write_text("max_num_seqs,max_num_batched_tokens\n512,512\n128,512\n16,2048\n")
    answer = figures(folder, "--launches", str(table), "--timeout", "8", behaviour=behaviour)
    failed = at(answer, 512, 512)
    assert failed["status"] == "failed" and reason in failed["error"]
    assert (failed["kv_cache_tokens"] == 327360) == pool
    assert at(answer, 128, 512)["status"] == at(answer, 16, 2048)["status"] == "ok"


def test_a_server_that_failed_and_does_not_exit_is_not_waited_for(folder):
    """Half an hour is the time-out; the grace of 0.3 s is what it gets."""
    table = folder.parent / "one.csv"
    table.write_text("max_num_seqs,max_num_batched_tokens\n128,512\n")
    begin = time.monotonic()
    (launch,) = figures(folder, "--launches", str(table), behaviour="fails")["launches"]
    assert time.monotonic() - begin < 120
    assert launch["status"] == "failed" and "no such attention" in launch["error"]


def test_a_launch_that_compiled_is_made_once_more_and_the_second_counts(folder, exact_launches):
    answer = figures(folder, *LENGTHS, *CONFIG, behaviour="compiles")
    assert [launch["cold_start"] for launch in answer["launches"]] == [False] * 4
    for row in exact_launches:
        if (flags := (row["max_num_seqs"], row["max_num_batched_tokens"])) != (16, 512):
            assert round(at(answer, *flags)["kv_cache_gib"] * 2**30) == row["kv_cache_bytes"]
    logs = sorted(path.name for path in (folder / "logs").iterdir())
    assert len(logs) == 8 and sum(name.endswith(".cold.log") for name in logs) == 4
    (cold,) = read_log(folder / "logs/mns128-mnbt512.cold.log")
    assert cold.cold_start and cold.kv_cache < at(answer, 128, 512)["kv_cache_gib"] * 2**30
    assert "cold_start" not in answer["recommend"]["warnings"]
    again = figures(folder, *LENGTHS, *CONFIG, behaviour="compiles")  # nothing is made again
    assert again["launches"] == answer["launches"]


def test_no_launch_is_added_where_none_worked(folder):
    launches = figures(folder, *LENGTHS, behaviour="dies")["launches"]
    assert [launch["status"] for launch in launches] == ["failed"] * 4


def test_without_a_config_one_launch_more_tells_the_hidden_states(folder):
    """310 is what the law gives with k = 8192; with a k of up to 20 KiB it were 305."""
    answer = figures(folder, *LENGTHS)
    assert len(answer["launches"]) == 5
    assert answer["recommend"]["recommended"]["max_num_seqs"] in (308, 309, 310)


def test_a_terminal_is_not_told_what_a_log_says_to_it(folder):
    program = folder.parent / "vllm"
    program.write_text("#!/bin/sh\nprintf '\\033[2Jgone\\007\\n' >&2\n")
    program.chmod(0o755)
    table = folder.parent / "one.csv"
    table.write_text("max_num_seqs,max_num_batched_tokens\n128,512\n")
    done = CliRunner().invoke(
        main,
        ["measure", "-o", str(folder), "--launches", str(table), "--", str(program), "serve", "m"],
    )
    assert "gone" in done.output and not {"\033", "\007"} & set(done.output)


def test_launches_without_a_pool_still_tell_the_peak(folder):
    table = folder.parent / "large.csv"
    table.write_text("max_num_seqs,max_num_batched_tokens\n2048,2048\n")
    (launch,) = figures(folder, "--launches", str(table))["launches"]
    assert launch["status"] == "failed" and launch["kv_cache_gib"] < 0
    assert launch["peak_activation_gib"] == round((3094568 * 2048 + 8192 * 2048) / 2**30, 2)


@pytest.mark.parametrize("behaviour", ["stubborn", "family", "daemons", "slow"])
def test_servers_that_do_not_go_by_themselves(folder, behaviour):
    table = folder.parent / "one.csv"
    table.write_text("max_num_seqs,max_num_batched_tokens\n128,512\n")
    (launch,) = figures(folder, "--launches", str(table), behaviour=behaviour)["launches"]
    assert launch["status"] == "ok" and launch["kv_cache_tokens"] == 472416
    assert not left_over(folder.parent)


@pytest.mark.parametrize("times", [1, 9])
def test_a_port_that_someone_took(folder, monkeypatch, times):
    table = folder.parent / "one.csv"
    table.write_text("max_num_seqs,max_num_batched_tokens\n128,512\n")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        ports = [taken.getsockname()[1]] * times
        real = measure.free_port
        monkeypatch.setattr(measure, "free_port", lambda: ports.pop() if ports else real())
        (launch,) = figures(folder, "--launches", str(table))["launches"]
    assert launch["status"] == ("ok" if times == 1 else "failed")
    assert times == 1 or "Address already in use" in launch["error"]


def test_a_launch_that_is_missing_after_the_plan_is_made(folder):
    """Group 1 at 512 dies, so K2 is not known from the plan of four."""
    answer = figures(folder, *LENGTHS, *CONFIG, behaviour="dies@512")
    assert 4 < len(answer["launches"]) <= 6
    assert answer["recommend"]["recommended"]["max_num_seqs"] in (308, 309, 310)


@pytest.mark.parametrize("flag", ["--max-num-seqs=8", "--max_num_batched_tokens", "--port"])
def test_flags_that_are_the_drivers_own(folder, flag):
    done = CliRunner().invoke(main, ["measure", "-o", str(folder), "--", *SERVE, flag, "8"])
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and "measure sets it" in done.stderr
    assert not folder.exists()


@pytest.mark.parametrize(
    "args, code, named",
    [
        (["--", "no-such-vllm", "serve", "m"], 1, "no such program"),
        (["--verify", "--", "vllm", "serve", "m"], 2, "--input-len"),
        (["--launches", "nowhere.csv", "--", *SERVE], 1, "nowhere.csv"),
        ([], 2, "vllm serve MODEL"),
    ],
)
def test_bad_input_starts_nothing(folder, args, code, named):
    done = CliRunner().invoke(main, ["measure", "-o", str(folder), *args])
    assert done.exit_code == code and named in done.stderr and not folder.exists()


@pytest.mark.parametrize(
    "args",
    [
        "-tp 2 --max_model_len=4096 --no_enable_chunked_prefill",
        "-tp=2 --max-model-len 4096 --no-enable-chunked-prefill",
        "--tensor-parallel-size=2 --max-model-len '4096' --no-enable-chunked-prefill",
    ],
)
def test_flags_of_the_server_in_all_their_spellings(args):
    settings, chunked = _settings(["vllm", "serve", "/two words/m", *shlex.split(args)])
    assert settings == {"model": "/two words/m", "tensor_parallel_size": 2, "max_model_len": 4096}
    assert not chunked and _settings(["vllm", "serve", "m"]) == ({"model": "m"}, True)


@pytest.mark.parametrize("option", ["--timeout", "--grace"])
def test_a_time_is_a_number(folder, option):
    for never in ("nan", "inf"):
        assert run(folder, option, never).exit_code == 2 and not folder.exists()


def test_one_driver_at_a_time(folder, monkeypatch):
    monkeypatch.setattr("vllm_tuning.measure.folder.PATIENCE", 0)
    with Folder(folder):
        done = run(folder)
    assert done.exit_code == 1 and "another measure works in this folder" in done.stderr


def started(folder, behaviour, grace):
    """A driver at work on its first launch, at a random moment of it."""
    options = ["-o", str(folder), "--grace", grace, "--", *SERVE, "--behaviour", behaviour]
    driver = subprocess.Popen(
        [sys.executable, "-m", "vllm_tuning", "measure", *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    while not list(folder.glob("logs/*.log")):
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.15))  # a whole run of "family" takes twice as long
    return driver


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("behaviour", ["family", "daemons", "stubborn", "hangs"])
def test_interrupted_by_a_signal(folder, number, behaviour):
    driver = started(folder, behaviour, grace="0.3")
    driver.send_signal(number)
    problem = driver.communicate(timeout=120)[1]
    assert driver.returncode == 1 and problem.count("\n") == 1
    assert "interrupted; the servers are stopped" in problem
    assert not left_over(folder.parent)
    assert not list(folder.glob(".*")) and len(read_all(folder)) <= 4


@pytest.mark.parametrize("behaviour", ["family", "daemons", "stubborn", "hangs"])
def test_a_killed_driver_leaves_nobody(folder, behaviour):
    """Not even for the grace: the next driver may start a server at once."""
    driver = started(folder, behaviour, grace="300")
    driver.kill()
    driver.communicate(timeout=20)
    assert not left_over(folder.parent, 5)


def read_all(folder):
    return read_launches(folder / "launches.csv") if (folder / "launches.csv").exists() else []


def drive(folder, mark):
    """Two launches, in a process that may be killed."""
    os.environ[MARK] = mark
    with Folder(folder) as opened:
        for flags in ((128, 512), (16, 2048)):
            measure.Driver(opened, SERVE, timeout=30, grace=0.2).make(flags)


def kill_and_resume(folder, moment, fresh):
    """Whether the driver was still at work when killed; afterwards all is as if it were not."""
    driver = fresh.Process(target=drive, args=(folder, str(folder.parent)))
    driver.start()
    driver.join(moment)
    killed = driver.is_alive()
    driver.kill()
    driver.join()
    assert all(launch.kv_cache_tokens in (472416, 484416) for launch in read_all(folder))
    again = fresh.Process(target=drive, args=(folder, str(folder.parent)))
    again.start()
    again.join()
    assert [launch.kv_cache_tokens for launch in read_all(folder)] == [472416, 484416]
    assert not list(folder.glob(".*"))
    return killed


def undisturbed(folder, fresh):
    """Seconds of a run that nobody kills."""
    begin = time.monotonic()
    driver = fresh.Process(target=drive, args=(folder, str(folder.parent)))
    driver.start()
    driver.join()
    assert len(read_all(folder)) == 2
    return time.monotonic() - begin


def test_killed_at_any_moment(tmp_path, monkeypatch):
    """100 random moments: no process is left, the table is whole, and what is missing is made.

    The stand-in runs until it is stopped, so one that was left would still be there at the end.
    """
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/measure")))
    )
    fresh = multiprocessing.get_context("forkserver")
    fresh.set_forkserver_preload(["test_measure"])
    rng = random.Random(7)
    with ThreadPoolExecutor(4) as several:
        whole = median(
            list(
                several.map(
                    lambda number: undisturbed(tmp_path / f"whole-{number}", fresh), range(8)
                )
            )[4:]
        )
        killed = list(
            several.map(
                lambda number: kill_and_resume(
                    tmp_path / str(number), rng.uniform(0, whole), fresh
                ),
                range(100),
            )
        )
    assert not left_over(tmp_path) and sum(killed) > 30
