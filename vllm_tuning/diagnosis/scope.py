"""What an answer takes for granted, and where it goes beyond the launches or the method's scope."""

from collections.abc import Iterator

from ..branches import SIGNIFICANT
from ..known import EQUAL_INTERCEPTS
from ..launch import KNOBS
from ..memory_model import FittedLaunch, MemoryModel
from ..optimum import Optimum, Recommended, budget_needed, longest_request
from ..readings import granule
from ..releases import samples_by_triton
from ..units import GIB, MIB, is_known
from ..workload import Workload
from .explanations import Notice

MANY_STEPS = 8  # of one prompt, before a warning


def about_the_model(model: MemoryModel) -> list[Notice]:
    """What the fit assumes, and where the launches do not follow the law."""
    return [*_assumed(model), *poor_fit(model), *repeats_differ(model)] if model.launches else []


def about_the_answer(optimum: Optimum) -> list[Notice]:
    """Where the requests or the recommended flags leave the scope of the method or the launches."""
    notices = list(_requests(optimum.model, optimum.workload))
    if optimum.recommended and optimum.reason == "request_cost":
        notices.append(_limit(optimum.workload, longest_request(optimum.model)))
    if optimum.recommended:
        notices += _limits(optimum, optimum.recommended)
    return notices


def _assumed(model: MemoryModel) -> Iterator[Notice]:
    launches = [fitted.launch for fitted in model.launches]
    sampler = [fitted for fitted in model.launches if fitted.branch == "sampler"]
    if model.k_source == "assumed" and sampler:
        yield Notice(
            "hidden_states_unknown",
            f"k, the hidden states kept while the sampler runs, is taken as {model.k.n:,.0f} +- "
            f"{model.k.s:,.0f} bytes a token, which is in the errors: the launches do not tell it. "
            "Give --config config.json (hidden size x bytes).",
        )
    if model.s_source == "assumed" and model.s.s:
        yield Notice(
            "memory_per_request_unknown",
            f"What the model runner keeps of a request is taken as {model.s.n / MIB:.2f} +- "
            f"{model.s.s / MIB:.2f} MiB, which is in the errors: the runner (V1 or V2) or the "
            "vocabulary is not on record. Give the logs, and --config config.json.",
        )
    if model.graph.s:
        yield Notice(
            "cuda_graphs_unknown",
            f"The estimate for CUDA graphs is not on record; up to {2 * model.graph.s / MIB:.0f} "
            "MiB for each size captured are in the errors. Give the logs or the column "
            "cuda_graph_estimated_gib (cuda_graph_gib 0 for an eager server).",
        )
    if not any(launch.block_size for launch in launches):
        yield Notice(
            "block_size_assumed",
            "No launch gives block_size: 16 tokens is taken, vLLM's default. With larger blocks a "
            "request takes more, and the answer can be too high.",
        )
    if model.assumed:
        yield Notice(
            "intercepts_assumed_equal",
            f"{model.assumed.upper()} rests on a1 = a2, within {EQUAL_INTERCEPTS} steps of memory: "
            "its branch does not move along its axis in these launches.",
        )
    if is_known(model.k1) and is_known(model.k2):
        if model.dof <= 0:
            yield Notice(
                "no_spare_launch",
                "As many parameters as launches: nothing checks the law, and the errors are those "
                "of the law on other servers. A fifth launch, near the recommended flags, does.",
            )
        step = max(granule(launch) for launch in launches)
        apart = model.pool_at_zero_tokens - model.pool_at_zero_requests
        if abs(apart.n) > max(SIGNIFICANT * apart.s, 1.5 * EQUAL_INTERCEPTS * step):
            yield Notice(
                "intercepts_differ",
                f"a2 - a1 is {apart.n / GIB:+.2f} GiB, where both runs start from about the same "
                "memory: a cold start, another process during a launch, or a kernel that takes "
                "another workspace at larger flags.",
            )
    if model.others:
        yield Notice(
            "branches_uncertain",
            f"{1 + len(model.others)} ways to split the launches into the two branches explain "
            "them about as well; the errors cover all. A launch far in each branch decides, and so "
            "can --config config.json.",
        )
    few = [f for f in sampler if (f.flags[0] or 128) < 128 and f.launch.vllm_version]
    if any(samples_by_triton(fitted.launch.vllm_version) is False for fitted in few):
        yield Notice(
            "sampler_bends",
            "Up to 0.16 the sampler is steeper below 128 requests: launch the first group at "
            "max_num_seqs 128 and more.",
        )
    for fitted in model.launches:
        if fitted.left_out:
            yield Notice(
                "off_the_line",
                f"{fitted.launch.where}: mnbt {fitted.flags[1]:,} is "
                f"{abs(fitted.residual) / GIB:.2f} GiB off the line of the others and left out: "
                "there the model run takes another workspace. Do not go beyond the others.",
            )


