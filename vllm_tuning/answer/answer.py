"""Launches to an answer: the method's numbers with the sentences that belong to them."""

from dataclasses import dataclass, field, replace

from ..budget import expected_slopes
from ..diagnosis import (
    ABOUT_THE_ANSWER,
    NextLaunch,
    Notice,
    about_the_answer,
    about_the_model,
    check_launches,
    cold_start_takes,
    missing_reasons,
    next_launches,
    no_estimate,
    no_recommendation,
    not_used,
    notices,
    of_one_kind,
    refuse_falling_peaks,
    starts_cold_first,
    tokens_alone,
)
from ..known import LLAMA_3_8B, Known, Slopes, known_beside
from ..kv_cache import Shape, cost_of_request, is_hybrid
from ..launch import Launch, first_known, grouped
from ..memory_model import MemoryModel, fit_routes, most_certain, usable, usual
from ..optimum import Optimum, longest_request, solve
from ..readings import kv_per_token
from ..units import UNKNOWN, InputError
from ..workload import Workload


@dataclass(frozen=True)
class Asked:
    """The server that an answer is for, where it is not that of most launches; bytes of one GPU."""

    gpu_memory_utilization: float | None = None
    total_memory: float | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Fit(MemoryModel):
    """A memory model, why parameters are unknown, which launch would identify them, warnings.

    ``cold_takes``: bytes that a cold start leaves less than a warm one, where both are on record.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    next_launches: tuple[NextLaunch, ...] = ()
    notices: tuple[Notice, ...] = ()
    cold_takes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Answer(Optimum):
    """An optimum whose ``reason`` (and the method's) is a sentence, with warnings."""

    model: Fit
    notices: tuple[Notice, ...] = ()


def fit_memory_model(
    launches: list[Launch], shape: Shape | None = None, asked: Asked | None = None
) -> Fit:
    """Fit the memory model to any number of launches.

    shape: what config.json says of the model, used where the launches do not contradict it; asked:
    the server that the answer is for. Raises InputError where launches contradict each other; what
    they do not identify is NaN, with the reason and the next launch that would.
    """
    asked = asked or Asked()
    if asked.total_memory:
        launches = [
            replace(launch, total_memory=launch.total_memory or asked.total_memory)
            for launch in launches
        ]
    used, others = usable(launches)
    cold_takes = cold_start_takes(used)
    used, warnings = of_one_kind(used)
    warnings = [*not_used(others), *warnings]
    if not used:
        return _diagnosed(MemoryModel(), warnings)
    utilization, dtype, block_size = (
        getattr(asked, name) or usual(used, name)
        for name in ("gpu_memory_utilization", "kv_cache_dtype", "block_size")
    )
    hybrid = is_hybrid(used, shape)
    warnings += [
        *check_launches(used, hybrid, asked.gpu_memory_utilization),
        *notices(used, ABOUT_THE_ANSWER),
    ]
    known = shape.kv_bytes_per_token if shape else None
    kappas = {
        each: UNKNOWN if hybrid else kv_per_token(alike, known if each in (None, dtype) else None)
        for each, alike in grouped(used, "kv_cache_dtype").items()
    }
    kappa = kappas.get(dtype, kappas.get(None))
    if kappa is None:
        raise InputError(
            f"no launch has kv_cache_dtype {dtype}; those here: {', '.join(map(str, kappas))}"
        )
    if known and not hybrid and kappa.n != known:
        warnings.append(
            Notice(
                "config_disagrees",
                f"config.json gives {known:,.0f} bytes of KV cache a token, the launches "
                f"{kappa.n:,.0f}: another model's, and nothing of it is used.",
            )
        )
        shape = None
    slopes = _slopes(used, shape)
    models = fit_routes(
        used,
        kappas,
        _known(used, shape, slopes),
        slopes=slopes or LLAMA_3_8B,
        gpu_memory_utilization=utilization,
        kv_cache_dtype=dtype,
        block_size=block_size or 16,
        lookahead=first_known(used, "speculative_tokens", 0),
        kv_per_token=kappa,
    )
    if not models:
        return _diagnosed(MemoryModel(), warnings, tokens_alone(hybrid))
    for model in models:
        refuse_falling_peaks(model)
    model = most_certain(models)
    if hybrid:
        cost, disagreement = cost_of_request(used, shape, block_size or 16)
        warnings += [disagreement] if disagreement else []
        model = replace(model, hybrid=True, request_cost=cost)
    return replace(_diagnosed(model, warnings), cold_takes=cold_takes)


def _slopes(used: list[Launch], shape: Shape | None) -> Slopes | None:
    """K1, K2 and k to expect by config.json; None where it does not say."""
    config = shape.config if shape else None
    if config is None or config.optional("vocab_size") is None:
        return None
    most = max(launch.max_num_seqs or 1 for launch in used)
    runner = first_known(used, "model_runner")
    return expected_slopes(config, used[0].vllm_version, most, runner)


def _known(used: list[Launch], shape: Shape | None, slopes: Slopes | None) -> Known:
    """What is known beside the launches, by their records and by config.json."""
    if shape is None:
        return known_beside(used)
    hidden, config = shape.hidden_state_bytes, shape.config
    if config is None or slopes is None:
        return known_beside(used, hidden)
    most = slopes.k + config.multimodal * hidden
    return known_beside(used, hidden, most, config.count("vocab_size"), slopes)


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
    if found.recommended:
        warnings += starts_cold_first(found.recommended, model, model.cold_takes)
    if found.reason == "nothing_fits":
        warnings.append(Notice("negative_pool", f"{reason}."))
    method = replace(found.method, reason=no_estimate(found.method.reason))
    parts = vars(found) | {"reason": reason, "method": method}
    return Answer(**parts, notices=tuple(warnings))
