"""What a launch will take of a GPU, from the model's shapes alone, each with its spread.

Factors and spreads were fitted on the public launches with odd log numbers in ``tests/data/
kv-cache/budgets.csv`` (H100, H100 NVL, A100; vLLM 0.9 to 0.19; 1 to 4 GPUs), and judged once on the
even ones; ``tests/budget/test_estimates.py`` does both. 1.645 spreads of a factor hold nine in ten
of what the launches of the fit say. On other cards and releases the spreads are assumed, wider.
"""

import math
from dataclasses import dataclass

from ..known import Slopes
from ..kv_cache import ModelConfig
from ..law import hidden_state_bytes, peak_activation, penalty_state_bytes
from ..releases import (
    charges_graph_estimate,
    counts_consumed_memory,
    has_larger_context,
    has_other_samplers,
    keeps_expert_workspace,
    runs_second_runner,
    samples_by_triton,
    samples_twice,
)
from ..units import GIB, NORMAL_95
from .quantized import quantization, weight_bytes

K1_PER_WIDTH = 6.64  # bytes per token, per element of the widest MLP + the hidden state
K2_SORT = 40.1  # bytes per request and vocabulary entry, to 0.16, from 128 requests on
K2_SORT_FEW = 52.5  # the same below 128 requests
K2_TRITON = 14.94  # from 0.17 on
PEAK_SPREAD = 0.058  # of the peak
NON_TORCH = {  # GiB, spread: several GPUs (NCCL), one, and one before 0.17
    "several": (2.12, 0.030),
    "one": (0.26, 0.122),
    "old": (0.07, 0.012),
}
FITTED_ON = ("H100", "A100")  # cards
REST = (0.037, 0.021)  # GiB, spread: rotary tables, norms, padding that the matrices leave out
TOWER = (1.75, 0.70)  # GiB, spread: a vision tower and its projection, of two models
# Not of the fit, whose cards are few and whose launches end with 0.19: assumed
K2_LATER = 14.0  # bytes per request and vocabulary entry under runner V1 from 0.20 on: an A10G
K2_SECOND = (2.0, 9.11)  # the same under runner V2, and from 0.33 on; read in the sources
COMPILER = 1.1  # GiB that a first start can take in place of the peak
NEW_PEAK_SPREAD = 0.20  # of the peak from 0.20 on and where the release is unknown: other samplers
OTHER_PEAK_SPREAD = 0.25  # of the peak on other cards
OTHER_NON_TORCH = {  # GiB, spread: 0.01 to 6.07 GiB in logs of other cards
    "several": (2.1, 1.0),
    "eight": (4.6, 1.0),
    "several, old": (0.25, 0.3),
    "one": (0.3, 0.2),
    "one, consumed": (0.9, 0.5),  # all that stays allocated
    "old": (0.1, 0.15),
    "MI": (6.0, 1.0),
    "GB": (2.5, 1.5),  # shares the host's memory
}
QUANTIZED_SPREAD = 0.05  # of quantized weights: which layers are left out, and how they are packed
GRAPHS = (0.6, 0.4)  # GiB set aside for CUDA graphs from 0.20.2 on: 0.1 to 1.4 in ten logs


@dataclass(frozen=True)
class Part:
    """One part of the budget, bytes, with the 90 % band; source: measured, given or estimated."""

    name: str
    value: float
    source: str = "estimated"
    spread: float = 0.0

    @property
    def low(self) -> float:
        low = self.value - NORMAL_95 * self.spread
        return low if self.name == "pool" else max(0.0, low)

    @property
    def high(self) -> float:
        return self.value + NORMAL_95 * self.spread

    def to_dict(self) -> dict:
        return {
            "gib": self.value / GIB,
            "source": self.source,
            "low": self.low / GIB,
            "high": self.high / GIB,
        }


@dataclass(frozen=True, kw_only=True)
class Server:
    """How a server is started; bytes and tokens. ``weights``: on one GPU, None to count them.

    ``gpu``: its name in GPUS; ``second_runner``: whether it runs model runner V2.
    """

    total_memory: float
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    vllm_version: str | None = None
    weights: float | None = None
    gpu: str | None = None
    second_runner: bool = False

    @property
    def on_fitted_card(self) -> bool:
        return (self.gpu or "").startswith(FITTED_ON)

    @property
    def fitted(self) -> bool:
        """Whether factors were fitted on such a card and release."""
        return self.on_fitted_card and has_other_samplers(self.vllm_version) is False

    @property
    def requested(self) -> float:
        """TM*U: what vLLM allows itself."""
        return self.total_memory * self.gpu_memory_utilization


def weights(config: ModelConfig, server: Server) -> Part:
    """M: parameters x bytes, and a vision tower where there is one that the figures leave out."""
    matrices = weight_bytes(config, server.tensor_parallel_size, server.pipeline_parallel_size)
    beside = [REST, TOWER] if config.multimodal else [REST]
    unsure = QUANTIZED_SPREAD * matrices / GIB if quantization(config) else 0.0
    return Part(
        "weights",
        matrices + GIB * sum(size for size, _ in beside),
        spread=GIB * math.hypot(unsure, *(spread for _, spread in beside)),
    )


