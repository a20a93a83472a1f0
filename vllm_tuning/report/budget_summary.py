"""The memory budget before any launch: its parts, the pool, and the three knobs."""

import math

from ..budget import Capacity, equivalent_utilization, quantization, tokens_per_percent
from ..units import GIB
from .summary import Cell, Flags, Paragraph, Part, Summary, Table

_PARTS = {
    "weights": "weights",
    "non_torch": "CUDA context, NCCL",
    "activation": "peak activation",
    "cuda_graphs": "CUDA graphs",
}


def capacity_summary(found: Capacity) -> Summary:
    """The budget with its 90 % bands, what a request costs, what the pool holds, the knobs."""
    pool, blocks = found.pool, found.blocks
    parts = _budget(found)
    parts += [Paragraph("What a request of L tokens costs", "heading"), Paragraph(_cost(found))]
    if pool is None or blocks is None:
        costs = "No GPU given (--gpu, --gpu-memory, or --kv-cache-gib): costs only."
        return Summary(*parts, Paragraph(costs))
    parts.append(Paragraph("What the pool holds", "heading"))
    if "nothing_fits" in found.cautions:
        lacking = -pool.value
        missing = f"{lacking / GIB:.2f} GiB are missing" if lacking > 0 else "no block fits"
        nothing = (
            f"Nothing: {missing}. Split the model (--tensor-parallel-size), make its weights "
            "smaller, or raise --utilization."
        )
        return Summary(*parts, Paragraph(nothing, "warning"))
    return Summary(
        *parts, *_pool(found, pool.value, blocks), *_admitted(found, pool), *_knobs(found)
    )


def _budget(found: Capacity) -> list[Part]:
    budget, pool = found.budget, found.pool
    if budget is None or pool is None:
        return []
    rows = []
    for name, part in (*((_PARTS[part.name], part) for part in budget.parts), ("KV cache", pool)):
        charged = part.value or part.name != "cuda_graphs"
        rows.append(
            (
                Cell(name, part.source) if charged else f"{name} (not charged)",
                f"{part.value / GIB:.2f}",
                f"{part.low / GIB:.2f} to {part.high / GIB:.2f}" if part.spread else "",
            )
        )
    return [
        Paragraph(
            f"{budget.total_memory / GIB:.2f} GiB x utilization "
            f"{budget.gpu_memory_utilization:g} = {budget.requested / GIB:.2f} GiB for vLLM",
            "heading",
        ),
        Paragraph(
            f"with mns {found.profiled_seqs:,}, mnbt {found.max_num_batched_tokens:,}, vLLM "
            f"{found.vllm_version or '0.20.2 or later (not given)'}"
        ),
        Table(("", "GiB", "90 % band"), rows),
    ]


def _cost(found: Capacity) -> str:
    """``195.4 MiB + 24,576 L bytes``: what does not grow stands in MiB, and only where it is."""
    fixed = found.cache.fixed(found.max_num_batched_tokens)
    grows = f"{found.cache.per_token:,.0f} bytes x L"
    if not fixed:
        return f"{grows} of KV cache"
    kept = "windows, once full" if any(group.window for group in found.cache.groups) else "states"
    cost = f"{fixed / 2**20:,.1f} MiB ({kept}) + {grows} of KV cache"
    if not found.cache.state_blocks:
        return cost
    drafts = found.cache.speculative_tokens
    caching = "with" if found.cache.state_blocks > 1 + drafts else "without"
    assumed = "" if found.mode_told else " (the release's default, assumed)"
    return f"{cost}, {caching} prefix caching{assumed}, {drafts} tokens drafted a step"


def _pool(found: Capacity, pool: float, blocks: int) -> list[Part]:
    concurrency = found.max_concurrency or 0.0
    parts: list[Part] = [
        Paragraph(
            f"{found.tokens(pool):,} tokens, {blocks:,} blocks of "
            f"{found.cache.block_bytes / 2**20:,.2f} MiB"
        ),
        Paragraph(
            f"{concurrency:,.2f} requests of max_model_len {found.max_model_len:,}: what "
            "the log calls maximum concurrency, the worst case, not a limit on users."
        ),
    ]
    if "launch_contradicts" in found.cautions:
        contradiction = (
            f"The launch printed {found.printed_tokens:,} tokens. Is it another model, a --dtype, "
            "speculative decoding, or does it lack --decode-context-parallel-size or "
            "--kv-cache-dtype here?"
        )
        parts.append(Paragraph(contradiction, "warning"))
    if "max_model_len_does_not_fit" in found.cautions:
        refused = (
            "vLLM will not start: one such request must fit. Set --max-model-len to at most "
            f"{found.longest_request:,}."
        )
        parts.append(Paragraph(refused, "warning"))
    return parts


def _admitted(found: Capacity, pool) -> list[Part]:
    """How many requests to let in, and the risk of that."""
    parts: list[Part] = []
    if found.request:
        fit, length = found.max_num_seqs(pool.value) or 0, found.request.length
        what = (
            f"so many fit when all have {length:,} tokens"
            if found.margin == 1
            else f"pool / {length:,} tokens (95th percentile) * {found.margin:g}"
        )
        parts.append(Flags([f"--max-num-seqs {fit}   # {what}"]))
        if pool.spread:
            low, high = found.max_num_seqs(pool.low), found.max_num_seqs(pool.high)
            parts.append(Paragraph(f"{low:,} to {high:,} in the band"))
        if "above_profiled_seqs" in found.cautions:
            more = (
                f"More than the mns {found.profiled_seqs:,} of the peak above: ask again with "
                "--max-num-seqs, for its peak takes from the pool."
            )
            parts.append(Paragraph(more))
    if found.risk:
        risk = (
            f"At {found.risk.max_num_seqs:,} the pool overflows with a probability of "
            f"{found.risk.probability:.1%} at a moment (requests drawn from the file, each step of "
            "their output as likely, independent of one another)."
        )
        parts.append(Paragraph(risk))
    return parts


def _knobs(found: Capacity) -> list[Part]:
    budget, pool = found.budget, found.pool
    if budget is None or pool is None:
        return []
    percent = tokens_per_percent(budget.total_memory, found.cache)
    more = f", {percent:,.0f} tokens of a long request" if math.isfinite(percent) else ""
    left = f"{budget.above_ceiling / GIB:.2f} GiB are left above the ceiling for all else"
    rows = [
        ("1 % of utilization", f"gives {budget.total_memory / 100 / GIB:.2f} GiB{more} ({left})")
    ]
    if found.cache_fp8 != found.cache:
        tokens = found.tokens(pool.value, found.cache_fp8)
        rows.append(("--kv-cache-dtype fp8", f"{tokens:,} tokens in the same pool"))
    weights, *_, graphs = budget.parts
    if not quantization(found.config):
        rows.append(("8-bit weights", f"up to {weights.value / 2 / GIB:.2f} GiB into the pool"))
    if graphs.value:
        same = equivalent_utilization(
            budget.gpu_memory_utilization, graphs.value, budget.total_memory
        )
        rows.append((f"utilization {same:.4f}", "gives back what CUDA graphs are charged"))
    estimated = (
        "Estimated from launches of H100 and A100, vLLM 0.9 to 0.19, of usual language models"
        + ("; " if found.fitted else ". For this card and release the band is assumed: ")
        + "a launch and its log (--launches) are better."
    )
    return [
        Paragraph("What buys more", "heading"),
        Table((), rows),
        *[Paragraph(estimated)] * bool(pool.spread),
    ]
