"""What the launches do not identify: the reason, and the next launch that would."""

from ..launch import Launch
from ..memory_model import MemoryModel
from ..optimum import Optimum
from ..units import is_known
from .explanations import Notice

_AXIS = {"k1": "max_num_batched_tokens", "k2": "max_num_seqs"}
NOTHING_USED = (
    "no launch can be used: each needs max_num_seqs, max_num_batched_tokens and one of "
    "peak_activation_gib, kv_cache_gib, kv_cache_tokens"
)
_NO_ESTIMATE = {
    "left_over": "A = TM*U - M - N is not known: no launch has total_memory_gib, "
    "gpu_memory_utilization, model_weights_gib and non_torch_gib, or peak_activation_gib beside "
    "kv_cache_gib",
    "kappa": "KV/KVS is not known: no launch has both kv_cache_gib and kv_cache_tokens",
    "k1_launches": "K1 needs two launches in the model's branch that differ in "
    "max_num_batched_tokens, with peak_activation_gib",
    "k2_launches": "K2 needs two launches in the sampler's branch that differ in max_num_seqs, "
    "with peak_activation_gib",
    "k1_rounding": "K1 is not known: the peaks differ by no more than their rounding",
    "k2_rounding": "K2 is not known: the peaks differ by no more than their rounding",
    "hybrid": "layers of several kinds share the pool: KV/KVS is not the cost of a token",
}


def missing_reasons(model: MemoryModel) -> dict[str, str]:
    """Why each parameter that is NaN is not identified."""
    if not model.launches:
        return dict.fromkeys(("k1", "a1", "k2", "a2", "k"), NOTHING_USED)
    reasons = {}
    for slope, intercept in (("k1", "a1"), ("k2", "a2")):
        if value := model.unresolved.get(slope):
            reasons[slope] = (
                "the readings differ by no more than their rounding, so the slope with "
                f"{_AXIS[slope]} is not known ({value.n:,.0f} +- {value.s:,.0f} bytes)"
            )
            reasons[intercept] = f"{slope.upper()} is not known"
        elif not is_known(getattr(model, slope)):
            reasons[slope] = _missing_slope(model, slope)
            reasons[intercept] = f"{slope.upper()} is not known"
        elif not is_known(getattr(model, intercept)):
            reasons[intercept] = (
                "what weights and the driver leave over is not known: needs "
                "peak_activation_gib beside kv_cache_gib, or total_memory_gib, "
                "gpu_memory_utilization, model_weights_gib and non_torch_gib"
            )
    return reasons


def _missing_slope(model: MemoryModel, slope: str) -> str:
    axis = _AXIS[slope]
    branch = "model" if slope == "k1" else "sampler"
    other = "sampler" if slope == "k1" else "model"
    mine = [f.flags for f in model.launches if f.branch == branch]
    flags = {f.flags for f in model.launches}
    if len(flags) == 1 and len(model.launches) > 1:
        return "all launches have the same max_num_seqs and max_num_batched_tokens"
    if len(flags) == 1:
        return "one launch gives no slope"
    if slope == "k2" and not any(seqs for seqs, _ in flags):
        return "max_num_seqs is not given for any launch"
    if not mine:
        moved = len({getattr(f.launch, axis) for f in model.launches}) > 1
        return (
            f"no launch is in the {branch}'s branch: in all of them the {other} run sets the peak"
            + f", which does not move with {axis} beyond its rounding" * moved
        )
    values = {min(seqs or 1, tokens) if slope == "k2" else tokens for seqs, tokens in mine}
    return (
        f"the {branch}'s branch holds launches at one {axis} only "
        f"({', '.join(f'{value:,}' for value in sorted(values))})"
    )


def tokens_alone(hybrid: bool) -> str:
    """Why launches that print the pool in tokens only give no bytes."""
    return "kv_cache_tokens alone does not tell bytes: " + (
        "needs kv_cache_gib in each launch"
        if hybrid
        else "give --config config.json, or kv_cache_gib in one launch"
    )


def no_estimate(reason: str | None) -> str | None:
    """The sentence of ``FourLaunchEstimate.reason``."""
    return reason and _NO_ESTIMATE[reason]


def no_recommendation(optimum: Optimum, reasons: dict[str, str]) -> str | None:
    """The sentence of ``Optimum.reason``; ``reasons`` are those of ``missing_reasons``."""
    model, length = optimum.model, optimum.workload.length
    if optimum.reason in ("k1", "k2"):
        return f"{optimum.reason.upper()} is not known: {reasons[optimum.reason]}"
    if optimum.reason == "request_cost":
        cost = "layers of several kinds share the pool, so a request does not cost its length times"
        cost += " the KV cache of a token; "
        if model.request_cost is None:
            return cost + (
                "these launches do not give what it costs: give --config config.json (or, of a "
                "model without sliding windows, kv_cache_gib and max_concurrency of the four "
                f"launches at one max_model_len and of one more with --max-model-len {length})"
            )
        return cost + (
            f"the launches tell its cost at max_model_len {model.request_cost.lengths[0]:,} only: "
            f"launch once more with --max-model-len {length}"
        )
    sentences = {
        "kappa": "the KV cache of one token is not known: needs kv_cache_gib beside "
        "kv_cache_tokens in a launch, or --config config.json",
        "pool": "the pool is not known: no launch prints kv_cache_gib or kv_cache_tokens, and "
        "total_memory_gib, gpu_memory_utilization, model_weights_gib, non_torch_gib are not all "
        "given",
        "k_above_k1": "K1 is not above k: keeping a token's hidden state costs more than running "
        "the model on it; the launches contradict the law",
        "nothing_fits": f"not one request of {length:,} tokens fits the pool with 95 % confidence: "
        "raise gpu_memory_utilization or shorten the requests",
    }
    return optimum.reason and sentences[optimum.reason]


def not_used(others: list[tuple[Launch, tuple[str, ...]]]) -> list[Notice]:
    """Why launches are not in the fit: each with the names of what it lacks."""
    notices = []
    for launch, lacking in others:
        causes = ("profiling_skipped", "persisted_startup_plan", "blocks_overridden")
        by_hand = [n for n in launch.warnings if n in causes]
        names = [
            "any of peak_activation_gib, kv_cache_gib and kv_cache_tokens"
            if name == "reading"
            else name
            for name in lacking
        ]
        given = ", which a log names where it is given as a flag"
        remedy = given if set(lacking) - {"reading"} else ""
        why = (
            f"it failed: {launch.error or 'no reason given'}"
            if launch.status == "failed" and lacking
            else f"its pool was given, not measured ({', '.join(by_hand)})."
            if not launch.measured
            else f"it lacks {' and '.join(names)}{remedy}."
        )
        notices.append(Notice("launch_not_used", f"{launch.where}: not used, because {why}"))
    return notices
