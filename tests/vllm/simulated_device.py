"""A plugin of vLLM 0.32 (CPU build) for the tests: a device that exists in numbers only.

The CPU worker runs the accounting that vLLM has for GPUs (request_memory, memory_profiling,
determine_available_memory, the summary after warm-up). The device's size and what is taken of it
outside torch are invented; what torch holds is counted tensor by tensor while vLLM profiles the
model and the sampler. Active where SIMULATED_DEVICE_BYTES is set.
"""

import os
import time
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CONTEXT = 200 * 2**20  # taken on the device before the server starts
GROWTH = 60 * 2**20  # taken outside torch while profiling
GRANULE = 512  # bytes, as CUDA's caching allocator rounds


def register():
    if "SIMULATED_DEVICE_BYTES" in os.environ and not hasattr(register, "device"):
        register.device = Device(int(os.environ["SIMULATED_DEVICE_BYTES"]))
        _use(register.device)


class Device:
    """What is held of the device, in bytes: allocated now and at most, and outside torch."""

    def __init__(self, total):
        self.total, self.outside, self.allocated, self.peak = total, CONTEXT, 0, 0

    def take(self, size):
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def give_back(self, size):
        self.allocated -= size

    @property
    def free(self):
        return self.total - self.outside - self.allocated

    def answer_for(self, accelerator):
        """Let torch.accelerator tell this device's memory."""
        accelerator.memory_stats = lambda device=None: {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
        }
        accelerator.memory_reserved = lambda device=None: self.allocated
        accelerator.memory_allocated = lambda device=None: self.allocated
        accelerator.get_memory_info = lambda device=None: (self.free, self.total)
        accelerator.reset_peak_memory_stats = lambda device=None: setattr(
            self, "peak", self.allocated
        )
        accelerator.empty_cache = accelerator.synchronize = lambda *args: None


class Counter(TorchDispatchMode):
    """Counts every storage that an operation makes, from then until it is freed."""

    def __init__(self, device):
        super().__init__()
        self.device, self.held = device, set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = {_storage(tensor)[0] for tensor in _tensors((args, kwargs))}
        made = operation(*args, **(kwargs or {}))
        for tensor in _tensors(made):
            key, storage = _storage(tensor)
            if key not in given and key not in self.held:
                self.held.add(key)
                self.device.take(_granules(storage))
                weakref.finalize(storage, self.free, key, _granules(storage))
        return made

    def free(self, key, size):
        self.held.discard(key)
        self.device.give_back(size)


def _tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor):
    storage = tensor.untyped_storage()
    return storage._cdata, storage


def _granules(storage):
    return -(-storage.nbytes() // GRANULE) * GRANULE


def _use(device):
    """Put the device under vLLM's CPU worker."""
    from vllm.logger import init_logger
    from vllm.utils.mem_utils import MemorySnapshot, format_gib
    from vllm.v1.worker import cpu_worker, gpu_worker
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.utils import request_memory

    worker, gpu = cpu_worker.CPUWorker, gpu_worker.Worker
    init_device, load_model, profile_run = (
        worker.init_device,
        worker.load_model,
        CPUModelRunner.profile_run,
    )
    node_info = cpu_worker.get_memory_node_info

    def of_the_device(*args):
        info = node_info(*args)
        info.total_memory = info.available_memory = device.total
        return info

    def with_a_snapshot(self):
        init_device(self)
        device.answer_for(torch.accelerator)
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = request_memory(self.init_snapshot, self.cache_config)

    def with_weights(self, **kwargs):
        start = time.perf_counter()
        load_model(self, **kwargs)
        model = self.model_runner.model
        weights = dict(map(_storage, [*model.parameters(), *model.buffers()]))
        self.model_runner.model_memory_usage = sum(map(_granules, weights.values()))
        device.take(self.model_runner.model_memory_usage)
        init_logger("vllm.v1.worker.gpu_model_runner").info(
            "Model loading took %s GiB memory and %.6f seconds",
            format_gib(self.model_runner.model_memory_usage),
            time.perf_counter() - start,
        )

    def counted(self, *args, **kwargs):
        with Counter(device):
            profile_run(self, *args, **kwargs)
        device.outside += GROWTH

    cpu_worker.get_memory_node_info = of_the_device
    CPUModelRunner.profile_run = counted
    worker.init_device, worker.load_model = with_a_snapshot, with_weights
    worker.determine_available_memory = gpu.determine_available_memory
    worker.compile_or_warm_up_model = gpu.compile_or_warm_up_model
    gpu_worker.kernel_warmup = gpu_worker.enable_gpu_sync_check = lambda *args: None
