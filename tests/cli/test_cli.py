"""The command line: exit codes, one line on bad input, JSON and nothing else."""

import contextlib
import json
import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from conftest import ROOT

from vllm_tuning import read_launches
from vllm_tuning.cli import main
from vllm_tuning.cli.options import echo
from vllm_tuning.reading import read_log
from vllm_tuning.report.contract import launch_json

SET = "llama-3-8b-2-layers"
LENGTHS = ["--input-len", "1024", "--output-len", "256"]


def run(*args):
    return CliRunner().invoke(main, list(args))


@pytest.mark.parametrize("command", ["fit", "recommend", "report"])
def test_every_command_has_help(command):
    assert run(command, "--help").exit_code == 0


def test_fit_json_holds_the_contract():
    result = run("fit", SET, "--json")
    fit = json.loads(result.stdout)
    assert result.exit_code == 0 and result.stderr == ""
    assert {"k1", "a1", "k2", "a2", "k"} <= fit.keys() and set(fit["stderr"]) == {
        "k1",
        "a1",
        "k2",
        "a2",
        "k",
        "s",
    }
    assert fit["k1"] == pytest.approx(147456, rel=1e-3)
    for launch in fit["launches"]:
        assert {
            "branch",
            "peak_activation_predicted_gib",
            "kv_cache_predicted_gib",
            "residual_gib",
        } <= launch.keys()


def test_recommend_json_holds_the_contract():
    answer = json.loads(run("recommend", SET, *LENGTHS, "--json").stdout)
    assert {
        "max_num_seqs",
        "max_num_batched_tokens",
        "k1",
        "k2",
        "a",
        "kv_bytes_per_token",
    } <= answer["method"].keys()
    assert {
        "max_num_seqs",
        "max_num_batched_tokens",
        "k1",
        "a1",
        "k2",
        "a2",
        "k",
        "stderr",
        "route",
    } <= answer["refined"].keys()
    assert {
        "max_num_seqs",
        "max_num_batched_tokens",
        "kv_cache_gib",
        "kv_cache_tokens",
        "kv_cache_tokens_stderr",
        "concurrency",
        "confidence",
    } <= answer["recommended"].keys()
    assert answer["recommended"]["confidence"] == 0.95 and answer["warnings"] == []
    assert answer["method_reason"] is None
    assert isinstance(answer["recommended"]["max_num_seqs"], int)


def test_unknown_figures_are_null_never_nan():
    for args in (
        ["fit", "qwen3.5-4b-a30"],
        ["recommend", "qwen3.5-4b-a30", *LENGTHS],
        ["fit", "llama-3.1-70b-mi300x"],
        ["recommend", "vllm-0.32-profile-grid", *LENGTHS],
    ):
        result = run(*args, "--json")
        assert result.exit_code == 0
        json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("name", [path.parent.name for path in ROOT.glob("data/*/launches.csv")])
def test_the_answer_fits_80_columns(name):
    for args in (["recommend", name, *LENGTHS], ["fit", name]):
        result = run(*args)
        assert result.exit_code in (0, 1)
        assert all(len(line) <= 80 for line in result.stdout.splitlines()), result.stdout


def test_the_answer_is_the_flags_to_copy():
    answer = json.loads(run("recommend", SET, *LENGTHS, "--json").stdout)["recommended"]
    assert (
        f"--max-num-seqs {answer['max_num_seqs']} --max-num-batched-tokens "
        f"{answer['max_num_batched_tokens']}"
    ) in run("recommend", SET, *LENGTHS).stdout


def test_sizes_with_suffixes_and_the_config_option(tmp_path):
    plain = run("recommend", SET, *LENGTHS, "--json").stdout
    assert (
        run("recommend", SET, "--input-len", "1K", "--output-len", "256", "--json").stdout == plain
    )
    csv = ROOT / "data" / SET / "launches.csv"
    (tmp_path / "launches.csv").write_text(csv.read_text())
    bare = json.loads(run("fit", str(tmp_path), "--json").stdout)
    given = json.loads(
        run("fit", str(tmp_path), "--json", "--config", str(csv.parent / "config.json")).stdout
    )
    assert (round(bare["k"]), bare["k_source"]) == (10240, "assumed")
    assert (given["k"], given["k_source"]) == (8192, "config")


