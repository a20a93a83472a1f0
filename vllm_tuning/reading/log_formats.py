"""The table of the lines that are read out of vLLM's log: a new release is a new row.

A row: where in a start-up the line stands, the words its message begins with, what follows, and the
releases that print it. In both texts a space stands for any white space or none (terminals wrap
there) and ``{name}`` for a figure: GiB with its unit (``{name~}`` where the unit stands elsewhere),
a count with thousands separators, a plain number, or text.
"""

import re
from typing import NamedTuple

from .log_text import CUT

SERVER, FLAGS, ENGINE, LOAD, PROFILE, POOL, LATE, ERROR, MARK = range(9)  # as a start-up goes


_GIB = frozenset(
    [
        "weights",
        "non_torch",
        "peak",
        "peak_torch",
        "peak_with_graphs",
        "consumed",
        "non_kv",
        "total",
        "requested",
        "kv",
        "kv_set",
        "kv_left",
        "graphs",
        "graphs_estimated",
    ]
)


_COUNTS = frozenset(
    [
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "tokens",
        "tokens_left",
        "blocks",
        "block_size",
        "hybrid_block",
        "override",
        "fit_bytes",
        "kv_bytes",
    ]
)


_NUMBERS = frozenset(("utilization", "concurrency"))


class Format(NamedTuple):
    """One line of vLLM."""

    stage: int
    anchor: re.Pattern
    pattern: re.Pattern
    releases: str


def figure(name: str, text: str):
    """The figure of that name: a float of GiB, a count, a plain number, or the text itself."""
    if name in _COUNTS:
        return int(text.replace(",", ""))
    return float(text) if name in _GIB or name in _NUMBERS else text


def _group(match: re.Match) -> str:
    name, bare = match.groups()
    if name in _COUNTS:
        return rf"(?P<{name}>\d{{1,15}}(?:,\d{{3}}){{0,4}}+)(?![\d,.]*{CUT})(?!,?\d)"
    if name in _GIB:
        return rf"(?P<{name}>-?\d{{1,9}}(?:\.\d+)?)" + ("" if bare else r"\s*Gi?B")
    if name in _NUMBERS:
        return rf"(?P<{name}>\d{{1,9}}+(?:\.\d++)?)(?!\.?\d|\.?{CUT})"
    if name == "exact":
        return r"(?P<exact>\{[^{}]*\})"
    if name in ("flags", "command"):
        return rf"(?P<{name}>.*)"
    return rf"(?P<{name}>[\w.+-]++)(?!{CUT})"


def _format(stage: int, anchor: str, rest: str, releases: str) -> Format:
    anchor, rest = (
        re.sub(r"\{(\w+)(~?)\}", _group, text).replace(" ", r"\s*") for text in (anchor, rest)
    )
    whole = re.compile(f"(?:{anchor}){rest}", re.DOTALL)
    return Format(stage, re.compile(anchor), whole, releases)


# the words after which a server is lost, whether it exits or not
FATAL = (
    "EngineCore failed to start|WorkerProc failed to start|"
    "Engine core initialization failed|Engine process failed to start"
)