def poor_fit(model: MemoryModel) -> Iterator[Notice]:
    """A notice where a launch is off the law by more than rounding explains."""
    worst = max(
        (fitted for fitted in model.launches if not fitted.left_out),
        key=lambda fitted: abs(fitted.residual),
    )
    peaks = (
        [f.kv_cache for f in model.launches if f.kv_cache is not None]
        or [f.peak_activation for f in model.launches if f.peak_activation is not None]
        or [0.0]
    )
    if abs(worst.residual) > max(3 * model.unit, 0.01 * (max(peaks) - min(peaks))):
        yield Notice(
            "poor_fit",
            f"{worst.launch.where}: off the law by "
            f"{worst.residual / GIB:+.3f} GiB, more than rounding explains. The sampler of "
            "some releases is steeper for few requests: launch the first group at "
            "max_num_seqs >= 128, on an idle GPU.",
        )


def repeats_differ(model: MemoryModel) -> Iterator[Notice]:
    """A notice where launches with equal flags read further apart than rounding explains."""
    seen: dict[tuple, FittedLaunch] = {}
    for fitted in model.launches:
        first = seen.setdefault(fitted.flags, fitted)
        apart = abs(fitted.residual - first.residual)
        if apart > 3 * model.unit:
            unknown = " max_num_seqs is not given: does it differ?" * (fitted.flags[0] is None)
            yield Notice(
                "repeats_differ",
                f"{fitted.launch.where}: equal flags as {first.launch.where}, but "
                f"{apart / GIB:.2f} GiB apart.{unknown} So much varies from start to start, "
                "or something else was changed, or another process was on the GPU.",
            )


def starts_cold_first(best: Recommended, model: MemoryModel, takes: float | None) -> list[Notice]:
    """Where the answer is of warm starts: its flags compile at their first.

    takes: bytes that a cold start was seen to leave less, None where none was.
    """
    warm = [fitted.flags for fitted in model.launches if fitted.launch.cold_start is False]
    if not warm or (best.max_num_seqs, best.max_num_batched_tokens) in warm:
        return []
    less = "by about 1 GiB elsewhere, here not known"
    if takes is not None:
        less = f"by {takes / GIB:.2f} GiB as here, so {(best.kv_cache - takes) / GIB:.2f} GiB"
    return [
        Notice(
            "starts_cold_first",
            f"The first start of these flags compiles, and its pool is smaller ({less}): start "
            "them twice.",
        )
    ]


def _requests(model: MemoryModel, workload: Workload) -> Iterator[Notice]:
    if workload.input_len > 4 * workload.output_len:
        yield Notice(
            "input_much_longer_than_output",
            f"Input ({workload.input_len:,}) is much longer than output "
            f"({workload.output_len:,}): the method is made for equal lengths and for "
            "short input with long output. Prefill sets the pace here; measure it.",
        )
    lengths = model.request_cost.lengths if model.request_cost else ()
    if len(lengths) == 1 and workload.length < lengths[0]:
        yield _limit(workload, lengths[0])
    longest = longest_request(model)
    if longest and workload.length > longest:
        yield Notice(
            "beyond_max_model_len",
            f"A request of {workload.length:,} tokens is longer than max_model_len "
            f"{longest:,} of the launches: vLLM would refuse it. Launch with "
            f"--max-model-len {workload.length}.",
        )


def _limit(workload: Workload, length: int) -> Notice:
    return Notice(
        "request_cost_is_a_limit",
        f"Layers of several kinds share the pool. A request of {workload.length:,} tokens is "
        f"counted as one of {length:,}, which is an upper limit: more may fit. To know, launch "
        f"once more with --max-model-len {workload.length}, or give --config config.json.",
    )


def _limits(optimum: Optimum, best: Recommended) -> Iterator[Notice]:
    seqs, tokens = optimum.max_num_seqs, optimum.max_num_batched_tokens
    on_edge = best.max_num_batched_tokens <= 1.01 * best.max_num_seqs
    if on_edge and seqs is not None and tokens is not None and tokens.n < seqs.n:
        yield Notice(
            "mnbt_at_least_mns",
            "The branches meet at fewer tokens than requests, and vLLM refuses "
            "max_num_batched_tokens < max_num_seqs: solved on the edge where they are equal.",
        )
    needed = budget_needed(best.max_num_seqs, optimum.workload)
    if best.max_num_batched_tokens < needed:
        yield Notice(
            "budget_below_need",
            f"{best.max_num_seqs:,} such requests need {needed:,} tokens a step, prefill and "
            f"decoding together: {best.max_num_batched_tokens:,} throttle both. Launches at a "
            "larger max_num_batched_tokens would tell what it costs.",
        )
    steps = -(-optimum.workload.input_len // best.max_num_batched_tokens)
    if steps > MANY_STEPS:
        yield Notice(
            "prefill_in_many_steps",
            f"A prompt of {optimum.workload.input_len:,} tokens takes {steps} steps at "
            f"{best.max_num_batched_tokens:,} tokens a step, so its first token comes late. "
            "The price list says what a larger max_num_batched_tokens costs.",
        )
    for flag in KNOBS:
        value = getattr(best, flag)
        tried = [v for f in optimum.model.launches if (v := getattr(f.launch, flag))]
        if tried and not min(tried) <= value <= max(tried):
            yield Notice(
                "beyond_launches",
                f"{flag} {value:,} lies outside the launches ({min(tried):,} to "
                f"{max(tried):,}): extrapolated, so make a check launch there.",
            )
