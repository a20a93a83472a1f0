"""What one request costs where layers of several kinds share the pool, from launches or config.

Full attention keeps every token, a recurrent state is kept once, and a sliding window of w tokens
keeps at most w - 1 + B of them while prefill runs in steps of B. So a request of L tokens takes

    m + b*L                                  recurrent layers
    b*L + c*min(w + B, L)                    sliding windows

bytes. vLLM prints how many requests of max_model_len tokens the pool holds, so each launch tells the
cost of one of them: KV / max_concurrency. A config.json tells the groups of layers, hence the whole
law; the launches then only check it.
"""

import math
from dataclasses import dataclass

import numpy as np
from uncertainties import UFloat, correlated_values

from ..launch import Launch, Notice, column
from ..law import agrees
from ..least_squares import least_squares
from ..releases import release
from ..units import exact, nominal, printed_half_widths, stderr
from .layout import CacheLayout, Shape

LARGEST_WINDOW = 16384  # tokens; 128 to 8,192 are in use


_ROOT3 = math.sqrt(3)


_WORDS = {
    "fixed": "whatever its length",
    "per_token": "per token of its length",
    "window": "for full windows",
    "per_windowed_token": "more per token of mnbt, while that is shorter than the request",
    "at_length": "for {:,} tokens",
    "below": "for {:,} tokens, at small mnbt",
    "per_budget": "more per token of mnbt",
}


@dataclass(frozen=True)
class RequestCost:
    """Bytes of one request by each law that explains the launches, plainest first.

    A law is a dict of ``uncertainties`` numbers: b ``per_token`` with m ``fixed``, or with c
    ``per_windowed_token`` and c*w ``window``. Where all launches have one max_model_len it is the
    cost of a request of that length: ``at_length`` whatever B, ``below`` and ``per_budget`` where B
    leaves windows full. ``lengths`` are the max_model_len launched, ``block`` the tokens of a block.
    """

    laws: tuple[dict[str, UFloat], ...]
    lengths: tuple[int, ...]
    block: int

    def to_dict(self) -> dict:
        """The plainest law, bytes."""
        return {
            **{name: nominal(value) for name, value in self.laws[0].items()},
            "stderr": {name: stderr(value) for name, value in self.laws[0].items()},
            "lengths": list(self.lengths),
        }

    block_bytes = 1  # the size of a block, and whether vLLM keeps one back, are within the error
    reserved = 0

    @property
    def in_words(self) -> list[tuple[UFloat, str]]:
        """Each term of the plainest law with what it is for."""
        return [
            (value, _WORDS[name].format(self.lengths[0])) for name, value in self.laws[0].items()
        ]

    def forms(self, length: int) -> list[list[tuple[UFloat, UFloat]]]:
        """For each law the forms that a request of ``length`` tokens may take, and takes the least of.

        A form is bytes at B = 0 and per token of B. Empty where the launches do not tell: they have
        one length, and the request is longer, or could cost less than half of one of that length.
        """
        if len(self.lengths) == 1 and not length <= self.lengths[0] <= 2 * length:
            return []
        return [_forms(law, length, self.block) for law in self.laws]


@dataclass(frozen=True)
class ConfiguredCost:
    """Bytes of one request by the groups of layers of a config.json, in whole blocks.

    ``measured``: what the launches tell, where they contradict the config; the dearer one counts.
    """

    cache: CacheLayout
    measured: RequestCost | None = None
    lengths = ()  # any
    reserved = 1

    @property
    def block_bytes(self) -> int:
        return self.cache.block_bytes

    def to_dict(self) -> dict:
        """a + b*L, bytes: ``fixed`` with full windows at B = 0, ``per_budget`` for each token of B."""
        at_none, per_budget = self._fixed
        return {
            "per_token": self.cache.per_token,
            "fixed": at_none,
            "per_budget": per_budget,
            "stderr": dict.fromkeys(("per_token", "fixed", "per_budget"), 0.0),
            "lengths": [],
            "source": "config",
        }

    @property
    def _fixed(self) -> tuple[float, float]:
        step = 2**20  # tokens of B, many whole blocks
        small, large = self.cache.fixed(0), self.cache.fixed(step)
        return float(small), (large - small) / step

    @property
    def in_words(self) -> list[tuple[UFloat, str]]:
        fixed, per_budget = self._fixed
        return [
            (exact(value), _WORDS[name])
            for name, value in (
                ("per_token", self.cache.per_token),
                ("window" if per_budget else "fixed", fixed),
                ("per_budget", per_budget),
            )
            if value
        ]

    def forms(self, length: int) -> list[list[tuple[UFloat, UFloat]]]:
        """As of ``RequestCost``: never below vLLM's rule, above it by a block a group at most."""
        forms = [(exact(fixed), exact(more)) for fixed, more in self.cache.forms(length)]
        return [forms, *(self.measured.forms(length) if self.measured else [])]


