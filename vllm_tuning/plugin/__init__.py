"""A plugin of vLLM that logs its memory figures to the byte; inactive unless VLLM_TUNING_FIGURES=1.

vLLM loads it in every process by the entry point group ``vllm.general_plugins``. Each worker then
writes the figures of the method's table as JSON, in one line after the profile run and, with the
blocks and the CUDA graphs, in one more when it is ready:

    vllm_tuning figures, profiled: {"rank": 0, "total_memory": 85017755648, ...}
    vllm_tuning figures, ready: {"rank": 0, "total_memory": 85017755648, ...}

Memory in bytes, lengths in tokens, under the names of launches.csv. No file of vLLM is edited: the
methods of each worker of its V1 engine (from 0.8 on) are wrapped. Nothing here may stop a server:
what cannot be read is null, and one warning says why. It imports the standard library, and of vLLM
what its workers import.
"""

import functools
import importlib
import json
import os
import sys
from contextlib import contextmanager, suppress

SWITCH = "VLLM_TUNING_FIGURES"
PROFILED, READY = "vllm_tuning figures, profiled:", "vllm_tuning figures, ready:"


def register() -> None:
    """What vLLM calls, once or more in a process: every worker made from now on is watched."""
    if os.environ.get(SWITCH) != "1":
        return
    try:
        worker = importlib.import_module("vllm.v1.worker.worker_base").WorkerBase
    except Exception:  # of another release, or without its device
        return
    init = vars(worker).get("__init__")
    if init is None or getattr(init, "is_watched", False):
        return

    @functools.wraps(init)
    def watched(worker, *args, **kwargs):
        _safely("__init__", Figures, worker)
        return init(worker, *args, **kwargs)

    vars(watched)["is_watched"] = True
    worker.__init__ = watched


def _log():
    logger = importlib.import_module("vllm.logger")
    return logger.init_logger("vllm.tuning")  # below "vllm", whose handler prints it


def _safely(name: str, step, *args) -> None:
    try:
        step(*args)
    except StopIteration:
        pass
    except Exception as error:
        with suppress(Exception):
            _log().warning("vllm_tuning: around %s: %r", name, error)


class Figures:
    """What one worker measures, read while its own methods run; FIGURES names the figures."""

    def __init__(self, worker):
        self.worker = worker
        self.answer = self.result = self.peak = self.pool = self.graphs = None
        for name, around in (
            ("determine_available_memory", self._around_profile),
            ("initialize_from_config", self._around_pool),
            ("compile_or_warm_up_model", self._around_warm_up),
        ):
            if hasattr(type(worker), name):
                setattr(worker, name, self._wrapped(name, around))

    def _wrapped(self, name, around):
        """The worker's method: called once, with its own answer and errors, inside ``around``."""

        def method(*args, **kwargs):
            steps = around(*args, *kwargs.values())
            _safely(name, next, steps)
            try:
                answer = getattr(type(self.worker), name)(self.worker, *args, **kwargs)
            except BaseException:
                _safely(name, steps.close)
                raise
            _safely(name, steps.send, answer)
            return answer

        return method

    def _around_profile(self, *_):
        with _profiling_results(type(self.worker)) as results:
            before = None if results is not None else _reset_peak()
            self.answer = yield
        if results:
            self.result = results[-1]
        elif before is not None:
            self.peak = _cuda().max_memory_allocated() - before
        self._write(PROFILED)

    def _around_pool(self, *given):
        self.pool, *_ = given
        yield

    def _around_warm_up(self, *_):
        runner, self.graphs = self.worker.model_runner, 0  # 0 where none are captured
        capture = runner.capture_model

        def capturing(*args, **kwargs):
            before = _free_memory()
            taken = capture(*args, **kwargs)  # bytes; None to 0.10
            after = _free_memory()
            self.graphs = before - after if taken is None and None not in (before, after) else taken
            return taken

        runner.capture_model = capturing
        try:
            yield
        finally:
            runner.capture_model = capture
        self._write(READY)

    def _write(self, marker: str) -> None:
        figures, unknown = {"rank": getattr(self.worker, "rank", None)}, []
        for name, read in FIGURES.items():
            figures[name] = None
            try:
                figures[name] = read(self)
            except Exception as error:
                unknown.append(f"{name} ({error or type(error).__name__})")
        _log().info("%s %s", marker, json.dumps(figures))
        if unknown and marker == PROFILED:
            _log().warning("vllm_tuning: not known here: %s", "; ".join(unknown))

    def total_memory(self):
        with suppress(LookupError):
            return _of(getattr(self.worker, "init_snapshot", None), "total_memory")
        return _cuda().mem_get_info()[1]

    def requested_memory(self):
        with suppress(LookupError):
            return int(_of(self.worker, "requested_memory", "requested_cpu_memory"))
        return int(self.total_memory() * self.worker.cache_config.gpu_memory_utilization)

    def model_weights(self):
        with suppress(LookupError):
            return int(_of(self.result, "weights_memory"))
        return int(_of(self.worker.model_runner, "model_memory_usage"))

    def peak_activation(self):
        """P as the pool was charged with it, without the graphs."""
        if self.peak is not None:
            return self.peak
        return _of(self.result, "transient_peak_headroom", "torch_peak_increase")

    def non_torch(self):
        """N; where the release has no figure of it, what the balance leaves."""
        with suppress(LookupError):
            return _of(self.result, "total_consumed") - self.model_weights()
        with suppress(LookupError):
            return _of(self.result, "non_torch_increase")
        used = self.model_weights() + self.peak_activation()
        return self.requested_memory() - used - int(self.answer)

    def kv_cache_tokens(self):
        """Tokens of the pool; None where several groups of layers share its blocks."""
        if not self.pool or len(self.pool.kv_cache_groups) != 1:
            return None
        size = self.pool.kv_cache_groups[0].kv_cache_spec.block_size
        ranks = getattr(self.worker.parallel_config, "decode_context_parallel_size", 1)
        return self.pool.num_blocks * size * ranks


