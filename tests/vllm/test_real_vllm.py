"""The plugin, read, recommend and measure with the real vLLM 0.32 on the CPU: see README.md."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_tuning.plugin import PROFILED, READY, SWITCH
from vllm_tuning.reading.log import read_log

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENV = Path(os.environ.get("VLLM_TUNING_VLLM", "none"))
GIB = 2**30
DEVICE = GIB  # bytes of the simulated device
TENSORS, GRANULE = 16, 512  # alive at the peak, at most; bytes that each is rounded up to
FLAGS = [
    "--load-format",
    "dummy",
    "--skip-tokenizer-init",
    "--max-model-len",
    "2048",
    "--enforce-eager",
    "--block-size",
    "32",
]
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 8000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
DISTRIBUTIONS = {
    "vllm-0.32.0+cpu": ("vllm", "0.32.0+cpu", ""),
    "simulated_device-0": ("simulated-device", "0", "simulated_device = simulated_device:register"),
}

pytestmark = pytest.mark.skipif(not (VENV / "bin/vllm").exists(), reason="opt-in: make test-vllm")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder as it is mounted into a container: the package without its dependencies."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            site,
            ROOT,
        ],
        check=True,
    )
    (site / "simulated_device.py").write_text((HERE / "simulated_device.py").read_text())
    for folder, (name, version, plugin) in DISTRIBUTIONS.items():
        info = site / f"{folder}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(
            f"[vllm.general_plugins]\n{plugin}\n" if plugin else ""
        )
    return site


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


@pytest.fixture(scope="session")
def environment(site):
    """Of a server with the plugin, which finds nothing but what is here."""
    return os.environ | {
        SWITCH: "1",
        "PYTHONPATH": str(site),
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }


@pytest.fixture(scope="session")
def serve(model, environment, tmp_path_factory):
    """Start a server until it is up, and stop it: its log."""

    def served(name, *flags, **variables):
        log = tmp_path_factory.mktemp("logs") / f"{name}.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with log.open("wb") as out:
            server = subprocess.Popen(
                [VENV / "bin/vllm", "serve", model, *FLAGS, "--port", str(port), *flags],
                env=environment | variables,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + 500
            while "Application startup complete" not in log.read_text():
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()[
                    -3000:
                ]
                time.sleep(0.5)
        finally:
            stop(server)
        keep(log)
        return log

    return served


def stop(server):
    for how in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(server.pid, how)
            server.wait(30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def keep(path):
    """A copy of a log where VLLM_TUNING_KEEP names a folder."""
    if folder := os.environ.get("VLLM_TUNING_KEEP"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / path.name).write_bytes(path.read_bytes())


@pytest.fixture(scope="session")
def on_the_cpu(serve):
    return serve(
        "cpu",
        "--max-num-seqs",
        "64",
        "--max-num-batched-tokens",
        "1024",
        "--gpu-memory-utilization",
        "0.1",
    )


@pytest.fixture(scope="session")
def on_a_device(serve):
    return serve(
        "device",
        "--max-num-seqs",
        "128",
        "--max-num-batched-tokens",
        "512",
        "--gpu-memory-utilization",
        "0.75",
        SIMULATED_DEVICE_BYTES=str(DEVICE),
    )


def figures(log, marker):
    (line,) = re.findall(re.escape(marker) + r" (\{.*\})", log.read_text())
    return json.loads(line)


def printed(log, pattern):
    (line,) = re.findall(pattern, log.read_text())
    return [
        float(figure.replace(",", "")) for figure in (line if isinstance(line, tuple) else (line,))
    ]


def agrees(gib, exact):
    """Whether vLLM's two digits are the rounded bytes."""
    return gib == round(exact / GIB, 2)


# ---------------------------------------------------------------- the plugin


def test_a_plain_cpu_server_gives_what_it_has(on_the_cpu):
    first, last = (figures(on_the_cpu, marker) for marker in (PROFILED, READY))
    kv, _, requested = printed(
        on_the_cpu,
        r"Auto set \(([\d.]+)/([\d.]+)\) GiB for KV cache on node \d+, "
        r"with ([\d.]+) GiB requested",
    )
    (tokens,) = printed(on_the_cpu, r"KV cache size: ([\d,]+) tokens")
    assert agrees(kv, first["kv_cache"]) and agrees(requested, first["requested_memory"])
    assert last["kv_cache_tokens"] == last["num_gpu_blocks"] * last["block_size"] == tokens
    assert (last["max_num_seqs"], last["max_num_batched_tokens"], last["max_model_len"]) == (
        64,
        1024,
        2048,
    )
    unknown = [
        name for name in ("model_weights", "non_torch", "peak_activation") if first[name] is None
    ]
    warning = re.findall("vllm_tuning: not known here: (.*)", on_the_cpu.read_text())
    assert (
        len(unknown) == 3
        and len(warning) == 1
        and all(f"{name} (" in warning[0] for name in unknown)
    )


