"""What one request keeps where layers of several kinds share the pool, by config or by launches.

A config.json gives the groups of layers, hence the exact blocks of a request of L tokens beside a
token budget of B. Without one, vLLM prints how many requests of max_model_len tokens the pool
holds, so each launch gives the cost of one of them, KV / max_concurrency, and launches at two
max_model_len give the line a + b*L.
"""

from dataclasses import dataclass

import numpy as np
from uncertainties import UFloat, correlated_values

from ..diagnosis import Notice
from ..launch import Launch, column, first_known
from ..law import agrees
from ..least_squares import least_squares, scatter
from ..readings import ROOT3
from ..releases import caches_states, prints_tokens_by_concurrency
from ..units import exact, printed_half_widths
from ..workload import RequestCost
from .layout import CacheLayout, Shape, read_shape
from .model_config import read_config

LARGEST_WINDOW = 16384  # tokens; 128 to 8,192 are in use
_WORDS = {
    "at_length": "for {:,} tokens",
    "fixed": "whatever its length",
    "per_token": "per token of its length",
    "per_budget": "more per token of mnbt",
}


class _Words:
    """The terms of a cost in words."""

    @property
    def in_words(self: RequestCost) -> list[tuple[UFloat, str]]:
        """Each term that is not 0, with what it is for."""
        return [
            (value, _WORDS[name].format(*self.lengths))
            for name, value in self.terms.items()
            if value.n
        ]


