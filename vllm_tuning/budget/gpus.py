"""GPUs by name: the memory that vLLM finds on them, and the rates of the makers' data sheets."""

import re
from dataclasses import dataclass

from ..units import GIB, InputError

_LEFT_OUT = re.compile(  # words of a name that do not tell one card from another
    "NVIDIA|AMD|GEFORCE|TESLA|INSTINCT|GPU|DGX|SPARK|BLACKWELL|GENERATION|SERVER|WORKSTATION"
    "|EDITION|MAX|Q|AC|SXM[2-6]?|HBM[23]E?"
)
_SIZE = re.compile(r"(\d{1,3})GB")  # as the maker counts


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
    "A10G": Gpu(22.3 * GIB, 600e9, 70e12),  # vLLM 0.22; a line prints 22.30
    "A100-40GB": Gpu(39.49 * GIB),  # vLLM 0.9.2, 35.54 GiB requested at 0.9; another printed 39.50
    "A100-80GB": Gpu(79.15 * GIB, 2039e9, 312e12),  # vLLM 0.8.2; SXM
    "A30": Gpu(23.5 * GIB, 933e9, 165e12),  # vLLM 0.11
    "B300": Gpu(276.62 * GIB),  # vLLM 0.27
    "GB10": Gpu(121.69 * GIB),  # unified with the host's; also 121.63
    "H100": Gpu(79.19 * GIB, 3350e9, 989.4e12),  # vLLM 0.19, also 79.18 (tests/data/kv-cache); SXM
    "H100-NVL": Gpu(93.09 * GIB),  # vLLM 0.10 (tests/data/kv-cache)
    "H100-PCIE": Gpu(None, 2000e9, 756e12),
    "H200": Gpu(139.8 * GIB, 4800e9, 989.4e12),  # vLLM 0.28; SXM
    "L4": Gpu(22.0 * GIB, 300e9, 121e12),
    "L40S": Gpu(44.4 * GIB, 864e9, 362.05e12),  # 0.7 printed 44.31
    "MI300X": Gpu(191.98 * GIB, 5300e9, 1307.4e12),  # data/llama-3.1-70b-mi300x
    "RTX-3090": Gpu(23.58 * GIB),  # data/llama-3.1-8b-rtx3090; also 23.53 to 23.56
    "RTX-4090": Gpu(23.5 * GIB),
    "RTX-5090": Gpu(31.4 * GIB),
    "RTX-PRO-6000": Gpu(94.97 * GIB),
    "T4": Gpu(14.56 * GIB),  # vLLM 0.7
    "V100-32GB": Gpu(31.74 * GIB),  # vLLM 0.8.5
}


def gpu_named(name: str, figure: str) -> str:
    """The name in GPUS, of those whose ``figure`` is known; as people and nvidia-smi write it.

    The words that only it begins with will do. A size in GB must be that of the card. Raises
    InputError, which lists those.

    >>> gpu_named("NVIDIA H100 80GB HBM3", "total_memory"), gpu_named("a100", "tensor_rate")
    ('H100', 'A100-80GB')
    >>> gpu_named("NVIDIA A100-SXM4-40GB", "total_memory")
    'A100-40GB'
    """
    known = [each for each in GPUS if getattr(GPUS[each], figure) is not None]
    words = [
        word for word in re.split(r"[\s_-]+", name[:80].upper().replace("RTX", "RTX ")) if word
    ]
    sizes = [int(found[1]) for word in words if (found := _SIZE.fullmatch(word))]
    words = [w for w in words if not _LEFT_OUT.fullmatch(w) and not _SIZE.fullmatch(w)]
    for wanted in (words, [word for word in words if word != "PCIE"]):
        fitting = [
            each
            for each in known
            if _words(each)[: len(wanted)] == wanted and all(_about(each, size) for size in sizes)
        ]
        exact = [each for each in fitting if _words(each) == wanted]
        for names in (exact, fitting):
            if len(names) == 1 and wanted:
                return names[0]
    raise InputError(f"gpu {name[:80]!r}: expected one of {', '.join(known)}")


def gpu_with(total_memory: float) -> str | None:
    """The card in GPUS whose memory is within 0.3 % of so many bytes; None where none is."""
    off = {
        name: abs(gpu.total_memory / total_memory - 1)
        for name, gpu in GPUS.items()
        if gpu.total_memory
    }
    nearest = min(off, key=off.__getitem__)
    return nearest if off[nearest] < 0.003 else None


def _words(name: str) -> list[str]:
    return [word for word in name.split("-") if not _SIZE.fullmatch(word)]


def _about(name: str, size: int) -> bool:
    """Whether a card of so many GB can be the one of that name."""
    given = [int(found[1]) for word in name.split("-") if (found := _SIZE.fullmatch(word))]
    total = GPUS[name].total_memory
    return size in given if given else total is None or 0.85 < total / GIB / size < 1.02
