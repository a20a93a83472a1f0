"""The sweep file, read by vLLM's own parser. Runs where vLLM is installed: make test-vllm."""

import json

import pytest
from click.testing import CliRunner

from vllm_tuning.cli import main

param_sweep = pytest.importorskip("vllm.benchmarks.sweep.param_sweep",
                                  reason="vLLM is not installed; make test-vllm runs this")


def test_vllm_reads_the_sweep_file_and_serves_with_its_flags(tmp_path):
    file = tmp_path / "sweep.json"
    done = CliRunner().invoke(main, ["recommend", "llama-3-8b-2-layers", "--input-len", "1024",
                                     "--output-len", "256", "--json", "--sweep", str(file)])
    best = json.loads(done.stdout)["recommended"]
    points = param_sweep.ParameterSweep.read_json(file)
    assert points[0].name == "recommended" and len(points) == len({p.name for p in points}) > 2
    assert points[0].apply_to_cmd(["vllm", "serve", "M", "--max-num-seqs", "1"]) == [
        "vllm", "serve", "M", "--max-num-seqs", str(best["max_num_seqs"]),
        "--max-num-batched-tokens", str(best["max_num_batched_tokens"])]


def test_vllm_bench_sweep_takes_it_in_a_dry_run(tmp_path, capsys):
    serve = pytest.importorskip("vllm.benchmarks.sweep.serve")
    import argparse

    file = tmp_path / "sweep.json"
    CliRunner().invoke(main, ["recommend", "llama-3-8b-2-layers", "--input-len", "1024",
                              "--output-len", "256", "--sweep", str(file)])
    parser = serve.SweepServeArgs.add_cli_args(argparse.ArgumentParser())
    serve.run_main(serve.SweepServeArgs.from_cli_args(parser.parse_args([
        "--serve-cmd", "vllm serve M", "--bench-cmd", "vllm bench serve --model M",
        "--serve-params", str(file), "--output-dir", str(tmp_path), "--dry-run"])))
    commands = [line for line in capsys.readouterr().out.splitlines()
                if line.startswith("Server command:")]
    assert len(commands) == len(json.loads(file.read_text()))
    assert all("--max-num-seqs" in line and "--max-num-batched-tokens" in line for line in commands)
