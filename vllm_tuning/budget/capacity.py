"""The answer of ``vllm-tuning budget``: what a request costs, what the pool holds, how many fit."""

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from ..kv_cache import LARGEST_FIGURE, CacheLayout, ModelConfig, cache_layout, read_config
from ..launch import Launch
from ..reading import read_source
from ..releases import caches_states, default_flags, default_utilization, release
from ..units import GIB, InputError
from ..workload import Workload, at_percentile, largest
from .admission import MARGIN, Risk, RunningRequest, seqs_by_length, seqs_for_risk
from .estimates import Part, Server, second_runner
from .gpus import GPUS, gpu_named, gpu_with
from .memory_budget import Budget, indexed_weights, memory_budget

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")  # of vLLM's --dtype
RISK = 0.01  # of preemption at a moment, where lengths are known


@dataclass(frozen=True)
class Capacity:
    """Costs of a request, and with a GPU or a pool what it holds; tokens, None where unknown."""

    config: ModelConfig
    cache: CacheLayout
    cache_fp8: CacheLayout
    max_model_len: int
    profiled_seqs: int
    max_num_batched_tokens: int
    vllm_version: str | None
    budget: Budget | None
    pool: Part | None
    lengths: tuple[Workload, ...] = ()
    printed_tokens: int | None = None  # of the launch, where its flags are the ones asked for
    risk: Risk | None = None
    mode_told: bool = False  # prefix caching is on record
    fitted: bool = True  # on such a card and release, so that the band was seen to hold

    @property
    def blocks(self) -> int | None:
        return None if self.pool is None else self.cache.blocks(self.pool.value)

    def tokens(self, pool: float, cache: CacheLayout | None = None) -> int:
        """ "GPU KV cache size" of a pool of so many bytes, here or in another layout."""
        cache = cache or self.cache
        return cache.printed_tokens(
            cache.blocks(pool), self.max_model_len, self.max_num_batched_tokens, self.vllm_version
        )

    @property
    def contradicted(self) -> bool:
        """Whether the launch printed other tokens than its pool holds by this config and flags."""
        printed, pool = self.printed_tokens, self.pool
        if not printed or not pool:
            return False
        return not math.isclose(self.tokens(pool.value), printed, rel_tol=0.01)

    @property
    def cautions(self) -> list[str]:
        """Names of what the answer must be read with."""
        blocks, most = self.blocks, self.max_num_seqs(self.pool.value) if self.pool else None
        most = max(most or 0, self.risk.max_num_seqs if self.risk else 0)
        holds = {
            "nothing_fits": blocks is not None and blocks < 2,
            "max_model_len_does_not_fit": (self.max_concurrency or 1) < 1 and (blocks or 0) >= 2,
            "launch_contradicts": self.contradicted,
            "above_profiled_seqs": bool(self.budget) and most > self.profiled_seqs,
            "prefix_caching_assumed": not self.mode_told and self.cache.state_blocks > 0,
            "band_is_assumed": bool(self.pool and self.pool.spread) and not self.fitted,
        }
        return [name for name, true in holds.items() if true]

    @property
    def max_concurrency(self) -> float | None:
        """ "Maximum concurrency": requests of max_model_len tokens."""
        if self.blocks is None:
            return None
        return self.cache.concurrency(self.blocks, self.max_model_len, self.max_num_batched_tokens)

    @property
    def longest_request(self) -> int:
        """The largest max_model_len that vLLM starts with: one such request fits the pool."""
        return largest(
            lambda length: (
                self.cache.request_blocks(length, self.max_num_batched_tokens) <= self.blocks
            ),
            self.max_model_len,
        )

    @property
    def request(self) -> Workload | None:
        """The request that is sized for: the given one, or that at the 95th percentile."""
        return at_percentile(list(self.lengths)) if self.lengths else None

    @property
    def margin(self) -> float:
        """1 where all requests are of one length, so that all at once fit."""
        return 1.0 if len(self.lengths) == 1 else MARGIN

    def max_num_seqs(self, pool: float) -> int | None:
        """mns for the shape of the requests in a pool of so many bytes."""
        if self.request is None:
            return None
        return seqs_by_length(
            self.cache,
            self.cache.blocks(pool),
            self.request.length,
            self.max_num_batched_tokens,
            self.margin,
        )

    def to_dict(self) -> dict:
        """JSON of ``budget``: bytes, tokens, GiB where the name says so, null = unknown."""
        pool = self.pool
        parts = self.budget.parts if self.budget else ()
        return {
            "model": str(self.config.get("model_type") or "") or None,
            "kv_bytes_per_token": self.cache.kv_bytes_per_token,
            "kv_bytes_per_request": {
                "fixed": self.cache.fixed(self.max_num_batched_tokens),
                "per_token": self.cache.per_token,
            },
            "block_size": self.cache.block_size,
            "block_bytes": self.cache.block_bytes,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "total_memory_gib": self.budget and self.budget.total_memory / GIB,
            "gpu_memory_utilization": self.budget and self.budget.gpu_memory_utilization,
            "requested_gib": self.budget and self.budget.requested / GIB,
            **dict.fromkeys(("weights", "non_torch", "activation", "cuda_graphs")),
            **{part.name: part.to_dict() for part in parts},
            "pool_gib": pool and pool.value / GIB,
            "pool_low_gib": pool and pool.low / GIB,
            "pool_high_gib": pool and pool.high / GIB,
            "pool_source": pool and pool.source,
            "pool_blocks": self.blocks,
            "pool_tokens": pool and self.tokens(pool.value),
            "pool_tokens_printed": self.printed_tokens,
            "max_concurrency": self.max_concurrency,
            "max_num_seqs": pool and self.max_num_seqs(pool.value),
            "max_num_seqs_at_risk": self.risk
            and {
                "max_num_seqs": self.risk.max_num_seqs,
                "risk": RISK,
                "probability": self.risk.probability,
            },
            "warnings": self.cautions,
        }