def cost_of_request(
    launches: list[Launch],
    shape: Shape | None,
    block: int = 16,
) -> tuple[RequestCost | ConfiguredCost | None, Notice | None]:
    """What a request costs: by the config where there is one, checked against what launches print.

    Else as the launches tell. Where they contradict the config by more than their printed units,
    the dearer of both, or None where they do not tell it.
    """
    if shape is None or shape.cache is None:
        return fit_request_cost(launches, block), None
    for launch, printed, least, most in _against_config(launches, shape.cache):
        if least <= printed <= most:
            continue
        measured = fit_request_cost(launches, block)
        return measured and ConfiguredCost(shape.cache, measured), Notice(
            "config_disagrees",
            f"{launch.where}: the pool holds {printed:,.2f} requests of {launch.max_model_len:,} "
            f"tokens as printed, {(least + most) / 2:,.2f} by config.json: another model, or layers "
            "added by a flag (speculative decoding). "
            + (
                "The dearer of both costs is taken."
                if measured
                else "So the config cannot tell the cost, and the launches do not either."
            ),
        )
    return ConfiguredCost(shape.cache), None


def _against_config(launches: list[Launch], cache: CacheLayout):
    """Each launch that prints a concurrency, and the bounds that the config sets for it."""
    half_widths = printed_half_widths(column(launches, "kv_cache"))
    windows = any(group.window for group in cache.groups)
    for launch, half in zip(launches, half_widths):
        held, budget = _concurrency(launch), launch.max_num_batched_tokens
        if not held or not launch.kv_cache or launch.kv_cache < 0 or (windows and not budget):
            continue
        blocks = cache.request_blocks(launch.max_model_len, budget or 1)
        low, high = (cache.blocks(launch.kv_cache + sign * half) / blocks for sign in (-1, 1))
        yield launch, held[0], low - held[1], high + held[1]


