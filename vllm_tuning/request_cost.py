"""What one request costs where layers of several kinds share the pool, from launches.

Full attention keeps every token, a recurrent state is kept once, and a sliding window of w tokens
keeps at most w - 1 + B of them while prefill runs in steps of B. So a request of L tokens takes

    m + b*L                                  recurrent layers
    b*L + c*min(w + B, L)                    sliding windows

bytes. vLLM prints how many requests of max_model_len tokens the pool holds, so each launch tells the
cost of one of them: KV / max_concurrency.
"""

import math
from dataclasses import dataclass

import numpy as np
from uncertainties import UFloat, correlated_values

from .branches import SIGNIFICANT, least_squares
from .kv_cache import Shape
from .launches import Launch, column, release
from .uncertain import exact, nominal, stderr
from .units import printed_half_widths

_ROOT3 = math.sqrt(3)


@dataclass(frozen=True)
class RequestCost:
    """Bytes of one request, in terms that the launches identify (``uncertainties`` numbers).

    ``terms`` hold b ``per_token`` with m ``fixed``, or with c ``per_windowed_token`` and c*w
    ``window``. Where all launches have one max_model_len they are the cost of a request of that
    length: ``at_length`` whatever B, ``below`` and ``per_budget`` where B leaves windows full.
    ``lengths`` are the max_model_len launched, ``block`` the tokens of a block.
    """

    terms: dict[str, UFloat]
    lengths: tuple[int, ...]
    block: int

    def to_dict(self) -> dict:
        """Bytes."""
        return {**{name: nominal(value) for name, value in self.terms.items()},
                "stderr": {name: stderr(value) for name, value in self.terms.items()},
                "lengths": list(self.lengths)}

    @property
    def in_words(self) -> list[tuple[UFloat, str]]:
        """Each term with what it is for."""
        length = f"for {self.lengths[0]:,} tokens"
        words = {"fixed": "whatever its length", "per_token": "per token of its length",
                 "window": "for full windows", "per_windowed_token":
                 "more per token of mnbt, while that is shorter than the request",
                 "at_length": length, "below": f"{length}, at small mnbt",
                 "per_budget": "more per token of mnbt"}
        return [(value, words[name]) for name, value in self.terms.items()]

    def forms(self, length: int) -> list[tuple[UFloat, UFloat]]:
        """Bytes at B = 0 and per token of B; a request of ``length`` tokens takes the least of them.

        Empty where the launches do not tell it: they have one length, and the request is longer, or
        so much shorter that a request of that length could be more than twice as dear.
        """
        terms, nothing = self.terms, exact(0)
        if "per_token" not in terms:
            forms = [(terms["below"], terms["per_budget"])] if "below" in terms else []
            forms += [(terms["at_length"], nothing)] if "at_length" in terms else []
            return forms if length <= self.lengths[0] <= 2 * length else []
        if "window" not in terms:
            return [(terms["fixed"] + terms["per_token"] * length, nothing)]
        full, windowed = terms["per_token"] * length, terms["per_windowed_token"]
        return [(full + terms["window"], windowed), (full + windowed * (length + self.block), nothing)]


def is_hybrid(launches: list[Launch], shape: Shape | None) -> bool:
    """Whether a request costs something else than its length times the bytes of a token.

    So says the log (``hybrid_kv``), a printed concurrency more than 2 % away from tokens /
    max_model_len, or the config, unless the two agree: before 0.20.2 they do for plain layers only.
    """
    both = [(launch, whole - launch.max_concurrency) for launch in launches
            if launch.max_concurrency and (whole := _whole_requests(launch))]
    if any("hybrid_kv" in launch.warnings for launch in launches) or any(
            abs(off) > 0.0101 + 0.02 * launch.max_concurrency for launch, off in both):
        return True
    plain = any(abs(off) <= 0.0051 and () < release(launch.vllm_version) < (0, 20, 2)
                for launch, off in both)
    return bool(shape and shape.hybrid) and not plain