FORMATS = tuple(
    _format(*row)
    for row in (
        # what the server was asked for
        (SERVER, "vLLM API server version", " {version}", "0.4.3 -"),
        (SERVER, "█  version", " {version}", "0.18 -"),
        (SERVER, r"args: Namespace\(", "{flags}", "0.4.3 - 0.9"),
        (SERVER, "non-default args:", " {flags}", "0.9 -"),
        (
            SERVER,
            r"vllm serve (?=[\w./-])|vllm\.entrypoints\.openai\.api_server (?=-)",
            "{command}",
            "a shell's echo",
        ),
        (
            FLAGS,
            "Setting max_num_batched_tokens to|Defaulting max_num_batched_tokens to",
            " {max_num_batched_tokens} for",
            "0.6.6 -",
        ),
        (
            FLAGS,
            "Setting max_num_seqs to|Defaulting max_num_seqs to",
            " {max_num_seqs} for",
            "0.8 -",
        ),
        (
            FLAGS,
            "Chunked prefill is enabled with max_num_batched_tokens=",
            r" {max_num_batched_tokens}\.",
            "0.4.3 -",
        ),
        (FLAGS, "Using max model len", r" {max_model_len}(?= \Z)", "0.9 -"),
        (
            FLAGS,
            "Setting attention block size to",
            " {hybrid_block} tokens to ensure that attention",
            "0.10 -",
        ),
        (
            FLAGS,
            "Setting attention block size to|Setting kv cache block size to",
            " {block_size} (?:for|tokens so)",
            "0.18 -",
        ),
        (
            ENGINE,
            "Initializing an? (?:V[01] )?LLM engine",
            r" (?:\(v(?P<version>[^\s()]+)\))? with config: {flags}",
            "0.4.3 -",
        ),
        # what each rank measured
        (LOAD, "worker init memory snapshot:", ".*? total_memory={total}", "0.14 - (DEBUG)"),
        (LOAD, "Loading model weights took", " (?:in total )?{weights}", "0.4.3 - 0.7"),
        (LOAD, "Model loading took", " {weights}", "0.8 -"),
        (
            PROFILE,
            "Memory profiling results:",
            r"(?: duration=[\d.]+ seconds,?)? total_gpu_memory={total},? initial_memory_usage=[\d.]+ GiB,?"
            r" peak_torch_memory={peak_torch},? memory_usage_post_profile=[\d.]+ GiB,?"
            r" non_torch_memory={non_torch},? kv_cache_size={kv},? gpu_memory_utilization={utilization}",
            "0.6.4",
        ),
        (
            PROFILE,
            "the current vLLM instance can use total_gpu_memory",
            r" \({total}\) x gpu_memory_utilization \({utilization}\) = {requested}",
            "0.6.5 - 0.10 (V0)",
        ),
        (
            PROFILE,
            "model weights take",
            " {weights}; non_torch_memory takes {non_torch}; PyTorch activation peak memory takes {peak};"
            " the rest of the memory reserved for KV Cache is {kv}",
            "0.6.5 - 0.10 (V0)",
        ),
        (
            PROFILE,
            "Initial free memory:",
            r" [\d.]+ GiB, free memory: [\d.]+ GiB, requested GPU memory: {requested}",
            "0.9.2 (DEBUG)",
        ),
        (
            PROFILE,
            "Initial free memory:",
            r" [\d.]+ GiB; Requested memory: {utilization} \(util\), {requested}",
            "0.10 - (DEBUG)",
        ),
        (
            PROFILE,
            r"Memory profiling takes [\d.]+ seconds\. Total non KV cache memory:",
            " {non_kv}; torch peak memory increase: {peak}; non-torch forward increase memory:"
            " {non_torch}; weights memory: {weights}",
            "0.9.2 - 0.27 (DEBUG)",
        ),
        (
            PROFILE,
            r"Memory profiling takes [\d.]+ seconds\. Total non KV cache memory:",
            r" {non_kv}; torch peak memory increase: {peak}; total consumed \(from mem_get_info\):"
            " {consumed}; weights memory: {weights}",
            "0.28 - (DEBUG)",
        ),
        (PROFILE, "Available KV cache memory:", " {kv}", "0.9.1 -"),
        (
            PROFILE,
            r"Initial free memory [\d.]+ GiB, reserved",
            " {kv_set} memory for KV Cache as specified by kv_cache_memory_bytes",
            "0.10.2 -",
        ),
        (
            PROFILE,
            "Explicitly set",
            r" \({kv_set~}/{total~}\) GiB for KV cache on node",
            "0.20 - (CPU)",
        ),
        (
            PROFILE,
            "Auto set",
            r" \({kv~}/{total~}\) GiB for KV cache on node \d+, with {requested}"
            " requested memory",
            "0.20 - (CPU)",
        ),
        (
            PROFILE,
            "Free device memory:",
            r" [\d.]+ GiB, [\d.]+ GiB usable"
            r" \(gpu_memory_utilization={utilization}\), [\d.]+ [GMK]iB reserved for HPUGraphs"
            r" \([^)]*\), {kv} reserved for KV cache",
            "0.6.4 - 0.9 (HPU)",
        ),
        (PROFILE, "vllm_tuning figures, profiled:", " {exact}", "0.6 - (launching/plugin.py)"),
        (PROFILE, "Estimated CUDA graph memory:", " {graphs_estimated} total", "0.18 -"),
        (
            PROFILE,
            "CUDA graph memory profiling is enabled",
            "(?P<charged>)(?:.*?-gpu-memory-utilization={utilization})?",
            "0.18 -",
        ),
        (
            PROFILE,
            "CUDA graph memory profiling is disabled|CUDA graph memory profiling will be enabled",
            "(?P<uncharged>)(?:.*?-gpu-memory-utilization from {utilization})?",
            "0.18 -",
        ),
        # what the engine made of it
        (
            POOL,
            r"Overriding num_gpu_blocks=(?!0\D)\d+ with",
            r" num_gpu_blocks_override={override}(?= \Z)",
            "0.4.3 -",
        ),
        (
            POOL,
            r"# (?P<device>(?!CPU)[A-Za-z]+) blocks:",
            r" {blocks}(?= [,;]| \Z)",
            "0.4.3 - 0.10",
        ),
        (
            POOL,
            "KV cache size:",
            " {tokens} tokens"
            r"(?:, Maximum concurrency for {max_model_len} tokens per request: {concurrency}x)?",
            "0.8 -, one line from 0.28",
        ),
        (
            POOL,
            "Maximum concurrency for",
            " {max_model_len} tokens per request: {concurrency}x",
            "0.6.2 - 0.27",
        ),
        (POOL, "Auto-fit max_model_len: reduced from", r" \d+ to {max_model_len} to fit", "0.14 -"),
        (
            POOL,
            r"Add \d+ padding layers|Hybrid KV cache manager is disabled for this hybrid model",
            "(?P<hybrid>)",
            "0.9.2 -",
        ),
        (
            POOL,
            "vllm cache_config_info with initialization after num_gpu_blocks is:",
            r" {blocks}(?= \Z)",
            "0.9 - (DEBUG)",
        ),
        (LATE, "Graph capturing finished in", r" [\d.]+ secs(?:\.|, took {graphs})", "0.6.6 -"),
        (
            LATE,
            "CUDA graph pool memory:",
            r" {graphs} \(actual\), {graphs_estimated} \(estimated\)",
            "0.18 -",
        ),
        (
            LATE,
            "Free memory on device",
            r" \([\d.]+/{total}\) on startup\. Desired GPU memory"
            r" utilization is \({utilization}, {requested}\)\. Actual usage is {weights} for weight,"
            r" {peak} for peak activation, {non_torch} for non-torch memory, and {graphs} for CUDAGraph"
            r" memory(?:.*?--kv-cache-memory={fit_bytes}`)?"
            r"(?:.*?Current kv cache memory in use is {kv_bytes} bytes)?",
            "0.10.2 - 0.27",
        ),
        (
            LATE,
            "Free memory on device",
            r" \([\d.]+/{total}\) on startup\. Desired GPU memory"
            r" utilization is \({utilization}, {requested}\)\. Actual usage is {consumed} for consumed"
            r" memory \(weights \+ non-torch\), {peak_with_graphs} for peak activation, and {graphs} for"
            r" CUDAGraph memory(?:.*?--kv-cache-memory={fit_bytes}`)?",
            "0.28 -",
        ),
        (LATE, "vllm_tuning figures, ready:", " {exact}", "0.6 - (launching/plugin.py)"),
        # why it failed
        (ERROR, "No available memory for the cache blocks", "", "0.4.3 -"),
        (
            ERROR,
            "To serve at least one request with the model(?:'s|s's) max seq len",
            r" \({max_model_len}\), \([\d.]+ GiB KV cache is needed, which is larger than the available KV"
            r" cache memory \({kv_left}\)",
            "0.8 -",
        ),
        (
            ERROR,
            "The model's max seq len",
            r" \({max_model_len}\) is larger than the maximum number of"
            r" tokens that can be stored in KV cache \({tokens_left}\)",
            "0.4.3 - 0.10 (V0)",
        ),
        (
            ERROR,
            "Free memory on device",
            r" (?:\w+(?::\d+)? )?\([\d.]+/{total}\) on startup is less than"
            r" (?:desired GPU memory utilization \({utilization}, {requested}\))?",
            "0.9.2 -",
        ),
        (ERROR, "CUDA out of memory occurred when warming up", "", "0.8 -"),
        (ERROR, "Cannot auto-fit max_model_len", "", "0.14 -"),
        (ERROR, "Error in memory profiling", "", "0.4.3 -"),
        (ERROR, r"max_num_batched_tokens \(\d+\) (?:must be|is smaller)", "", "0.4.3 -"),
        (ERROR, r"User-specified max_model_len \(\d+\) is greater", "", "0.4.3 -"),
        (MARK, "Error: |Exception: ", "(?P<generic>)", "any"),
        (MARK, FATAL, "(?P<fatal>)", "0.6 -"),
        (MARK, r"Traceback \(most recent call last\)", "(?P<traceback>)", "any"),
        (
            MARK,
            "The above exception was the direct cause|During handling of the above exception",
            "(?P<chained>)",
            "any",
        ),
        (MARK, "Application startup complete", "(?P<serving>)", "any"),
        (MARK, "Sequence group \\S+ is preempted by", "(?P<preempted>)", "0.4.3 - 0.10 (V0)"),
    )
)


ANCHORS = re.compile(
    "|".join(dict.fromkeys(re.sub(r"\(\?P<\w+>", "(?:", row.anchor.pattern) for row in FORMATS))
)
