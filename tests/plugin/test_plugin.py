"""The plugin of vLLM, in stand-ins with the methods and attributes that its releases have.

The real vLLM is in tests/vllm/.
"""

import json
import logging
import os
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from vllm_tuning import model_of, plugin, read_launches
from vllm_tuning.reading.log import read_log

ROOT = Path(__file__).resolve().parents[2]
GIB, MIB = 2**30, 2**20
V1 = "vllm.v1.worker.worker_base"
# A card of 80 GiB at 0.5: 40 GiB = 15 weights + 1 outside torch + 2 activations + 22 pool.
TOTAL, REQUESTED, WEIGHTS, NON_TORCH, PEAK, POOL = (size * GIB for size in (80, 40, 15, 1, 2, 22))
EXPECTED = {
    "rank": 3,
    "total_memory": TOTAL,
    "gpu_memory_utilization": 0.5,
    "requested_memory": REQUESTED,
    "model_weights": WEIGHTS,
    "non_torch": NON_TORCH,
    "peak_activation": PEAK,
    "cuda_graph": 700 * MIB,
    "kv_cache": POOL,
    "kv_cache_tokens": 11264 * 16,
    "num_gpu_blocks": 11264,
    "block_size": 16,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "max_model_len": 4096,
    "cuda_graph_estimated": None,
}


@pytest.fixture
def vllm(monkeypatch, caplog):
    """An empty vLLM to put a release's modules in; the switch is on."""
    modules = {"vllm": {}, "vllm.logger": {"init_logger": logging.getLogger}, "torch": {}}

    def release(version, **more):
        for name, content in (modules | more).items():
            module = ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
        sys.modules["vllm"].__version__ = version

    monkeypatch.setenv(plugin.SWITCH, "1")
    caplog.set_level(logging.INFO)
    return release


def lines(caplog):
    return [
        (
            record.getMessage().partition(" {")[0],
            json.loads("{" + record.getMessage().partition(" {")[2]),
        )
        for record in caplog.records
        if record.getMessage().startswith("vllm_tuning figures")
    ]


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class Device:
    """torch.cuda on a card: weights are allocated, the profile run peaks above them."""

    def __init__(self):
        self.allocated, self.peak, self.free = WEIGHTS, 70 * GIB, 60 * GIB

    def is_available(self):
        return True

    def mem_get_info(self):
        return self.free, TOTAL

    def memory_allocated(self):
        return self.allocated

    def max_memory_allocated(self):
        return self.peak

    def reset_peak_memory_stats(self):
        self.peak = self.allocated

    def profile(self):
        self.peak = max(self.peak, self.allocated + PEAK)


def configured(worker):
    worker.rank = 3
    worker.cache_config = SimpleNamespace(
        gpu_memory_utilization=0.5, block_size=16, num_gpu_blocks=None
    )
    worker.scheduler_config = SimpleNamespace(max_num_seqs=64, max_num_batched_tokens=2048)
    worker.model_config = SimpleNamespace(max_model_len=4096)
    worker.parallel_config = SimpleNamespace(decode_context_parallel_size=1)
    worker.model_runner = SimpleNamespace(
        model_memory_usage=WEIGHTS, capture_model=lambda *_: 700 * MIB
    )


def profiling_of(result):
    """vLLM's memory_profiling, whose result is filled in at its end."""

    @contextmanager
    def memory_profiling(*args, **kwargs):
        given = SimpleNamespace()
        yield given
        vars(given).update(result)

    return memory_profiling


def base_of(module):
    class WorkerBase:
        def __init__(self, vllm_config):
            configured(self)

    WorkerBase.__module__ = module
    return WorkerBase


def v1_worker(base, answer=POOL):
    class Worker(base):
        def __init__(self, config=None):
            super().__init__(config)
            self.init_snapshot = SimpleNamespace(total_memory=TOTAL)
            self.requested_memory = float(REQUESTED)

        def determine_available_memory(self):
            with sys.modules["gpu_worker"].memory_profiling("snapshot", weights_memory=WEIGHTS):
                pass
            return answer

        def initialize_from_config(self, kv_cache_config):
            self.given = kv_cache_config

        def compile_or_warm_up_model(self):
            self.model_runner.capture_model()
            return 12.5

    Worker.__module__ = "gpu_worker"
    return Worker


def pool_of(*sizes, blocks=11264):
    return SimpleNamespace(
        num_blocks=blocks,
        kv_cache_groups=[
            SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size)) for size in sizes
        ],
    )