def non_torch(config: ModelConfig, server: Server) -> Part:
    """N: CUDA context, NCCL, and what runner V2 keeps of the requests."""
    old = has_larger_context(server.vllm_version) is False
    gpus = server.tensor_parallel_size * server.pipeline_parallel_size
    if server.on_fitted_card and gpus <= 4:
        kind = "several" if server.tensor_parallel_size > 1 else "old" if old else "one"
        size, spread = NON_TORCH[kind]
    else:
        kind = "old" if old else "one"
        if gpus > 1:
            kind = "several, old" if old else "several" if gpus <= 4 else "eight"
        elif counts_consumed_memory(server.vllm_version):
            kind = "one, consumed"
        card = (server.gpu or "")[:2]
        size, spread = OTHER_NON_TORCH[card if card in ("MI", "GB") else kind]
    state = 0
    if server.second_runner:
        state = penalty_state_bytes(config.count("vocab_size")) * server.max_num_seqs
    return Part("non_torch", size * GIB + state, spread=spread * GIB)


def profile_slopes(config: ModelConfig, server: Server) -> tuple[float, float, float]:
    """K1, K2 and k of the shapes, bytes per token, per request and per token. What the experts keep
    stays while the sampler runs, so it is in K1 and in k."""
    hidden, vocabulary = config.count("hidden_size"), config.count("vocab_size")
    kept = expert_workspace(config, server) / server.max_num_batched_tokens
    return (
        K1_PER_WIDTH * config.element_bytes / 2 * widest(config) + kept,
        sampler_bytes(server) * vocabulary,
        hidden_state_bytes(hidden, config.element_bytes) + kept,
    )


def expected_slopes(
    config: ModelConfig, vllm_version: str | None, seqs: int = 1024, runner: str | None = None
) -> Slopes:
    """K1, K2, K2 of few requests and k by the shapes; K2 for a launch of so many requests."""

    def at(requests: int) -> tuple[float, float, float]:
        server = Server(
            total_memory=0,
            gpu_memory_utilization=1,
            max_num_seqs=requests,
            max_num_batched_tokens=1,
            vllm_version=vllm_version,
            second_runner=second_runner(config, vllm_version, runner),
        )
        return profile_slopes(config, server)

    k1, k2, k = at(seqs)
    return Slopes(k1, k2, at(1)[1], k)


def activation(config: ModelConfig, server: Server) -> Part:
    """P(B, C) of ``branches.peak_activation`` without intercepts, by ``profile_slopes``."""
    k1, k2, k = profile_slopes(config, server)
    peak = float(
        peak_activation(server.max_num_batched_tokens, server.max_num_seqs, k1, 0.0, k2, 0.0, k)
    )
    if server.on_fitted_card:
        spread = PEAK_SPREAD if server.fitted else NEW_PEAK_SPREAD
        return Part("activation", peak, spread=spread * peak)
    spread = OTHER_PEAK_SPREAD * peak
    if has_other_samplers(server.vllm_version) is not False:
        spread = max(spread, (COMPILER * GIB - peak) / NORMAL_95)
    return Part("activation", peak, spread=spread)


def second_runner(config: ModelConfig, vllm_version: str | None, runner: str | None = None) -> bool:
    """Whether the server runs model runner V2: as its log says, else by the release's default."""
    if runner:
        return runner == "V2"
    plain = not chosen_experts(config) and "state" not in config.layer_kinds()
    return bool(runs_second_runner(vllm_version, config.family, plain))


def widest(config: ModelConfig) -> int:
    """Elements of a token in the widest layer: the MLP's (0 with experts) and the hidden state."""
    hidden = config.count("hidden_size")
    if chosen_experts(config):
        return hidden
    return hidden + (config.first("intermediate_size", "ffn_dim") or 4 * hidden)


def sampler_bytes(server: Server) -> float:
    """Bytes of the sampler for each request and entry of the vocabulary."""
    if server.second_runner:
        return K2_SECOND[samples_twice(server.vllm_version) is True]
    if samples_by_triton(server.vllm_version) is not False:
        return K2_LATER if has_other_samplers(server.vllm_version) else K2_TRITON
    return K2_SORT if server.max_num_seqs >= 128 else K2_SORT_FEW


def chosen_experts(config: ModelConfig) -> int:
    """Experts that each token passes; 0 where there are none."""
    return config.first("num_experts_per_tok", "top_k_experts")


def expert_workspace(config: ModelConfig, server: Server) -> float:
    """Bytes that the fused experts keep for B tokens: the larger of what goes into them and what
    comes out of the first projection, and what goes into the second. From 0.17 on; those of
    gpt-oss, in MXFP4, keep none."""
    chosen = chosen_experts(config)
    kept = keeps_expert_workspace(server.vllm_version) is not False
    if not chosen or not kept or config.family == "gpt_oss":
        return 0.0
    inner = config.optional("moe_intermediate_size") or config.count("intermediate_size")
    inner //= server.tensor_parallel_size
    widest = max(2 * inner, config.count("hidden_size"))
    return config.element_bytes * chosen * (widest + inner) * server.max_num_batched_tokens


def cuda_graphs(server: Server) -> Part:
    """G where the release charges it to the pool: from 0.20.2 on, and where it is unknown."""
    charged = charges_graph_estimate(server.vllm_version) is not False
    size, spread = GRAPHS if charged else (0.0, 0.0)
    return Part("cuda_graphs", size * GIB, spread=spread * GIB)
