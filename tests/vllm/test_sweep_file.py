"""The sweep file, read by the real vLLM's own parser: see README.md."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from vllm_tuning.cli import main

VENV = Path(os.environ.get("VLLM_TUNING_VLLM", "none"))
pytestmark = pytest.mark.skipif(not (VENV / "bin/vllm").exists(), reason="opt-in: make test-vllm")
READ = """
import json, sys
from vllm.benchmarks.sweep.param_sweep import ParameterSweep
command = ["vllm", "serve", "M", "--max-num-seqs", "1"]
points = ParameterSweep.read_json(sys.argv[1])
print(json.dumps([[p.name, p.apply_to_cmd(command)] for p in points]))
"""
DRY_RUN = """
import argparse, sys
from vllm.benchmarks.sweep.serve import SweepServeArgs, run_main
parser = SweepServeArgs.add_cli_args(argparse.ArgumentParser())
run_main(SweepServeArgs.from_cli_args(parser.parse_args([
    "--serve-cmd", "vllm serve M", "--bench-cmd", "vllm bench serve --model M",
    "--serve-params", sys.argv[1], "--output-dir", sys.argv[2], "--dry-run"])))
"""


def by_vllm(code, *args):
    done = subprocess.run(
        [VENV / "bin/python", "-c", code, *map(str, args)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def sweep(tmp_path):
    done = CliRunner().invoke(
        main,
        [
            "recommend",
            "llama-3-8b-2-layers",
            "--input-len",
            "1024",
            "--output-len",
            "256",
            "--json",
            "--sweep",
            str(tmp_path / "sweep.json"),
        ],
    )
    return tmp_path / "sweep.json", json.loads(done.stdout)["recommended"]


def test_vllm_reads_the_sweep_file_and_serves_with_its_flags(sweep):
    file, best = sweep
    points = json.loads(by_vllm(READ, file).splitlines()[-1])
    assert len(dict(points)) == len(points) > 2
    assert points[0] == [
        "recommended",
        [
            "vllm",
            "serve",
            "M",
            "--max-num-seqs",
            str(best["max_num_seqs"]),
            "--max-num-batched-tokens",
            str(best["max_num_batched_tokens"]),
        ],
    ]


def test_vllm_bench_sweep_takes_it_in_a_dry_run(sweep, tmp_path):
    file, _ = sweep
    commands = [
        line
        for line in by_vllm(DRY_RUN, file, tmp_path).splitlines()
        if line.startswith("Server command:")
    ]
    assert len(commands) == len(json.loads(file.read_text()))
    assert all("--max-num-seqs" in line and "--max-num-batched-tokens" in line for line in commands)