def start_v1(worker):
    assert worker.determine_available_memory() == POOL
    worker.initialize_from_config(kv_cache_config=pool_of(16))
    assert worker.given.num_blocks == 11264
    assert worker.compile_or_warm_up_model() == 12.5


RESULTS = {
    "0.10.2": {
        "weights_memory": WEIGHTS,
        "torch_peak_increase": PEAK,
        "non_torch_increase": NON_TORCH,
    },
    "0.32.0": {
        "weights_memory": WEIGHTS,
        "torch_peak_increase": PEAK + 5 * MIB,
        "non_torch_increase": 7,
        "total_consumed": WEIGHTS + NON_TORCH,
        "transient_peak_headroom": PEAK,
    },
}


@pytest.mark.parametrize("version", RESULTS)
def test_v1_with_a_profiling_result(vllm, caplog, version):
    base = base_of(V1)
    profiling = profiling_of(RESULTS[version])
    vllm(version, **{V1: {"WorkerBase": base}, "gpu_worker": {"memory_profiling": profiling}})
    plugin.register()
    plugin.register()
    start_v1(v1_worker(base)())
    (profiled, first), (ready, second) = lines(caplog)
    assert (profiled, ready) == (plugin.PROFILED, plugin.READY)
    assert second == EXPECTED | {"vllm_version": version}
    assert first == second | dict.fromkeys(("cuda_graph", "num_gpu_blocks", "kv_cache_tokens"))
    assert not warnings(caplog)
    assert sys.modules["gpu_worker"].memory_profiling is profiling


def registered_v1(vllm):
    """A worker of vLLM 0.32 with the plugin in it."""
    base = base_of(V1)
    vllm(
        "0.32.0",
        **{
            V1: {"WorkerBase": base},
            "gpu_worker": {"memory_profiling": profiling_of(RESULTS["0.32.0"])},
        },
    )
    plugin.register()
    return v1_worker(base)()


def test_v1_with_an_estimate_of_graphs(vllm, caplog):
    worker = registered_v1(vllm)
    worker.cudagraph_memory_estimate = 600 * MIB
    start_v1(worker)
    assert [figures["cuda_graph_estimated"] for _, figures in lines(caplog)] == [600 * MIB] * 2


def test_v1_of_08_has_no_profiling_result(vllm, caplog):
    base, device = base_of(V1), Device()

    class Worker(base):
        def determine_available_memory(self):
            device.reset_peak_memory_stats()
            device.profile()
            return POOL

        def initialize_from_config(self, pool):
            pass

        def compile_or_warm_up_model(self):
            self.model_runner.capture_model()

    vllm("0.8.5", **{V1: {"WorkerBase": base}, "torch": {"cuda": device}})
    plugin.register()
    worker = Worker(None)

    def capture_model():  # takes memory, and does not say how much
        device.free -= 700 * MIB

    worker.model_runner.capture_model = capture_model
    worker.determine_available_memory()
    worker.initialize_from_config(pool_of(16))
    worker.compile_or_warm_up_model()
    assert lines(caplog)[1][1] == EXPECTED | {"vllm_version": "0.8.5"}
    assert worker.model_runner.capture_model is capture_model


# ---------------------------------------------------------------- what must not happen


def test_without_the_switch_nothing_is_touched(vllm, monkeypatch):
    base = base_of(V1)
    vllm("0.32.0", **{V1: {"WorkerBase": base}})
    before = base.__init__
    for value in ("", "0", "yes"):
        monkeypatch.setenv(plugin.SWITCH, value)
        plugin.register()
    monkeypatch.delenv(plugin.SWITCH)
    plugin.register()
    assert base.__init__ is before


def test_a_release_it_does_not_know_is_left_alone(vllm, caplog):
    vllm("9.9", **{V1: {"WorkerBase": type("WorkerBase", (), {})}})
    plugin.register()
    vllm("9.9", **{V1: {}})
    plugin.register()
    assert not lines(caplog)


def test_a_worker_of_another_device_gives_what_it_has(vllm, caplog):
    base = base_of(V1)

    class Worker(base):
        def determine_available_memory(self):
            return POOL

    vllm(
        "0.32.0",
        **{
            V1: {"WorkerBase": base},
            "torch": {"cuda": SimpleNamespace(is_available=lambda: False)},
        },
    )
    plugin.register()
    worker = Worker(None)
    del worker.model_runner.model_memory_usage
    assert worker.determine_available_memory() == POOL
    ((_, figures),) = lines(caplog)
    assert figures["kv_cache"] == POOL and figures["max_num_seqs"] == 64
    unknown = ("total_memory", "requested_memory", "model_weights", "non_torch", "peak_activation")
    assert [figures[name] for name in unknown] == [None] * 5
    (warning,) = warnings(caplog)
    assert all(f"{name} (" in warning for name in unknown) and "no CUDA device" in warning


