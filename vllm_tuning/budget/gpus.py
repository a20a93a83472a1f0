"""GPUs by name: the memory that vLLM finds on them, and the rates of the makers' data sheets."""

from dataclasses import dataclass

from ..units import GIB, InputError

_LEFT_OUT = ("NVIDIA", "AMD", "GEFORCE", "TESLA", "SXM", "SXM4", "SXM5")  # of a name


@dataclass(frozen=True)
class Gpu:
    """What is known of a GPU, None where nothing is.

    total_memory: bytes as a log printed them, less than the name says and not the same each time.
    memory_bandwidth in bytes/s, tensor_rate in bf16 operations/s (a multiplication and an addition
    are two; without sparsity): peaks, of which a real kernel reaches less.
    """

    total_memory: float | None = None
    memory_bandwidth: float | None = None
    tensor_rate: float | None = None


GPUS = {  # memory: the log that printed it; rates: nvidia.com, amd.com, halved if "with sparsity"
    "A10": Gpu(None, 600e9, 125e12),
    "A100-40GB": Gpu(39.49 * GIB),  # vLLM 0.9.2, 35.54 GiB requested at 0.9; another printed 39.50
    "A100-80GB": Gpu(79.15 * GIB, 2039e9, 312e12),  # vLLM 0.8.2; SXM
    "A30": Gpu(23.5 * GIB, 933e9, 165e12),  # vLLM 0.11
    "B300": Gpu(276.62 * GIB),  # vLLM 0.27
    "GB10": Gpu(121.63 * GIB),  # unified with the host's
    "H100": Gpu(79.19 * GIB, 3350e9, 989.4e12),  # vLLM 0.19, also 79.18 (tests/data/kv-cache); SXM
    "H100-NVL": Gpu(93.09 * GIB),  # vLLM 0.10 (tests/data/kv-cache)
    "H100-PCIE": Gpu(None, 2000e9, 756e12),
    "H200": Gpu(139.8 * GIB, 4800e9, 989.4e12),  # vLLM 0.28; SXM
    "L4": Gpu(None, 300e9, 121e12),
    "L40S": Gpu(44.31 * GIB, 864e9, 362.05e12),  # vLLM 0.7
    "MI300X": Gpu(191.98 * GIB, 5300e9, 1307.4e12),  # data/llama-3.1-70b-mi300x
    "RTX-3090": Gpu(23.58 * GIB),  # data/llama-3.1-8b-rtx3090; also 23.53 to 23.56
    "T4": Gpu(14.56 * GIB),  # vLLM 0.7
    "V100-32GB": Gpu(31.74 * GIB),  # vLLM 0.8.5
}


def gpu_named(name: str, figure: str) -> str:
    """The name in GPUS, of those whose ``figure`` is known; by the words that only it begins with.

    Raises InputError, which lists those.

    >>> gpu_named("Nvidia H100 NVL", "total_memory"), gpu_named("h100 80GB", "total_memory")
    ('H100-NVL', 'H100')
    >>> gpu_named("a100", "tensor_rate")
    'A100-80GB'
    """
    known = [each for each in GPUS if getattr(GPUS[each], figure) is not None]
    words = [
        word
        for word in name.upper().replace("-", " ").replace("_", " ").split()
        if word not in _LEFT_OUT
    ]
    for wanted in (words, words[:-1] if words[-1:] == ["80GB"] else words):
        for found in (
            [each for each in known if each.split("-") == wanted],
            [each for each in known if each.split("-")[: len(wanted)] == wanted],
        ):
            if len(found) == 1 and wanted:
                return found[0]
    raise InputError(f"gpu {name[:80]!r}: expected one of {', '.join(known)}")