@dataclass(frozen=True)
class FittedCost(_Words):
    """``fixed`` + ``per_token`` * L, bytes, from launches at the max_model_len in ``lengths``.

    Where all launches have one max_model_len, ``fixed`` is the cost of a request of that length,
    an upper limit for one of at least half of it. A request takes whole blocks of ``block`` tokens.
    The size of a block in bytes, and whether vLLM keeps one back, are within the error.
    """

    fixed: UFloat
    per_token: UFloat
    lengths: tuple[int, ...]
    block: int
    block_bytes: float = 1.0
    reserved: int = 0
    source = "launches"

    @property
    def terms(self) -> dict[str, UFloat]:
        """The bytes of each term by its name in JSON."""
        if len(self.lengths) == 1:
            return {"at_length": self.fixed}
        return {"fixed": self.fixed, "per_token": self.per_token}

    def bytes_of(self, length: int, budget: int) -> UFloat | None:
        """Bytes of a request of ``length`` tokens at any budget; None beyond the launches."""
        if len(self.lengths) == 1 and not length <= self.lengths[0] <= 2 * length:
            return None
        return self.fixed + self.per_token * (-(-length // self.block) * self.block)


@dataclass(frozen=True)
class ConfiguredCost(_Words):
    """Bytes of one request by the groups of layers of a config.json, in whole blocks.

    Where the launches contradict the config, ``measured`` is what they give at their own length,
    and ``more`` what they show a request to take beside the config's: the larger cost counts.
    """

    cache: CacheLayout
    measured: FittedCost | None = None
    more: float = 0.0
    lengths: tuple[int, ...] = ()  # any
    reserved: int = 1
    source = "config"

    @property
    def block_bytes(self) -> float:
        return float(self.cache.block_bytes)

    @property
    def terms(self) -> dict[str, UFloat]:
        """a + b*L by name: ``fixed`` with full windows at B = 0, ``per_budget`` a token of B."""
        step = 2**20  # tokens of B, many whole blocks
        small, large = self.cache.fixed(0), self.cache.fixed(step)
        values = {"per_token": self.cache.per_token, "fixed": small}
        values["per_budget"] = (large - small) / step
        return {name: exact(float(value)) for name, value in values.items()}

    def bytes_of(self, length: int, budget: int) -> UFloat | None:
        """Bytes of a request of ``length`` tokens beside a budget of B: vLLM's own rule."""
        own = exact(self.cache.block_bytes * self.cache.held_blocks(length, budget)) + self.more
        other = self.measured and self.measured.bytes_of(length, budget)
        return own if other is None else max(own, other, key=lambda cost: cost.n)


def cost_of_request(
    launches: list[Launch], shape: Shape | None, block: int = 16
) -> tuple[FittedCost | ConfiguredCost | None, Notice | None]:
    """What a request costs: by the config where there is one, checked against what launches print.

    Else as the launches give it. Where they contradict the config by more than their printed units,
    the larger of both, or None where they do not give it.
    """
    if shape is None or shape.cache is None:
        return fit_request_cost(launches, block), None
    apart = [
        (launch, printed, least, most)
        for launch, printed, least, most in _against_config(launches, shape.cache)
        if not least <= printed <= most
    ]
    if not apart:
        return ConfiguredCost(shape.cache), None
    launch, printed, least, most = apart[0]
    measured = fit_request_cost(launches, block)
    shown = [  # bytes of a request of max_model_len, as printed and by the config
        (at.kv_cache * (1 / held - 2 / (low + high)))
        for at, held, low, high in apart
        if at.kv_cache and low + high > 0
    ]
    remedy = (
        "The larger of both costs is taken, at every length."
        if measured
        else "So the config cannot give the cost, and the launches do not either."
    )
    return measured and ConfiguredCost(shape.cache, measured, max(0.0, *shown)), Notice(
        "config_disagrees",
        f"{launch.where}: the pool holds {printed:,.2f} requests of {launch.max_model_len:,} "
        f"tokens as printed, {(least + most) / 2:,.2f} by config.json: another model, or a mode "
        f"of the engine that the log does not tell. {remedy}",
    )


def shape_of(
    path, launches: list[Launch], kv_cache_dtype: str | None = None, block_size: int = 16
) -> Shape:
    """The shape in a config.json, split and in the mode of the engine as the launches ran.

    Where what the records say of the mode does not explain the concurrency that is printed, the
    dearest mode that does counts.
    """
    config = read_config(path)
    tp, pp = (first_known(launches, f"{each}_parallel_size", 1) for each in ("tensor", "pipeline"))

    def in_mode(drafts: int, caching: bool) -> Shape:
        return read_shape(config, tp, pp, kv_cache_dtype, block_size, drafts, caching)

    asked = first_known(launches, "prefix_caching")
    shape = in_mode(
        first_known(launches, "speculative_tokens", 0),
        caches_states(first_known(launches, "vllm_version"), asked),
    )
    cache = shape.cache
    if cache is None or all(group.kind != "state" for group in cache.groups):
        return shape
    if _explains(shape, launches):
        return shape
    modes = [in_mode(drafts, caching) for drafts in range(9) for caching in (False, True)]
    others = [other for other in modes if _explains(other, launches)]
    return max(others, key=lambda other: other.cache.fixed(1) if other.cache else 0, default=shape)


def _explains(shape: Shape, launches: list[Launch]) -> bool:
    """Whether the config gives the concurrencies that the launches print."""
    return shape.cache is not None and all(
        least <= printed <= most
        for _, printed, least, most in _against_config(launches, shape.cache)
    )


def _against_config(launches: list[Launch], cache: CacheLayout):
    """Each launch that prints a concurrency, and the bounds that the config sets for it."""
    half_widths = printed_half_widths(column(launches, "kv_cache"))
    windows = any(group.window for group in cache.groups)
    for launch, half in zip(launches, half_widths, strict=True):
        held, budget = _concurrency(launch), launch.max_num_batched_tokens
        if not held or not launch.kv_cache or launch.kv_cache < 0 or (windows and not budget):
            continue
        blocks = cache.request_blocks(launch.max_model_len, budget or 1)
        low, high = (cache.blocks(launch.kv_cache + sign * half) / blocks for sign in (-1, 1))
        width = held[1] * (1 + 1e-6)
        yield launch, held[0], low - width, high + width


def is_hybrid(launches: list[Launch], shape: Shape | None) -> bool:
    """Whether a request costs something else than its length times the bytes of a token.

    So says the log, a printed concurrency that does not agree with the tokens, or the config,
    unless the two agree: before 0.20.2 they do for plain layers only.
    """
    both = [
        (launch, agrees(launch.max_concurrency, launch.kv_cache_tokens, launch.max_model_len))
        for launch in launches
        if launch.max_concurrency and launch.kv_cache_tokens and launch.max_model_len
    ]
    if any(launch.hybrid for launch in launches) or not all(plain for _, plain in both):
        return True
    plain = any(prints_tokens_by_concurrency(launch.vllm_version) is False for launch, _ in both)
    return bool(shape and shape.hybrid) and not plain


def _concurrency(launch: Launch) -> tuple[float, float] | None:
    """Requests of max_model_len that the pool holds, and half of their printed unit.

    From 0.20.2 on the printed tokens are int(concurrency x max_model_len): the same, finer.
    """
    length, printed, tokens = (launch.max_model_len, launch.max_concurrency, launch.kv_cache_tokens)
    by_tokens = prints_tokens_by_concurrency(launch.vllm_version)
    if (
        tokens
        and length
        and by_tokens
        and (not printed or abs(tokens / length - printed) <= 0.0051)
    ):
        return (tokens + 0.5) / length, 0.5 / length
    return (printed, 0.005) if printed and length else None


def fit_request_cost(launches: list[Launch], block: int = 16) -> FittedCost | None:
    """The cost of a request by least squares over the launches; None where they give none.

    None too where no line explains the costs within their printed units, as with sliding windows,
    which keep more beside a larger budget; and where windows would not show: B must move at the
    longest max_model_len, or at one that exceeds B by more than any window, or exceed all of them.
    """
    half_widths = printed_half_widths(column(launches, "kv_cache"))
    known = [
        (launch, half / launch.kv_cache, *held)
        for launch, half in zip(launches, half_widths, strict=True)
        if launch.kv_cache and launch.kv_cache > 0 and (held := _concurrency(launch))
    ]
    if not known:
        return None
    kept = [launch for launch, *_ in known]
    off, held, width = np.array([figures for _, *figures in known]).T
    lengths, budgets = (column(kept, name) for name in ("max_model_len", "max_num_batched_tokens"))
    moved = [
        length
        for length in lengths
        if np.ptp(at := budgets[lengths == length]) > 0
        and length >= min(lengths.max(), at.min() + LARGEST_WINDOW)
    ]
    if not moved and np.any(budgets < lengths):
        return None
    rounded = np.ceil(lengths / block) * block  # a request takes whole blocks, the pool holds such
    costs = column(kept, "kv_cache") / held
    units = costs * (off + width / held + block / (held * rounded))
    one_length = np.ptp(lengths) == 0
    design = np.column_stack([np.ones(len(rounded)), *([] if one_length else [rounded])])
    fit = least_squares(design, costs, units / ROOT3)
    explained = np.all(np.abs(costs - design @ fit.params) <= units * (1 + 1e-6))
    if not explained or fit.params[-1] < 0 or fit.params[0] < -units.max():
        return None
    terms = correlated_values(fit.params, fit.covariance * scatter(fit.chi2, fit.dof))
    fixed, per_token = (*terms, exact(0))[:2]
    return FittedCost(fixed, per_token, tuple(sorted({int(each) for each in lengths})), block)