@pytest.mark.parametrize(
    "args",
    [
        ["fit"],
        ["recommend", SET],
        ["recommend", SET, "--input-len", "0", "--output-len", "1"],
        ["recommend", SET, "--input-len", "abc", "--output-len", "1"],
        ["recommend", SET, "--input-len", "1" + "0" * 400, "--output-len", "1"],
        ["fit", SET, "--no-such-flag"],
        ["recommend", SET, *LENGTHS, "--json", "--yaml"],
        ["recommend", SET, *LENGTHS, "--args", "--yaml"],
        ["no-such-command"],
    ],
)
def test_bad_usage_exits_2(args):
    assert run(*args).exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        "max_num_seqs\nnan\n",
        "max_num_seqs,typo\n1,2\n",
        "",
        "gpu_memory_utilization\n1.5\n",
        "max_num_seqs,max_num_batched_tokens,vllm_version,kv_cache_gib\n1,2,0.9,3\n1,4,0.8,2\n",
        "max_num_seqs,max_num_batched_tokens,kv_cache_gib\n16,2048,3\n16,4096,4\n16,8192,5\n",
    ],
)
def test_bad_input_exits_1_with_one_line(tmp_path, text):
    path = tmp_path / "launches.csv"
    path.write_text(text)
    for args in (["fit", str(path)], ["recommend", str(path), *LENGTHS, "--json"]):
        result = run(*args)
        assert result.exit_code == 1 and result.stdout == ""
        assert result.stderr.startswith(f"vllm-tuning: {path}") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("path", ["no/such/file.csv", "nothing", str(ROOT / "tests")])
def test_a_missing_file_exits_1_with_one_line(path):
    result = run("fit", path)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1


