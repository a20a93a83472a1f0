"""The memory budget on a terminal, as in ``terminal``."""

import math

from ..budget import Capacity, equivalent_utilization, quantization, tokens_per_percent
from ..units import GIB
from .text import plain, wrapped

_PARTS = {
    "weights": "weights",
    "non_torch": "CUDA context, NCCL",
    "activation": "peak activation",
    "cuda_graphs": "CUDA graphs",
}


def capacity_text(found: Capacity, paint=plain) -> str:
    """The budget as a table with its 90 % bands, the costs, the pool and the three knobs."""
    cache, budget, pool = found.cache, found.budget, found.pool
    lines = []
    if budget:
        lines += [
            paint(
                f"{budget.total_memory / GIB:.2f} GiB x utilization "
                f"{budget.gpu_memory_utilization:g} = {budget.requested / GIB:.2f} GiB for "
                "vLLM",
                bold=True,
            ),
            *wrapped(
                f"with mns {found.profiled_seqs:,}, mnbt "
                f"{found.max_num_batched_tokens:,}, vLLM "
                f"{found.vllm_version or '0.20.2 or later (not given)'}",
                plain,
            ),
            "",
            f"  {'':<20}{'GiB':>9}{'90 % band':>24}",
        ]
        rows = [*((_PARTS[part.name], part) for part in budget.parts), ("KV cache pool", pool)]
        for name, part in rows:
            band = f"{part.low / GIB:.2f} to {part.high / GIB:.2f}" if part.spread else ""
            charged = part.value or part.name != "cuda_graphs"
            lines.append(
                f"  {name:<20}{part.value / GIB:>9.2f}{band:>24}  "
                f"{part.source if charged else 'not charged'}"
            )
    lines += ["", paint("What a request of L tokens costs", bold=True), f"  {_cost(found)}"]
    if pool is None:
        return "\n".join(
            [*lines, "", "  No GPU given (--gpu, --gpu-memory, or --kv-cache-gib): costs only."]
        )[1:]
    lines += ["", paint("What the pool holds", bold=True)]
    if found.blocks < 2:
        missing = f"{-pool.value / GIB:.2f} GiB are missing" if pool.value < 0 else "no block fits"
        return "\n".join(
            [
                *lines,
                *wrapped(
                    f"Nothing: {missing}. Split the model (--tensor-parallel-size), make its weights "
                    "smaller, or raise --utilization.",
                    paint,
                    fg="yellow",
                ),
            ]
        ).lstrip("\n")
    lines += [
        f"  {found.tokens(pool.value):,} tokens, {found.blocks:,} blocks of "
        f"{cache.block_bytes / 2**20:,.2f} MiB",
        *wrapped(
            f"{found.max_concurrency:,.2f} requests of max_model_len "
            f"{found.max_model_len:,}: what the log calls maximum concurrency, the worst "
            "case, not a limit on users.",
            plain,
        ),
    ]
    if found.contradicted:
        lines += wrapped(
            f"The launch printed {found.printed_tokens:,} tokens. Is it another model, "
            "a --dtype, speculative decoding, or does it lack "
            "--decode-context-parallel-size or --kv-cache-dtype here?",
            paint,
            fg="yellow",
        )
    if found.max_concurrency < 1:
        lines += wrapped(
            f"vLLM will not start: one such request must fit. Set --max-model-len to at "
            f"most {found.longest_request:,}.",
            paint,
            fg="yellow",
        )
    if found.request:
        fit, at = found.max_num_seqs(pool.value), found.request.length
        what = (
            f"so many fit when all have {at:,} tokens"
            if found.margin == 1
            else f"pool / {at:,} tokens (95th percentile) * {found.margin:g}"
        )
        lines.append(paint(f"  --max-num-seqs {fit}", bold=True, fg="green") + f"   {what}")
        if pool.spread:
            lines.append(
                f"  {found.max_num_seqs(pool.low):,} to {found.max_num_seqs(pool.high):,} "
                "in the band"
            )
        if max(fit, found.risk.max_num_seqs if found.risk else 0) > found.profiled_seqs and budget:
            lines += wrapped(
                f"More than the mns {found.profiled_seqs:,} of the peak above: ask "
                "again with --max-num-seqs, for its peak takes from the pool.",
                plain,
            )
    if found.risk:
        lines += wrapped(
            f"At {found.risk.max_num_seqs:,} the pool overflows with a probability of "
            f"{found.risk.probability:.1%} at a moment (requests drawn from the file, "
            "each step of their output as likely, independent of one another).",
            plain,
        )
    return "\n".join([*lines, *_knobs(found, paint)]).lstrip("\n")


def _cost(found) -> str:
    """``195.4 MiB + 24,576 L bytes``: what does not grow stands in MiB, and only where it is."""
    fixed = found.cache.fixed(found.max_num_batched_tokens)
    grows = f"{found.cache.per_token:,.0f} bytes x L"
    if not fixed:
        return f"{grows} of KV cache"
    kept = "windows, once full" if any(group.window for group in found.cache.groups) else "states"
    return f"{fixed / 2**20:,.1f} MiB ({kept}) + {grows} of KV cache"


def _knobs(found, paint) -> list[str]:
    budget = found.budget
    if not budget:
        return []
    lines = ["", paint("What buys more", bold=True)]
    percent = tokens_per_percent(budget.total_memory, found.cache)
    more = f", {percent:,.0f} tokens of a long request" if math.isfinite(percent) else ""
    lines += [
        f"  1 % of utilization     {budget.total_memory / 100 / GIB:.2f} GiB{more}",
        f"                         ({budget.above_ceiling / GIB:.2f} GiB are left above the "
        "ceiling for all else)",
    ]
    if found.cache_fp8 != found.cache:
        lines.append(
            f"  --kv-cache-dtype fp8   {found.tokens(found.pool.value, found.cache_fp8):,}"
            " tokens in the same pool"
        )
    weights, *_, graphs = budget.parts
    if not quantization(found.config):
        lines.append(
            f"  8-bit weights          up to {weights.value / 2 / GIB:.2f} GiB into the pool"
        )
    if graphs.value:
        same = equivalent_utilization(
            budget.gpu_memory_utilization, graphs.value, budget.total_memory
        )
        lines.append(f"  utilization {same:.4f}     gives back what CUDA graphs are charged")
    if found.pool.spread:
        lines += [
            "",
            *wrapped(
                "Estimated from launches of H100 and A100, vLLM 0.9 to 0.19, of usual "
                "language models; a launch and its log (--launches) are better.",
                plain,
            ),
        ]
    return lines