def _whole_requests(launch: Launch) -> float | None:
    """tokens / max_model_len, None where one is not given."""
    tokens, length = launch.kv_cache_tokens, launch.max_model_len
    return tokens / length if tokens and length else None


def _concurrency(launch: Launch) -> tuple[float, float] | None:
    """Requests of max_model_len that the pool holds, and half of their printed unit.

    From 0.20.2 on the printed tokens are concurrency x max_model_len: the same figure, finer.
    """
    finer, printed = _whole_requests(launch), launch.max_concurrency
    if finer and release(launch.vllm_version) >= (0, 20, 2) and (
            not printed or abs(finer - printed) <= 0.0051):
        return finer, 0.5 / launch.max_model_len
    return (printed, 0.005) if printed and launch.max_model_len else None


# ---------------------------------------------------------------- the fit


def fit_request_cost(launches: list[Launch], block: int = 16) -> RequestCost | None:
    """The cost of a request, by least squares over the launches; None where none tells one.

    The fewest terms that explain every launch within its printed units; else the best fit, with its
    errors scaled by chi squared over the degrees of freedom.
    """
    half_widths = printed_half_widths(column(launches, "kv_cache"))
    known = [(launch, held, half / launch.kv_cache) for launch, half in zip(launches, half_widths)
             if launch.kv_cache and launch.kv_cache > 0 and (held := _concurrency(launch))]
    if not known:
        return None
    cost = np.array([launch.kv_cache / concurrency for launch, (concurrency, _), _ in known])
    unit = cost * [half + width / concurrency for _, (concurrency, width), half in known]
    lengths, budgets = (column([launch for launch, *_ in known], name)
                        for name in ("max_model_len", "max_num_batched_tokens"))
    fits = [fit for design in _designs(lengths, budgets, block)
            if (fit := _fitted(design, lengths, budgets, block, cost, unit))]
    explaining = [fit for fit in fits if fit[0] <= 1 + 1e-6]
    best = explaining[0] if explaining else min(fits, key=lambda fit: fit[0], default=None)
    return best and best[1]


def _designs(lengths, budgets, block):
    """Columns of each law that could hold, fewest terms first.

    Windows are full in the launches whose length exceeds w + B: those with the largest L - B.
    """
    ones = np.ones(len(lengths))
    one_length = np.ptp(lengths) == 0
    yield {"at_length": ones} if one_length else {"fixed": ones, "per_token": lengths}
    for least in sorted(set(lengths - budgets)):
        full = (lengths - budgets >= least) * 1.0
        if one_length:
            rest = {} if full.all() else {"at_length": 1 - full}
            yield {"below": full, "per_budget": full * budgets} | rest
        else:
            yield {"per_token": lengths, "window": full,
                   "per_windowed_token": np.where(full, budgets, lengths + block)}


def _fitted(columns, lengths, budgets, block, cost, unit) -> tuple[float, RequestCost] | None:
    """The largest residual in printed units, and the cost; None where the law cannot be fitted."""
    try:
        fit = least_squares(np.column_stack(list(columns.values())), cost, unit / _ROOT3)
    except np.linalg.LinAlgError:
        return None
    scale_up = max(1.0, fit.chi2 / fit.dof) if fit.dof > 0 else 1.0
    terms = dict(zip(columns, correlated_values(fit.params, fit.covariance * scale_up)))
    if any(value.n < -SIGNIFICANT * value.s for value in terms.values()):
        return None  # no layer gives memory back
    found = RequestCost(terms, tuple(sorted({int(length) for length in lengths})), block)
    off = [abs(each - min((fixed + per_budget * budget).n for fixed, per_budget in forms)) / width
           for each, width, length, budget in zip(cost, unit, lengths, budgets)
           if (forms := found.forms(length))]
    return max(off), found