def test_surprises_cost_a_figure_and_not_the_server(vllm, caplog):
    class Stranger:
        def __getattr__(self, name):
            raise RuntimeError(f"no {name} today")

    base = base_of(V1)
    vllm(
        "0.32.0",
        **{
            V1: {"WorkerBase": base},
            "gpu_worker": {
                "memory_profiling": profiling_of(
                    {"weights_memory": "many", "transient_peak_headroom": PEAK}
                )
            },
        },
    )
    plugin.register()
    worker = v1_worker(base)()
    worker.scheduler_config = worker.init_snapshot = worker.model_runner = Stranger()
    assert worker.determine_available_memory() == POOL
    with pytest.raises(TypeError, match="kv_cache_config"):
        worker.initialize_from_config()
    with pytest.raises(RuntimeError, match="no capture_model today"):  # the worker's own error
        worker.compile_or_warm_up_model()
    ((_, figures),) = lines(caplog)
    assert figures["kv_cache"] == POOL and figures["peak_activation"] == PEAK
    assert figures["max_num_seqs"] is figures["total_memory"] is figures["model_weights"] is None
    assert "no max_num_seqs today" in warnings(caplog)[0]


def test_a_worker_that_takes_no_attributes_starts(vllm, caplog):
    class Slotted:
        __slots__ = ("config",)

        def __init__(self, config):
            self.config = config

        def determine_available_memory(self):
            return POOL

    vllm("9.9", **{V1: {"WorkerBase": Slotted}})
    plugin.register()
    assert Slotted("given").determine_available_memory() == POOL
    assert "__init__" in warnings(caplog)[0] and not lines(caplog)


def test_what_cannot_be_written_as_json_is_no_error(vllm, caplog):
    base = base_of(V1)
    vllm(
        "0.32.0",
        **{
            V1: {"WorkerBase": base},
            "gpu_worker": {
                "memory_profiling": profiling_of(
                    RESULTS["0.32.0"] | {"transient_peak_headroom": object()}
                )
            },
        },
    )
    plugin.register()
    assert v1_worker(base)().determine_available_memory() == POOL
    assert "determine_available_memory" in warnings(caplog)[0]


def test_the_workers_own_errors_pass_and_nothing_stays_wrapped(vllm, caplog):
    calls = []

    def failing(self):
        calls.append(self)
        raise MemoryError("out of memory while profiling")

    base = base_of(V1)
    profiling = profiling_of({})
    worker = v1_worker(base)
    worker.determine_available_memory = worker.compile_or_warm_up_model = failing
    vllm("0.32.0", **{V1: {"WorkerBase": base}, "gpu_worker": {"memory_profiling": profiling}})
    plugin.register()
    worker = worker()
    for method in (worker.determine_available_memory, worker.compile_or_warm_up_model):
        with pytest.raises(MemoryError, match="out of memory while profiling"):
            method()
    assert calls == [worker, worker] and not lines(caplog) and not warnings(caplog)
    assert sys.modules["gpu_worker"].memory_profiling is profiling


def test_tokens_of_several_groups_are_left_to_vllm(vllm, caplog):
    worker = registered_v1(vllm)
    worker.determine_available_memory()
    worker.initialize_from_config(pool_of(16, 16))
    worker.compile_or_warm_up_model()
    assert lines(caplog)[1][1]["kv_cache_tokens"] is None


# ---------------------------------------------------------------- how vLLM finds and loads it


def test_vllm_finds_it_by_its_entry_point():
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "vllm.general_plugins"
    ]
    assert group == {"vllm_tuning": f"{plugin.__name__}:{plugin.register.__name__}"}


