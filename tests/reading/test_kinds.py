"""A file in the place of another says what it is and where it belongs."""

import json

import pytest
from click.testing import CliRunner
from conftest import ROOT
from formats_table import table

from vllm_tuning.cli import main
from vllm_tuning.reading.log_formats import formats

SET = ROOT / "data/llama-3-8b-2-layers"
LENGTHS = ["--input-len", "10", "--output-len", "10"]


def files(tmp_path):
    bench, compose = tmp_path / "result.json", tmp_path / "compose.yml"
    bench.write_text(json.dumps({"backend": "vllm", "completed": 9, "output_throughput": 40.5}))
    compose.write_text("# ours\nservices:\n  llm:\n    image: vllm/vllm-openai\n")
    return {
        "config": SET / "config.json",
        "table": SET / "launches.csv",
        "scrape": ROOT / "data/load/mns16.prom",
        "log": SET / "logs/mns128-mnbt512.log",
        "bench": bench,
        "compose": compose,
    }


@pytest.mark.parametrize(
    "command, given, said",
    [
        (["read"], "config", "a model's config.json: give it by --config"),
        (["read"], "table", "a launches.csv: give it to fit"),
        (["read"], "scrape", "a scrape of /metrics: give it to check"),
        (["read"], "bench", "a benchmark's result: give it by --load-runs"),
        (["read"], "compose", "a docker-compose file: give what its container prints"),
        (["recommend", *LENGTHS], "config", "a model's config.json: give it by --config"),
        (["budget"], "log", "a server's log: give it to read, fit or recommend"),
        (["budget"], "table", "a launches.csv: give it to fit"),
        (["check"], "log", "a server's log: give it to read, fit or recommend"),
        (["check"], "config", "a model's config.json"),
    ],
)
def test_what_it_is(command, given, said, tmp_path):
    path = str(files(tmp_path)[given])
    done = CliRunner().invoke(main, [*command, path])
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert f"{path}: this is {said}" in done.stderr and "; expected " in done.stderr


def test_a_script_is_just_no_log(tmp_path):
    done = CliRunner().invoke(main, ["read", str(ROOT / "Makefile")])
    assert done.exit_code == 1 and "no start of a vLLM server in it; expected" in done.stderr


def test_the_table_of_lines_is_that_of_the_formats():
    """``python tests/reading/formats_table.py`` writes it."""
    written = (ROOT / "vllm_tuning/reading/README.md").read_text("utf-8")
    assert table() in written and table().count("\n") == len(formats()) + 2