def test_a_broken_config_exits_1(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    result = run("fit", SET, "--config", str(tmp_path / "config.json"))
    assert result.exit_code == 1 and "hidden_size" in result.stderr


def test_as_a_module_and_without_colour_in_a_pipe():
    done = subprocess.run(
        [sys.executable, "-m", "vllm_tuning", "recommend", SET, *LENGTHS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout


def test_digits_of_another_script_are_refused(tmp_path):
    for column in ("max_num_seqs", "kv_cache_gib"):
        (tmp_path / "launches.csv").write_text(f"{column}\n٣\n")
        assert run("fit", str(tmp_path)).exit_code == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "vllm_tuning", "fit", SET],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("vllm-tuning: ")


def test_an_output_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("report", SET, *LENGTHS, "-o", str(tmp_path / "file" / "folder"))
    assert result.exit_code == 1 and result.stderr.startswith(
        f"vllm-tuning: {tmp_path}/file/folder"
    )


def test_names_and_paths_no_system_takes_are_one_line(tmp_path):
    for name in ("a" * 5000, str(tmp_path / ("b" * 300)), "\udcff.csv"):
        result = run("fit", name)
        assert result.exit_code == 1 and result.stderr.count("\n") == 1, name[:20]


def test_an_interrupt_is_one_line(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vllm_tuning.answer.model_of", interrupt)
    result = run("fit", SET)
    assert result.exit_code == 1 and result.stderr == "vllm-tuning: interrupted\n"


LOGS = [str(path) for path in sorted((ROOT / "tests/data/logs").glob("v0.32-*.log"))]


def test_read_prints_a_table_json_or_a_csv_that_reads_back(tmp_path):
    table = run("read", *LOGS)
    assert table.exit_code == 0 and all(len(line) <= 80 for line in table.stdout.splitlines())
    launches = json.loads(run("read", *LOGS, "--json").stdout)
    assert len(launches) >= len(LOGS) and "kv_cache_gib" in launches[0]
    assert run("read", *LOGS, "-o", str(tmp_path / "launches.csv")).exit_code == 0
    back = [launch_json(launch) for launch in read_launches(tmp_path)]
    assert back == json.loads(json.dumps(launches))


def test_read_takes_a_folder_of_logs(tmp_path):
    for log in LOGS:
        (tmp_path / os.path.basename(log)).symlink_to(log)
    (tmp_path / "launches.csv").write_text("made by an earlier read\n")
    folder, one_by_one = (
        json.loads(run("read", *logs, "--json").stdout) for logs in ([str(tmp_path)], LOGS)
    )
    sources = [launch.pop("source") for launch in folder]
    assert all(source.startswith(f"{tmp_path}/v0.32-") for source in sources)
    assert folder == [{k: v for k, v in launch.items() if k != "source"} for launch in one_by_one]


def test_a_file_that_is_no_log_does_not_stop_the_others():
    result = run("read", str(ROOT / "README.md"), LOGS[0], "--json")
    assert result.exit_code == 1 and len(json.loads(result.stdout)) == 1
    assert result.stderr.startswith(f"vllm-tuning: {ROOT / 'README.md'}: no start of a vLLM server")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [["fit"], ["recommend", *LENGTHS], ["report", *LENGTHS], ["check"]],
    ids=lambda c: c[0],
)
def test_a_log_is_read_once_in_a_command(command, tmp_path, monkeypatch):
    """Of report, what this process reads: its notebook runs in another, which is not started."""
    log = str(ROOT / "data" / SET / "logs" / "mns16-mnbt8192.log")
    read = []
    monkeypatch.setattr(
        "vllm_tuning.reading.sources.read_log", lambda path: read.append(path) or read_log(path)
    )
    monkeypatch.setattr("vllm_tuning.report.page.run_template", lambda *_: pytest.skip("read"))
    if command == ["check"]:
        scrape = tmp_path / "a.prom"
        scrape.write_text("vllm:num_requests_running 0\n")
        command = ["check", str(scrape), "--launches"]
    elif command[0] == "report":
        command = [*command, "-o", str(tmp_path)]
    with contextlib.suppress(pytest.skip.Exception):
        assert run(*command, log).exit_code == 0
    assert read == [log]


def test_fit_takes_a_log_and_names_the_launches_to_make():
    log = str(ROOT / "tests/data/logs/v0.32-exact.log")
    fit = json.loads(run("fit", log, "--json").stdout)
    assert len(fit["launches"]) == 1 and len(fit["next_launches"]) >= 3


def test_the_answer_fits_80_columns_where_k_is_assumed(tmp_path):
    (tmp_path / "launches.csv").write_text((ROOT / "data" / SET / "launches.csv").read_text())
    answer = run("recommend", str(tmp_path), *LENGTHS).stdout
    assert "10,240 +- 6,225" in answer and all(len(line) <= 80 for line in answer.splitlines())


HOSTILE = "\x1bc\x1b]0;title\x07\x1b]52;c;eA==\x1b\\\x9b31m\x08\u202eevil\x00"


def test_control_characters_never_reach_a_terminal(tmp_path, monkeypatch):
    """From a table's cells, a file's name and a complaint; own colours stay."""
    folder = tmp_path / HOSTILE.replace("\0", "").replace("/", "")
    folder.mkdir()
    table = (ROOT / "data" / SET / "launches.csv").read_text()
    rows = [line for line in table.splitlines() if not line.startswith("#")]
    text = "\n".join([f"{rows[0]},error", *(f"{row},{HOSTILE[:-1]}" for row in rows[1:])])
    (folder / "launches.csv").write_text(text)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    for args in (["fit"], ["recommend", *LENGTHS], ["fit", "--config", "none"]):
        result = run(args[0], str(folder), *args[1:])
        own = re.sub(r"\x1b\[\d\d?m", "", result.output)
        assert result.output and all(c.isprintable() or c == "\n" for c in own)


def test_a_character_that_is_shown_keeps_its_words(capsys):
    echo("Größe ± 1 " + click.style(HOSTILE, bold=True))
    shown = capsys.readouterr().out
    assert shown.startswith("Größe ± 1 ") and r"\x1bc\x1b]0;title\x07" in shown
    assert r"\x9b31m\x08\u202eevil\x00" in shown