def test_the_bytes_are_those_that_vllm_rounds(on_a_device):
    exact = figures(on_a_device, READY)
    non_kv, consumed, weights = printed(
        on_a_device,
        r"Total non KV cache memory: ([\d.]+)GiB; torch peak memory increase: [\d.]+GiB; "
        r"total consumed \(from mem_get_info\): ([\d.]+)GiB; weights memory: ([\d.]+)GiB",
    )
    total, requested, peak, proposed = printed(
        on_a_device,
        r"Free memory on device \([\d.]+/([\d.]+) GiB\) on startup\. Desired GPU memory "
        r"utilization is \(0\.75, ([\d.]+) GiB\)\. .*?, ([\d.]+) GiB for peak activation.*?"
        r"`--kv-cache-memory=(\d+)` \([\d.]+ GiB\) to fit",
    )
    (kv,) = printed(on_a_device, r"Available KV cache memory: ([\d.]+) GiB")
    (tokens,) = printed(on_a_device, r"KV cache size: ([\d,]+) tokens")
    assert exact["total_memory"] == DEVICE and total == 1.0
    for rounded, name in (
        (requested, "requested_memory"),
        (weights, "model_weights"),
        (peak, "peak_activation"),
        (kv, "kv_cache"),
    ):
        assert agrees(rounded, exact[name]), name
    used = exact["model_weights"] + exact["non_torch"]
    assert agrees(consumed, used) and agrees(non_kv, used + exact["peak_activation"])
    assert exact["kv_cache"] == proposed + 150 * 2**20  # eager: no graphs
    assert exact["kv_cache"] == exact["requested_memory"] - used - exact["peak_activation"]
    assert exact["non_torch"] == 60 * 2**20  # what the simulated device grew by
    assert exact["kv_cache_tokens"] == tokens and exact["cuda_graph"] == 0


def test_read_reads_it(on_a_device, on_the_cpu):
    exact = figures(on_a_device, READY)
    (launch,) = read_log(on_a_device)
    assert (
        launch.status == "ok"
        and launch.warnings == ("exact_figures",)
        and launch.vllm_version == "0.32.0"
    )
    for name in (
        "total_memory",
        "model_weights",
        "non_torch",
        "peak_activation",
        "kv_cache",
        "kv_cache_tokens",
        "num_gpu_blocks",
        "block_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
    ):
        assert getattr(launch, name) == exact[name], name
    (launch,) = read_log(on_the_cpu)
    assert (
        launch.kv_cache == figures(on_the_cpu, READY)["kv_cache"] and launch.peak_activation is None
    )


# ---------------------------------------------------------------- flags


def ours(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "vllm_tuning", *map(str, arguments)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        **options,
    )


def test_the_servers_parser_takes_what_recommend_gives(environment, tmp_path):
    asked = ["recommend", "llama-3-8b-2-layers", "--input-len", "1024", "--output-len", "256"]
    flags = re.search(r"--max-num-seqs \d+ --max-num-batched-tokens \d+", ours(*asked).stdout)[
        0
    ].split()
    (tmp_path / "answer.yaml").write_text(ours(*asked, "--yaml").stdout)
    code = (
        "import sys; from vllm.entrypoints.cli import serve; from vllm.utils.argparse_utils import "
        "FlexibleArgumentParser as P; p = P(); "
        "serve.ServeSubcommand().subparser_init(p.add_subparsers()); "
        "a = p.parse_args(['serve', 'model', *sys.argv[1:]]); "
        "print(a.max_num_seqs, a.max_num_batched_tokens)"
    )
    for given in (flags, ["--config", tmp_path / "answer.yaml"]):
        run = subprocess.run(
            [VENV / "bin/python", "-c", code, *given],
            capture_output=True,
            text=True,
            env=environment | {"VLLM_LOGGING_LEVEL": "ERROR"},
        )
        assert run.stdout.split()[-2:] == [flags[1], flags[3]], run.stderr[-2000:]


# ---------------------------------------------------------------- four launches, an answer, a fifth


@pytest.mark.parametrize("plugin", ["1", "0"], ids=["with the plugin", "by the log alone"])
def test_measure_from_the_plan_to_the_verdict(model, environment, tmp_path, plugin):
    run = ours(
        "measure",
        "-o",
        tmp_path / "launches",
        "--input-len",
        "512",
        "--output-len",
        "512",
        "--gpu-memory",
        DEVICE / GIB,
        "--vllm-version",
        "0.32.0",
        "--timeout",
        "500",
        "--verify",
        "--json",
        "--",
        VENV / "bin/vllm",
        "serve",
        model,
        *FLAGS,
        "--gpu-memory-utilization",
        "0.75",
        env=environment
        | {
            SWITCH: plugin,
            "SIMULATED_DEVICE_BYTES": str(DEVICE),
            "PYTHONPATH": os.pathsep.join([str(ROOT), environment["PYTHONPATH"]]),
        },
    )
    assert run.returncode == 0, run.stderr
    for path in sorted((tmp_path / "launches").rglob("*.*")):
        keep(path)
    found = json.loads(run.stdout)
    assert len(found["launches"]) >= 4 and all(
        launch["status"] == "ok" for launch in found["launches"]
    )
    verify = found["verify"]
    checks = {(check["name"], check["unit"]): check for check in verify["checks"]}
    assert verify["status"] == "ok" and verify["holds"] is True
    pool, tokens = checks["KV cache", "GiB"], checks["KV cache", "tokens"]
    assert abs(pool["measured"] - pool["predicted"]) * GIB < TENSORS * GRANULE
    assert tokens["within"], verify["verdict"]
