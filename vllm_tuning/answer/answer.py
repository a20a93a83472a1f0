"""Launches to an answer: the method's numbers with the sentences that belong to them."""

from dataclasses import dataclass, field, replace

from ..diagnosis import (
    ABOUT_THE_ANSWER,
    NextLaunch,
    Notice,
    about_the_answer,
    about_the_model,
    check_launches,
    missing_reasons,
    next_launches,
    no_estimate,
    no_recommendation,
    not_used,
    notices,
    refuse_falling_peaks,
    tokens_alone,
)
from ..kv_cache import Shape, cost_of_request, is_hybrid
from ..launch import Launch, first_known
from ..memory_model import MemoryModel, fit_routes, most_certain, usable
from ..optimum import Optimum, longest_request, solve
from ..readings import kv_per_token
from ..units import UNKNOWN
from ..workload import Workload


@dataclass(frozen=True, kw_only=True)
class Fit(MemoryModel):
    """A memory model, why parameters are unknown, which launch would identify them, warnings."""

    reasons: dict[str, str] = field(default_factory=dict)
    next_launches: tuple[NextLaunch, ...] = ()
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answer(Optimum):
    """An optimum whose ``reason`` (and the method's) is a sentence, with warnings."""

    model: Fit
    notices: tuple[Notice, ...] = ()


def fit_memory_model(launches: list[Launch], shape: Shape | None = None) -> Fit:
    """Fit the memory model to any number of launches.

    shape: what config.json says of the model (k, kappa), used where the launches alone do not.
    Raises InputError where launches contradict each other; what they do not identify is NaN, with
    the reason and the next launch that would.
    """
    used, others = usable(launches)
    warnings = not_used(others)
    if not used:
        return _diagnosed(MemoryModel(), warnings)
    hybrid = is_hybrid(used, shape)
    warnings += [*check_launches(used, hybrid), *notices(used, ABOUT_THE_ANSWER)]
    known = shape.kv_bytes_per_token if shape else None
    kappa = UNKNOWN if hybrid else kv_per_token(used, known)
    if known and not hybrid and kappa.n != known:
        warnings.append(
            Notice(
                "config_disagrees",
                f"config.json gives {known:,.0f} bytes of KV cache a token, the launches "
                f"{kappa.n:,.0f}: the launches are used.",
            )
        )
    block_size = first_known(used, "block_size", 16)
    hidden = shape.hidden_state_bytes if shape else None
    models = fit_routes(used, kappa, block_size, hidden)
    if not models:
        return _diagnosed(MemoryModel(), warnings, tokens_alone(hybrid))
    for model in models:
        refuse_falling_peaks(model)
    model = most_certain(models)
    if hybrid:
        cost, disagreement = cost_of_request(used, shape, block_size)
        warnings += [disagreement] if disagreement else []
        model = replace(model, hybrid=True, request_cost=cost)
    return _diagnosed(model, warnings)


def _diagnosed(model: MemoryModel, warnings: list[Notice], reason: str | None = None) -> Fit:
    reasons = missing_reasons(model)
    return Fit(
        **vars(model),
        reasons=dict.fromkeys(reasons, reason) if reason else reasons,
        next_launches=tuple(next_launches(model)) if model.launches else (),
        notices=(*warnings, *about_the_model(model)),
    )


def find_optimum(model: Fit, workload: Workload, chunked_prefill: bool = True) -> Answer:
    """The answer of a fit for a workload; what it cannot know is None with the reason.

    chunked_prefill: where it is off, vLLM refuses a token budget below max_model_len.
    """
    least_budget = 1 if chunked_prefill else longest_request(model) or workload.length
    found = solve(model, workload, least_budget)
    reason = no_recommendation(found, model.reasons)
    warnings = [*model.notices, *about_the_answer(found)]
    if found.reason == "nothing_fits":
        warnings.append(Notice("negative_pool", f"{reason}."))
    method = replace(found.method, reason=no_estimate(found.method.reason))
    parts = vars(found) | {"reason": reason, "method": method}
    return Answer(**parts, notices=tuple(warnings))
