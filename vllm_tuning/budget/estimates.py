"""What a launch will take of a GPU, from the model's shapes alone, each with its spread.

The factors were fitted on the public launches with odd log numbers in ``tests/data/kv-cache/
budgets.csv`` (H100, H100 NVL, A100; vLLM 0.9 to 0.19; 1 to 4 GPUs) and are judged on the even ones.
Spreads stand for one standard deviation: 1.645 of them hold nine in ten of the former.
"""

from dataclasses import dataclass

from ..branches import peak_activation
from ..kv_cache import hidden_state_bytes
from ..launches import release
from ..model_config import ModelConfig
from .parameters import count_parameters
from ..units import GIB

TOTAL_MEMORY = {  # GiB of one GPU as vLLM prints it, from the logs of tests and data sets
    "H100": 79.19, "H100-NVL": 93.09, "A100-40GB": 39.49, "RTX-3090": 23.58, "MI300X": 191.98}

K1_PER_WIDTH = 6.65    # bytes per token, per element of the widest MLP + the hidden state
K2_SORT = 38.7         # bytes per request and vocabulary entry, to 0.16, from 128 requests on
K2_SORT_FEW = 53.0     # the same below 128 requests
K2_TRITON = 14.94      # from 0.17 on
NON_TORCH = {True: 2.07, False: 0.25, "old": 0.08}  # GiB: several GPUs, one, and one before 0.17
BUFFERS = 0.033        # GiB: rotary tables, norms and padding that the matrices leave out
TOWER = 1.25           # GiB of a vision tower and its projection, where only the text is described
GRAPHS = 0.6           # GiB that 0.20.2 and later set aside for CUDA graphs: 0.1 to 1.4 in ten logs


@dataclass(frozen=True)
class Estimate:
    """Bytes, and one standard deviation of them."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """How a server is started; bytes and tokens. ``weights``: on one GPU, None to count them."""

    total_memory: float
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    vllm_version: str | None = None
    weights: float | None = None

    @property
    def requested(self) -> float:
        """TM*U: what vLLM allows itself."""
        return self.total_memory * self.gpu_memory_utilization

    @property
    def old(self) -> bool:
        """Of a release before 0.17."""
        return () < release(self.vllm_version) < (0, 17)


def weights(config: ModelConfig, server: Server) -> Estimate:
    """M: parameters x bytes, and a vision tower where there is one that the figures leave out."""
    counted = count_parameters(config, server.tensor_parallel_size, server.pipeline_parallel_size)
    text = counted * config.element_bytes
    tower = TOWER * GIB if config.multimodal else 0.0
    return Estimate(text + BUFFERS * GIB + tower, 0.02 * GIB + (0.4 * GIB if tower else 0.0))


def non_torch(server: Server) -> Estimate:
    """N: CUDA context, NCCL."""
    several = server.tensor_parallel_size > 1
    size = NON_TORCH[several] if several or not server.old else NON_TORCH["old"]
    return Estimate(size * GIB, (0.10 if several else 0.01 if server.old else 0.135) * GIB)


def profile_slopes(config: ModelConfig, server: Server) -> tuple[float, float, float]:
    """K1, K2 and k of the shapes, bytes per token, per request and per token. What the experts keep
    stays while the sampler runs, so it is in K1 and in k."""
    hidden, vocabulary = config.count("hidden_size"), config.count("vocab_size")
    factor = (K2_TRITON if not server.old else K2_SORT if server.max_num_seqs >= 128 else
              K2_SORT_FEW)
    width = 0 if chosen_experts(config) else (
        config.optional("intermediate_size") or config.optional("ffn_dim") or 4 * hidden)
    kept = expert_workspace(config, server) / server.max_num_batched_tokens
    return (K1_PER_WIDTH * (width + hidden) + kept, factor * vocabulary,
            hidden_state_bytes(hidden, config.element_bytes) + kept)


def activation(config: ModelConfig, server: Server) -> Estimate:
    """P(B, C) of ``branches.peak_activation`` without intercepts, by ``profile_slopes``."""
    k1, k2, k = profile_slopes(config, server)
    peak = float(peak_activation(server.max_num_batched_tokens, server.max_num_seqs, k1, 0.0, k2,
                                 0.0, k))
    newer = release(server.vllm_version) >= (0, 20) or not release(server.vllm_version)
    return Estimate(peak, (0.20 if newer else 0.03) * peak + 0.01 * GIB)


def chosen_experts(config: ModelConfig) -> int:
    """Experts that each token passes; 0 where there are none."""
    return next((n for name in ("num_experts_per_tok", "top_k_experts")
                 if (n := config.optional(name, 0))), 0)


def expert_workspace(config: ModelConfig, server: Server) -> float:
    """Bytes that the fused experts keep for B tokens: the larger of what goes into them and what
    comes out of the first projection, and what goes into the second. From 0.17 on; those of
    gpt-oss, in MXFP4, keep none."""
    chosen = chosen_experts(config)
    if not chosen or server.old or config.family == "gpt_oss":
        return 0.0
    inner = config.optional("moe_intermediate_size") or config.count("intermediate_size")
    inner //= server.tensor_parallel_size
    widest = max(2 * inner, config.count("hidden_size"))
    return config.element_bytes * chosen * (widest + inner) * server.max_num_batched_tokens


def cuda_graphs(server: Server) -> Estimate:
    """G where the release charges it to the pool: from 0.20.2 on, and where it is unknown."""
    charged = not () < release(server.vllm_version) < (0, 20, 2)
    return Estimate(GRAPHS * GIB, 0.4 * GIB) if charged else Estimate(0.0)