def test_it_needs_nothing_but_the_standard_library():
    code = (
        "import sys, vllm_tuning.plugin; print({name.partition('.')[0] for name in sys.modules}"
        " - set(sys.stdlib_module_names) - {'vllm_tuning'})"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.stdout.strip() in ("set()", "{'__main__'}"), run.stderr


# ---------------------------------------------------------------- read


def test_read_takes_the_bytes_and_not_the_rounded_figures(tmp_path):
    figures = EXPECTED | {
        "peak_activation": PEAK + 12345,
        "kv_cache": POOL - 12345,
        "cuda_graph": 700 * MIB + 1,
        "vllm_version": "0.27.0",
    }
    early = figures | dict.fromkeys(("cuda_graph", "num_gpu_blocks", "kv_cache_tokens"))
    log = tmp_path / "one.log"
    log.write_text(
        "(Worker pid=7) INFO 06-01 10:00:00 [gpu_model_runner.py:1] "
        "Model loading took 15.0 GiB and 2 seconds\n"
        f"(Worker pid=7) INFO 06-01 10:00:09 [plugin.py:1] {plugin.PROFILED} {json.dumps(early)}\n"
        "(Worker pid=7) INFO 06-01 10:00:09 [gpu_worker.py:1] Available KV cache memory: 22.0 GiB\n"
        "(EngineCore pid=6) INFO 06-01 10:00:10 [kv_cache_utils.py:1] "
        "GPU KV cache size: 180,224 tokens\n"
        "(Worker pid=7) INFO 06-01 10:09:00 [a.py:1] "
        "Graph capturing finished in 9 secs, took 0.68 GiB\n"
        f"(Worker pid=7) INFO 06-01 10:09:00 [plugin.py:1] {plugin.READY} {json.dumps(figures)}\n"
    )
    (launch,) = read_log(log)
    for name in (
        "total_memory",
        "model_weights",
        "non_torch",
        "peak_activation",
        "cuda_graph",
        "kv_cache",
        "kv_cache_tokens",
        "num_gpu_blocks",
        "block_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "gpu_memory_utilization",
        "vllm_version",
    ):
        assert getattr(launch, name) == figures[name], name
    assert launch.warnings == ("exact_figures",) and launch.status == "ok"


def test_of_several_ranks_the_tightest_is_read(tmp_path):
    ranks = [
        EXPECTED
        | {
            "rank": rank,
            "vllm_version": "0.27.0",
            "peak_activation": PEAK + rank * 1000,
            "kv_cache": POOL - rank * 1000,
        }
        for rank in (0, 1)
    ]
    log = tmp_path / "tp2.log"
    log.write_text(
        "".join(
            f"(Worker_TP{figures['rank']} pid={70 + figures['rank']}) INFO 06-01 10:00:0{second} "
            f"[plugin.py:1] {marker} {json.dumps(figures)}\n"
            for second, marker in enumerate((plugin.PROFILED, plugin.READY))
            for figures in ranks
        )
    )
    (launch,) = read_log(log)
    assert (launch.kv_cache, launch.peak_activation) == (POOL - 1000, PEAK + 1000)
    assert launch.warnings == ("exact_figures",)


@pytest.mark.parametrize(
    "figures",
    [
        '{"kv_cache": 23622320128, "max_num_',
        "{kv_cache}",
        '{"kv_cache": [1]}',
        '{"kv_cache": "many", "max_num_seqs": -4, "block_size": true}',
        '{"kv_cache": NaN, "max_num_seqs": 2.5, "vllm_version": "\\u001b[2J"}',
    ],
)
def test_a_damaged_line_gives_no_figure(tmp_path, figures):
    log = tmp_path / "cut.log"
    log.write_text(
        "(Worker pid=7) INFO 06-01 10:00:00 [a.py:1] Model loading took 15.0 GiB and 2 seconds\n"
        f"(Worker pid=7) INFO 06-01 10:00:09 [plugin.py:1] {plugin.PROFILED} {figures}"
    )
    (launch,) = read_log(log)
    assert launch.model_weights == WEIGHTS
    assert (
        launch.kv_cache is launch.max_num_seqs is launch.block_size is launch.vllm_version is None
    )


# ---------------------------------------------------------------- the launches made with it


def test_four_launches_foretell_the_fifth_up_to_the_allocators_granules():
    folder = ROOT / "data/tiny-llama-simulated"
    model, (fifth,) = model_of([folder]), read_launches(folder / "verify.csv")
    pool = min(pool.n for pool in model.pools(fifth.max_num_seqs, fifth.max_num_batched_tokens))
    by_hand = 701085696 + 24974848 - max(10240 * 11491, 193068 * 579 + 512 * 11491)
    assert pool == pytest.approx(by_hand, abs=1)
    assert 0 <= by_hand - fifth.kv_cache <= 16 * 512  # tensors alive at the peak, each rounded up


@pytest.mark.parametrize(
    "log", sorted((ROOT / "data/tiny-llama-simulated/logs").glob("*.log")), ids=lambda log: log.stem
)
def test_the_carried_logs_are_the_table(log):
    table = [
        launch
        for name in ("launches.csv", "verify.csv")
        for launch in read_launches(log.parent.parent / name)
    ]
    (launch,) = read_log(log)
    (same,) = (row for row in table if row.source == log.stem)
    assert replace(launch, source=same.source, model=same.model) == same
