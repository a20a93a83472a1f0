"""The sentence behind each short name under ``warnings`` of a launch."""

from dataclasses import dataclass
from pathlib import Path

from ..launch import Launch


@dataclass(frozen=True)
class Notice:
    """A short name for machines (``beyond_max_model_len``) and the sentence for people."""

    name: str
    text: str


ABOUT_THE_ANSWER = {
    "block_size_assumed": (
        "The block size is not printed; 16 was taken. If the server ran with another --block- "
        "size, kv_cache_tokens is wrong by that factor."
    ),
    "defaults_assumed": (
        "max_num_seqs or gpu_memory_utilization was not given: the release's default was taken, "
        "where release and device decide it."
    ),
    "graph_estimate_not_charged": (
        "The estimate for CUDA graphs was printed but not taken from the pool: real graphs come "
        "on top of the utilization. Releases before 0.20 and "
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 do so."
    ),
    "negative_non_torch": (
        "Memory outside torch shrank while profiling: sleep mode, or another process left the "
        "GPU. Launch again on an idle GPU, without sleep mode."
    ),
    "persisted_startup_plan": (
        "The pool was taken from an earlier start (VLLM_ENABLE_STARTUP_PLAN), not measured: start "
        "without it to measure."
    ),
    "preempted": (
        "Requests were preempted while serving: the pool was too small for max_num_seqs."
    ),
    "ranks_differ": (
        "The ranks did not measure the same: the figures are those of the rank that limits the "
        "pool."
    ),
    "speculative_decoding": (
        "Speculative decoding multiplies the sampler's rows: max_num_seqs costs more than "
        "without it."
    ),
}
ABOUT_A_FIGURE = {
    "activation_not_printed": (
        "The log does not hold the peak activation. VLLM_LOGGING_LEVEL=DEBUG prints it from "
        "0.9.2 on; INFO does from 0.26 on, and in the V0 engine of 0.6.4 to 0.10. The KV-only "
        "route works without it, from kv_cache_gib or kv_cache_tokens of launches that differ in "
        "max_num_seqs and max_num_batched_tokens."
    ),
    "balance_does_not_close": (
        "Total x utilization - weights - non_torch - graphs - activation is not the printed "
        "pool: one of the figures counts something else. The KV-only route does not use them."
    ),
    "blocks_overridden": (
        "num_gpu_blocks_override replaced the measured number of blocks: kv_cache_gib is the "
        "measured pool, kv_cache_tokens the overridden one. Start without it to measure."
    ),
    "derived_kv_cache": (
        "The pool of the rank that limits it is not printed as such: it is requested memory - "
        "non-KV memory - charged graphs."
    ),
    "derived_kv_cache_tokens": (
        "The log counts blocks: kv_cache_tokens is their number times the block size."
    ),
    "derived_non_torch": (
        "From 0.28 on the log prints consumed memory: non_torch is consumed - weights."
    ),
    "derived_peak_activation": (
        "The printed peak holds something else too: the weights (0.6.4) or the charged graph "
        "estimate (0.28 on). They were subtracted."
    ),
    "derived_total_memory": ("The total is not printed: it is requested memory / utilization."),
    "exact_kv_cache": (
        "The pool is known to the byte: without graphs it is the --kv-cache-memory that the log "
        "proposes + 150 MiB."
    ),
    "exact_figures": (
        "The memory was counted to the byte, by the package's plugin or on a simulated device."
    ),
    "hybrid_kv": (
        "Layers of several kinds share the pool: a request costs a + b x length, not tokens x "
        "bytes. One more launch, with --max-model-len the length of your requests, tells the "
        "cost."
    ),
    "incomplete": (
        "The log ends before the pool was printed, and names no failure: give the whole start-up."
    ),
    "max_num_batched_tokens_not_printed": (
        "The log does not say max_num_batched_tokens, which a fit needs: give it as a flag at "
        "the next start, or fill in the column after read -o launches.csv."
    ),
    "max_num_seqs_not_printed": (
        "The log does not say max_num_seqs, which a fit needs unless it is one in all launches: "
        "give it as a flag at the next start, or fill in the column after read -o launches.csv."
    ),
    "negative_kv_cache": (
        "Nothing was left for the pool and the launch failed; the figure still measures what is "
        "missing. Raise gpu_memory_utilization, or lower max_num_seqs, max_num_batched_tokens or "
        "the weights."
    ),
    "older_format": (
        "This release never prints the activation or non_torch (up to 0.6.3, and V1 of 0.8 to "
        "0.9.0). The KV-only route works with kv_cache_tokens; the four-launch formula needs "
        "another release, or VLLM_USE_V1=0 from 0.8 to 0.9."
    ),
    "profiling_skipped": (
        "The pool was set by hand (kv_cache_memory_bytes), not measured: this launch says "
        "nothing about activation. Start without it to measure."
    ),
}


def notices(launches: list[Launch], known: dict[str, str]) -> list[Notice]:
    """One for each warning of the launches: where, and its sentence in ``known``.

    Others are passed over, except that a figure could not be read.
    """
    places: dict[str, list[str]] = {}
    for launch in launches:
        for name in launch.warnings:
            places.setdefault(name, []).append(Path(launch.where).name)
    return [
        Notice(name, f"{_listed(where)}: {sentence}")
        for name, where in places.items()
        if (sentence := _sentence(name, known))
    ]


def _sentence(name: str, known: dict[str, str]) -> str | None:
    if name.startswith("unreadable_"):
        return (
            f"{name.removeprefix('unreadable_')} stands in the log, but its line is cut or "
            "wrapped beyond repair and could not be read. Give the log as the server wrote it."
        )
    return known.get(name)


def _listed(places: list[str]) -> str:
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