def _forms(law: dict[str, UFloat], length: int, block: int) -> list[tuple[UFloat, UFloat]]:
    nothing, length = exact(0), -(-length // block) * block
    if "per_token" not in law:
        forms = [(law["below"], law["per_budget"])] if "below" in law else []
        return forms + ([(law["at_length"], nothing)] if "at_length" in law else [])
    full = law["per_token"] * length
    if "window" not in law:
        return [(law.get("fixed", nothing) + full, nothing)]
    windowed = law["per_windowed_token"]
    return [(full + law["window"], windowed), (full + windowed * (length + block), nothing)]


def is_hybrid(launches: list[Launch], shape: Shape | None) -> bool:
    """Whether a request costs something else than its length times the bytes of a token.

    So says the log (``hybrid_kv``), a printed concurrency that does not agree with the tokens, or
    the config, unless the two agree: before 0.20.2 they do for plain layers only.
    """
    both = [
        (launch, agrees(launch.max_concurrency, launch.kv_cache_tokens, launch.max_model_len))
        for launch in launches
        if launch.max_concurrency and launch.kv_cache_tokens and launch.max_model_len
    ]
    if any("hybrid_kv" in launch.warnings for launch in launches) or not all(
        plain for _, plain in both
    ):
        return True
    plain = any(() < release(launch.vllm_version) < (0, 20, 2) for launch, _ in both)
    return bool(shape and shape.hybrid) and not plain


def _concurrency(launch: Launch) -> tuple[float, float] | None:
    """Requests of max_model_len that the pool holds, and half of their printed unit.

    From 0.20.2 on the printed tokens are concurrency x max_model_len: the same figure, finer.
    """
    length, printed, tokens = (launch.max_model_len, launch.max_concurrency, launch.kv_cache_tokens)
    if (
        tokens
        and length
        and release(launch.vllm_version) >= (0, 20, 2)
        and (not printed or abs(tokens / length - printed) <= 0.0051)
    ):
        return tokens / length, 0.5 / length
    return (printed, 0.005) if printed and length else None


def fit_request_cost(launches: list[Launch], block: int = 16) -> RequestCost | None:
    """The cost of a request, by least squares over the launches; None where they tell none.

    Every law that explains all launches within their printed units, and has fewer terms than there
    are different launches. Windows show only where B moves at the longest max_model_len, or at one
    that exceeds B by more than any window; or where B is nowhere below the length.
    """
    half_widths = printed_half_widths(column(launches, "kv_cache"))
    known = [
        (launch, held, half / launch.kv_cache)
        for launch, half in zip(launches, half_widths)
        if launch.kv_cache and launch.kv_cache > 0 and (held := _concurrency(launch))
    ]
    if not known:
        return None
    held, width = np.array([each for _, each, _ in known]).T
    cost = column([launch for launch, *_ in known], "kv_cache") / held
    lengths, budgets = (
        column([launch for launch, *_ in known], name)
        for name in ("max_model_len", "max_num_batched_tokens")
    )
    rounded = np.ceil(lengths / block) * block  # a request takes whole blocks, the pool holds such
    unit = cost * ([half for *_, half in known] + width / held + block / (held * rounded))
    moved = [
        length
        for length in lengths
        if np.ptp(at := budgets[lengths == length]) > 0
        and length >= min(lengths.max(), at.min() + LARGEST_WINDOW)
    ]
    if not moved and np.any(budgets < lengths):
        return None
    launched = np.column_stack([lengths, budgets])
    laws = [
        law
        for design in _designs(rounded, budgets, block)
        if len(design) < max(2, _different(design if "window" in design else launched))
        and (law := _fitted(design, cost, unit))
        and _explains(law, lengths, budgets, block, cost, unit)
    ]
    return (
        RequestCost(tuple(laws), tuple(sorted({int(each) for each in lengths})), block)
        if laws
        else None
    )


def _different(rows) -> int:
    rows = np.column_stack(list(rows.values())) if isinstance(rows, dict) else rows
    return len(np.unique(rows, axis=0))


def _designs(lengths, budgets, block):
    """Columns of each law that could hold, fewest terms first.

    Windows are full in the launches whose length exceeds w + B: those with the largest L - B.
    """
    ones = np.ones(len(lengths))
    one_length = np.ptp(lengths) == 0
    if one_length:
        yield {"at_length": ones}
    else:
        yield {"per_token": lengths}
        yield {"fixed": ones, "per_token": lengths}
    for least in sorted(set(lengths - budgets)):
        full = (lengths - budgets >= least) * 1.0
        if one_length:
            rest = {} if full.all() else {"at_length": 1 - full}
            yield {"below": full, "per_budget": full * budgets} | rest
        else:
            yield {
                "per_token": lengths,
                "window": full,
                "per_windowed_token": np.where(full, budgets, lengths + block),
            }


def _fitted(columns: dict, cost, unit) -> dict[str, UFloat] | None:
    """The terms; None where the launches leave one open, or where a layer would give memory back."""
    try:
        fit = least_squares(np.column_stack(list(columns.values())), cost, unit / _ROOT3)
    except np.linalg.LinAlgError:
        return None
    scale_up = max(1.0, fit.chi2 / fit.dof) if fit.dof > 0 else 1.0
    return (
        dict(zip(columns, correlated_values(fit.params, fit.covariance * scale_up)))
        if min(fit.params) >= 0
        else None
    )


def _explains(law, lengths, budgets, block, cost, unit) -> bool:
    predicted = [
        min(
            (fixed + per_budget * budget).n for fixed, per_budget in _forms(law, int(length), block)
        )
        for length, budget in zip(lengths, budgets)
    ]
    return bool(np.all(np.abs(cost - predicted) <= unit * (1 + 1e-6)))
