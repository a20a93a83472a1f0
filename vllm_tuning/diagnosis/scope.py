"""What an answer takes for granted, and where it goes beyond the launches or the method's scope."""

from collections.abc import Iterator

from ..launch import KNOBS
from ..memory_model import FittedLaunch, MemoryModel
from ..optimum import Optimum, Recommended, longest_request
from ..units import GIB
from ..workload import Workload
from .explanations import Notice

MANY_STEPS = 8  # of one prompt, before a warning


def about_the_model(model: MemoryModel) -> list[Notice]:
    """What the fit assumes, and where the launches do not follow the law."""
    return [*_assumed(model), *poor_fit(model), *repeats_differ(model)] if model.launches else []


def about_the_answer(optimum: Optimum) -> list[Notice]:
    """Where the requests or the recommended flags leave the scope of the method or the launches."""
    notices = list(_requests(optimum.model, optimum.workload))
    if optimum.recommended:
        notices += _limits(optimum, optimum.recommended)
    return notices


def _assumed(model: MemoryModel) -> Iterator[Notice]:
    if model.k_source == "assumed 0" and any(f.branch == "sampler" for f in model.launches):
        yield Notice(
            "hidden_states_unknown",
            "k, the hidden states kept while the sampler runs, is taken as 0 in the fit: the "
            "launches do not tell it. The recommendation keeps room for up to 16 KiB a token. "
            "Give --config config.json (hidden size x bytes).",
        )
    if not any(fitted.launch.block_size for fitted in model.launches):
        yield Notice(
            "block_size_assumed",
            "No launch gives block_size: 16 tokens is taken, vLLM's default. With larger blocks a "
            "request takes more, and the answer can be too high.",
        )


def poor_fit(model: MemoryModel) -> Iterator[Notice]:
    """A notice where a launch is off the law by more than rounding explains."""
    worst = max(model.launches, key=lambda fitted: abs(fitted.residual))
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
        yield Notice(
            "request_cost_is_a_limit",
            f"Layers of several kinds share the pool. A request of {workload.length:,} "
            f"tokens is counted as one of {lengths[0]:,}, which is an upper limit: "
            "more may fit. To know, launch once more with --max-model-len "
            f"{workload.length}.",
        )
    longest = longest_request(model)
    if longest and workload.length > longest:
        yield Notice(
            "beyond_max_model_len",
            f"A request of {workload.length:,} tokens is longer than max_model_len "
            f"{longest:,} of the launches: vLLM would refuse it. Launch with "
            f"--max-model-len {workload.length}.",
        )


def _limits(optimum: Optimum, best: Recommended) -> Iterator[Notice]:
    seqs, tokens = optimum.max_num_seqs, optimum.max_num_batched_tokens
    if seqs is not None and tokens is not None and tokens.n < seqs.n:
        yield Notice(
            "mnbt_at_least_mns",
            "The branches meet at fewer tokens than requests, and vLLM refuses "
            "max_num_batched_tokens < max_num_seqs: solved on the edge where they are equal.",
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