def capacity(
    path,
    *,
    gpu: str | None = None,
    gpu_memory: float | None = None,
    utilization: float | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    kv_cache_dtype: str | None = None,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    decode_context_parallel_size: int | None = None,
    block_size: int | None = None,
    vllm_version: str | None = None,
    dtype: str | None = None,
    weights: float | None = None,
    kv_cache: float | None = None,
    lengths: tuple[Workload, ...] = (),
    launch: Launch | None = None,
) -> Capacity:
    """The answer from a model's config.json and a GPU; memory in bytes. Flags that are not given
    are those of the launch, else vLLM's defaults; its figures are taken where the flags do not move
    them. Raises InputError."""
    config = read_config(path)
    if dtype:
        if dtype not in DTYPES:
            raise InputError(f"dtype is {dtype[:40]!r}; expected one of {', '.join(DTYPES)}")
        config = replace(config, values=config.values | {"served_dtype": dtype})
    given = launch or Launch()
    version = vllm_version or given.vllm_version
    if vllm_version and not release(vllm_version):
        raise InputError(
            f"vllm_version {vllm_version[:40]!r} is no release; expected one such as 0.19.0"
        )
    card = gpu and gpu_named(gpu, "total_memory")
    if utilization is not None and not (isinstance(utilization, Real) and 0 < utilization <= 1):
        raise InputError(f"utilization is {utilization}; expected a number above 0, at most 1")
    for name, value in (
        ("max_model_len", max_model_len),
        ("max_num_seqs", max_num_seqs),
        ("max_num_batched_tokens", max_num_batched_tokens),
    ):
        if value is not None and not (isinstance(value, Integral) and 1 <= value <= LARGEST_FIGURE):
            raise InputError(
                f"{name} is {value}; expected a whole number from 1 to {LARGEST_FIGURE:,}"
            )
    tp = _split(given, "tensor_parallel_size", tensor_parallel_size)
    pp = _split(given, "pipeline_parallel_size", pipeline_parallel_size)
    if max_num_seqs and max_num_batched_tokens and max_num_batched_tokens < max_num_seqs:
        raise InputError(
            f"max_num_batched_tokens {max_num_batched_tokens:,} is below max_num_seqs "
            f"{max_num_seqs:,}; vLLM refuses that"
        )
    total = gpu_memory or (card and GPUS[card].total_memory) or given.total_memory
    longest = max_model_len or given.max_model_len or config.optional("max_position_embeddings")
    seqs, tokens = default_flags(total or 0.0, card, version, longest)
    asked = max_num_batched_tokens or given.max_num_batched_tokens
    tokens = asked or max(tokens, max_num_seqs or 0)
    seqs = max_num_seqs or given.max_num_seqs or min(seqs, tokens)
    largest_request = max((each.length for each in lengths), default=0)
    longest = longest or largest_request or tokens
    if largest_request > longest:
        raise InputError(
            f"a request of {largest_request:,} tokens is longer than max_model_len {longest:,}"
        )
    kept = kv_cache_dtype or given.kv_cache_dtype
    block = block_size or given.block_size or 16
    split = _split(given, "decode_context_parallel_size", decode_context_parallel_size)
    drafts = given.speculative_tokens or 0
    caching = caches_states(version, given.prefix_caching)
    cache, fp8 = (
        cache_layout(config, tp, pp, each, block, split, drafts, caching) for each in (kept, "fp8")
    )
    utilization = utilization or given.gpu_memory_utilization or default_utilization(version)
    printed = _unmoved(
        given,
        weights,
        total_memory=total,
        gpu_memory_utilization=utilization,
        vllm_version=version,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=longest,
        kv_cache_dtype=kept,
    )
    budget, pool, fitted = None, None, True
    if kv_cache is not None:
        pool = Part("pool", kv_cache, "given")
    elif total:
        server = Server(
            total_memory=total,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=utilization,
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            vllm_version=version,
            gpu=card or gpu_with(total),
            second_runner=second_runner(config, version, given.model_runner),
            weights=weights or indexed_weights(config, tp * pp),
        )
        budget = memory_budget(config, server, printed if launch else None)
        pool, fitted = budget.pool, server.fitted
    elif printed.kv_cache is not None:
        pool = Part("pool", printed.kv_cache, "measured")
    risk = None
    if pool and len(lengths) > 1:
        inputs, outputs = zip(*((each.input_len, each.output_len) for each in lengths), strict=True)
        running = RunningRequest(cache, inputs, outputs, tokens)
        risk = seqs_for_risk(running, cache.blocks(pool.value), RISK)
    return Capacity(
        config=config,
        cache=cache,
        cache_fp8=fp8,
        max_model_len=longest,
        profiled_seqs=seqs,
        max_num_batched_tokens=tokens,
        vllm_version=version,
        budget=budget,
        pool=pool,
        lengths=tuple(lengths),
        printed_tokens=printed.kv_cache_tokens if kv_cache is None else None,
        risk=risk,
        mode_told=given.prefix_caching is not None,
        fitted=fitted,
    )