# Each gives the figure, or raises with the reason why it is not known.
FIGURES = {
    "total_memory": Figures.total_memory,
    "gpu_memory_utilization": lambda it: it.worker.cache_config.gpu_memory_utilization,
    "requested_memory": Figures.requested_memory,
    "model_weights": Figures.model_weights,
    "non_torch": Figures.non_torch,
    "peak_activation": Figures.peak_activation,
    "cuda_graph_estimated": lambda it: getattr(it.worker, "cudagraph_memory_estimate", None),
    "cuda_graph": lambda it: it.graphs,
    "kv_cache": lambda it: int(it.answer),
    "kv_cache_tokens": Figures.kv_cache_tokens,
    "num_gpu_blocks": lambda it: it.pool and it.pool.num_blocks,
    "block_size": lambda it: it.worker.cache_config.block_size,
    "max_num_seqs": lambda it: it.worker.scheduler_config.max_num_seqs,
    "max_num_batched_tokens": lambda it: it.worker.scheduler_config.max_num_batched_tokens,
    "max_model_len": lambda it: it.worker.model_config.max_model_len,
    "vllm_version": lambda it: sys.modules["vllm"].__version__,
}


def _of(thing, *names: str):
    """The first attribute that is there and not None; LookupError without one."""
    for name in names:
        if (value := getattr(thing, name, None)) is not None:
            return value
    if thing is None:
        raise LookupError("this launch was not profiled by a worker of a GPU")
    raise LookupError(f"{type(thing).__name__} has no {' or '.join(names)}")


@contextmanager
def _profiling_results(worker: type):
    """Collects what vLLM's memory_profiling gives the worker; None where it does not use it."""
    named = (sys.modules.get(base.__module__) for base in worker.__mro__)
    profilers = [
        (module, profiling)
        for module in named
        if module and (profiling := vars(module).get("memory_profiling"))
    ]
    results = []

    def remembering(profiling):
        @contextmanager
        def remembered(*args, **kwargs):
            with profiling(*args, **kwargs) as result:
                results.append(result)
                yield result

        return remembered

    for module, profiling in profilers:
        vars(module)["memory_profiling"] = remembering(profiling)
    try:
        yield results if profilers else None
    finally:
        for module, profiling in profilers:
            vars(module)["memory_profiling"] = profiling


def _cuda():
    """torch.cuda, where a device is there to be asked."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_available():
        raise LookupError("there is no CUDA device to ask")
    return torch.cuda


def _reset_peak() -> int | None:
    """Bytes allocated now; the peak is counted from here on."""
    with suppress(Exception):
        _cuda().reset_peak_memory_stats()
        return _cuda().memory_allocated()
    return None


def _free_memory() -> int | None:
    with suppress(Exception):
        return _cuda().mem_get_info()[0]
    return None
