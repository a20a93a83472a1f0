"""What one request costs where layers of several kinds share the pool: a + b*L + c*B.

Full attention keeps every token (b); a recurrent state is kept once (a); a sliding window of w
tokens keeps at most w - 1 + B of them while prefill runs in steps of B (a and c). vLLM prints how
many requests of max_model_len tokens the pool holds, so each launch tells the cost of one of them:
KV / max_concurrency. Launches at two max_model_len tell the line between them.
"""

import math
from dataclasses import dataclass

import numpy as np
from uncertainties import UFloat, correlated_values

from .branches import SIGNIFICANT, least_squares
from .kv_cache import Shape
from .launches import Launch, column, release
from .uncertain import UNKNOWN, exact, is_known, nominal, stderr
from .units import printed_half_widths

_ROOT3 = math.sqrt(3)


@dataclass(frozen=True)
class RequestCost:
    """Bytes of a request of L tokens beside a budget of B: fixed + per_token*L + per_budget*B.

    ``lengths`` are the max_model_len launched, tokens. With a single one ``per_token`` is unknown
    and ``fixed`` is the cost of a request of that length.
    """

    fixed: UFloat
    per_token: UFloat
    per_budget: UFloat
    lengths: tuple[int, ...]

    @property
    def terms(self) -> list[tuple[UFloat, str]]:
        """The known terms and what each is for; with a single length the first is the whole cost."""
        if not is_known(self.per_token):
            rest = [(self.fixed, f"for {self.lengths[0]:,} tokens")]
        else:
            rest = [(self.fixed, "whatever its length"), (self.per_token, "per token of its length")]
        return rest + [(self.per_budget, "per token of mnbt")] * (self.per_budget.n != 0)

    def to_dict(self) -> dict:
        """Bytes, null where unknown."""
        names = ("fixed", "per_token", "per_budget")
        return {**{name: nominal(getattr(self, name)) for name in names},
                "stderr": {name: stderr(getattr(self, name)) for name in names},
                "lengths": list(self.lengths)}

    def at(self, length: int) -> UFloat | None:
        """Bytes at B = 0 of a request of ``length`` tokens, or of the longest one above it.

        Cost rises ever more slowly with length, so the line is an upper limit below the shortest
        length launched, and a single length is one for shorter requests. None where that limit
        could be more than twice the cost, or where the request is longer than the only length.
        """
        if is_known(self.per_token):
            return self.fixed + self.per_token * length
        return self.fixed if length <= self.lengths[0] <= 2 * length else None


def is_hybrid(launches: list[Launch], shape: Shape | None) -> bool:
    """Whether a request costs something else than its length times the bytes of a token.

    So says the log (``hybrid_kv``), the config, or a printed concurrency more than 2 % away from
    tokens / max_model_len, as before 0.20.2.
    """
    return bool(shape and shape.hybrid) or any(
        "hybrid_kv" in launch.warnings or _whole_requests(launch) and launch.max_concurrency
        and abs(_whole_requests(launch) - launch.max_concurrency) > (
            0.0101 + 0.02 * launch.max_concurrency) for launch in launches)


def _whole_requests(launch: Launch) -> float | None:
    """tokens / max_model_len, None where one is not given."""
    tokens, length = launch.kv_cache_tokens, launch.max_model_len
    return tokens / length if tokens and length else None


def _concurrency(launch: Launch) -> tuple[float, float] | None:
    """Requests of max_model_len that the pool holds, and half of their printed unit.

    From 0.20.2 on the printed tokens are concurrency x max_model_len: the same figure, finer.
    """
    finer, printed = _whole_requests(launch), launch.max_concurrency
    if finer and (abs(finer - printed) <= 0.0051 if printed
                  else release(launch.vllm_version) >= (0, 20, 2)):
        return finer, 0.5 / launch.max_model_len
    return (printed, 0.005) if printed and launch.max_model_len else None


def fit_request_cost(launches: list[Launch]) -> RequestCost | None:
    """The cost of a request, by least squares over the launches; None where none tells one.

    c is kept where it is needed to explain the launches within their printed units.
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
    columns = {"fixed": np.ones(len(cost))}
    if np.ptp(lengths) > 0:
        columns["per_token"] = lengths
    fit = _fitted(columns, cost, unit)
    if np.ptp(budgets) > 0 and np.any(np.abs(cost - _predicted(fit, columns)) > unit * (1 + 1e-6)):
        wider = _fitted(columns | {"per_budget": budgets}, cost, unit)
        if wider and wider["per_budget"].n > SIGNIFICANT * wider["per_budget"].s:
            fit = wider
    return RequestCost(fit["fixed"], fit.get("per_token", UNKNOWN), fit.get("per_budget", exact(0)),
                       tuple(sorted({int(length) for length in lengths})))


def _fitted(columns: dict, cost: np.ndarray, unit: np.ndarray) -> dict[str, UFloat] | None:
    design = np.column_stack(list(columns.values()))
    if np.linalg.matrix_rank(design / np.abs(design).max(axis=0)) < design.shape[1]:
        return None
    fit = least_squares(design, cost, unit / _ROOT3)
    scale_up = max(1.0, fit.chi2 / fit.dof) if fit.dof > 0 else 1.0
    return dict(zip(columns, correlated_values(fit.params, fit.covariance * scale_up)))


def _predicted(fit: dict[str, UFloat], columns: dict) -> np.ndarray:
    return sum(fit[name].n * values for name, values in columns.items())