def _split(launch: Launch, name: str, asked: int | None) -> int:
    own = getattr(launch, name)
    if asked and own and asked != own:
        raise InputError(
            f"{name} is {asked}, but {own} in the launch: its figures are those of another split"
        )
    return asked or own or 1


def _unmoved(launch: Launch, weights: float | None, **flags) -> Launch:
    """The launch less the figures that flags other than its own would move."""
    moved = {
        name
        for name, value in flags.items()
        if getattr(launch, name) is not None and getattr(launch, name) != value
    }
    gone = {"kv_cache_tokens"} if moved or weights else set()
    if moved - {"max_model_len", "kv_cache_dtype"} or weights:
        gone.add("kv_cache")
    if "vllm_version" in moved:
        launch = replace(launch, vllm_version=flags["vllm_version"], cuda_graph_charged=None)
    if moved & {"vllm_version", "max_num_seqs", "max_num_batched_tokens"}:
        gone.add("peak_activation")
    if weights:
        gone.add("model_weights")
    unknown: dict[str, Any] = dict.fromkeys(gone)
    return replace(launch, **unknown)


def launch_to_measure(sources) -> Launch:
    """The launch whose parts are taken: the last that is up. Raises InputError where none is."""
    up = [
        launch
        for source in sources
        for launch in read_source(source)
        if launch.status == "ok" and launch.kv_cache is not None
    ]
    if not up:
        raise InputError(f"{sources[0]}: no launch that is up and prints its pool")
    return up[-1]
