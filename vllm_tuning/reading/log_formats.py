"""The table of the lines that are read out of vLLM's log: a new release is a new row.

A row: where in a start-up the line stands, the releases that print it, the words its message begins
with, and what follows; the columns are two blanks apart, an indented line goes on with the last. In
both texts a space stands for any white space or none (terminals wrap there) and ``{name}`` for a
figure: GiB with its unit (``{name~}`` where the unit stands elsewhere), a count with thousands
separators, a plain number, or text.
"""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from .log_text import CUT
from .tables import COLUMNS

STAGES = ("SERVER", "FLAGS", "ENGINE", "LOAD", "PROFILE", "POOL", "LATE", "ERROR", "MARK")

SERVER, FLAGS, ENGINE, LOAD, PROFILE, POOL, LATE, ERROR, MARK = range(9)  # as a start-up goes


# what each figure is: as its column in launches.csv, and what stands in no column
KINDS = {column.attribute: column.kind for column in COLUMNS.values()}
KINDS |= dict.fromkeys(("peak_torch", "peak_with_graphs", "consumed", "non_kv"), "gib")
KINDS |= dict.fromkeys(("requested_memory", "kv_set", "kv_left"), "gib")
KINDS |= dict.fromkeys(("tokens_left", "hybrid_block", "override"), "count")
KINDS |= dict.fromkeys(("fit_bytes", "kv_bytes", "planned_bytes", "compile_end"), "count")


class Format(NamedTuple):
    """One line of vLLM."""

    stage: int
    anchor: re.Pattern
    pattern: re.Pattern
    releases: str


def figure(name: str, text: str):
    """The figure of that name: a float of GiB, a count, a plain number, or the text itself."""
    kind = KINDS.get(name)
    if kind == "count":
        return int(text.replace(",", ""))
    return float(text) if kind in ("gib", "number") else text


def _group(match: re.Match) -> str:
    name, bare = match.groups()
    kind = KINDS.get(name)
    if kind == "count":
        return rf"(?P<{name}>\d{{1,15}}(?:,\d{{3}}){{0,4}})(?![\d,.]*{CUT})(?!,?\d)"
    if kind == "gib":
        return rf"(?P<{name}>-?\d{{1,9}}(?:\.\d+)?)" + ("" if bare else r"\s*Gi?B")
    if kind == "number":
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

TABLE = r"""
# what the server was asked for
SERVER  0.4.3 -  vLLM API server version  {vllm_version}
SERVER  0.18 -  █ version  {vllm_version}
SERVER  0.4.3 - 0.9  args: Namespace\(  {flags}
SERVER  0.9 -  non-default args:  {flags}
SERVER  a shell's echo  vllm serve (?=[\w./-])|vllm\.entrypoints\.openai\.api_server (?=-) {command}
FLAGS  0.6.6 -  Setting max_num_batched_tokens to|Defaulting max_num_batched_tokens to
    {max_num_batched_tokens} for
FLAGS  0.8 -  Setting max_num_seqs to|Defaulting max_num_seqs to  {max_num_seqs} for
FLAGS  0.4.3 -  Chunked prefill is enabled with max_num_batched_tokens=  {max_num_batched_tokens}\.
FLAGS  0.9 -  Using max model len  {max_model_len}(?= \Z)
FLAGS  0.10 -  Setting attention block size to  {hybrid_block} tokens to ensure that attention
FLAGS  0.18 -  Setting attention block size to|Setting kv cache block size to
    {block_size} (?:for|tokens so)
ENGINE  0.4.3 -  Initializing an? (?:V[01] )?LLM engine
    (?:\(v(?P<vllm_version>[^\s()]+)\))? with config: {flags}
# what each rank measured
LOAD  0.14 - (DEBUG)  worker init memory snapshot:  .*? total_memory={total_memory}
LOAD  0.4.3 - 0.7  Loading model weights took  (?:in total )?{model_weights}
LOAD  0.8 -  Model loading took  {model_weights}
PROFILE  0.6.4  Memory profiling results:
    (?: duration=[\d.]+ seconds,?)? total_gpu_memory={total_memory},? initial_memory_usage=[\d.]+
    GiB,? peak_torch_memory={peak_torch},? memory_usage_post_profile=[\d.]+ GiB,?
    non_torch_memory={non_torch},? kv_cache_size={kv_cache},?
    gpu_memory_utilization={gpu_memory_utilization}
PROFILE  0.6.5 - 0.10 (V0)  the current vLLM instance can use total_gpu_memory
    \({total_memory}\) x gpu_memory_utilization \({gpu_memory_utilization}\) = {requested_memory}
PROFILE  0.6.5 - 0.10 (V0)  model weights take
    {model_weights}; non_torch_memory takes {non_torch}; PyTorch activation peak memory takes
    {peak_activation}; the rest of the memory reserved for KV Cache is {kv_cache}
PROFILE  0.9.2 (DEBUG)  Initial free memory:
    [\d.]+ GiB, free memory: [\d.]+ GiB, requested GPU memory: {requested_memory}
PROFILE  0.10 - (DEBUG)  Initial free memory:
    [\d.]+ GiB; Requested memory: {gpu_memory_utilization} \(util\), {requested_memory}
PROFILE  0.9.2 - 0.27 (DEBUG)  Memory profiling takes [\d.]+ seconds\. Total non KV cache memory:
    {non_kv}; torch peak memory increase: {peak_activation}; non-torch forward increase memory:
    {non_torch}; weights memory: {model_weights}
PROFILE  0.27.1 - (DEBUG)  Memory profiling takes [\d.]+ seconds\. Total non KV cache memory:
    {non_kv}; torch peak memory increase: {peak_activation}; total consumed \(from mem_get_info\):
    {consumed}; weights memory: {model_weights}
PROFILE  0.9.1 -  Available KV cache memory:  {kv_cache}
PROFILE  0.10.2 -  Initial free memory [\d.]+ GiB, reserved
    {kv_set} memory for KV Cache as specified by kv_cache_memory_bytes
PROFILE  0.26 -  Applying persisted startup plan
    \(fingerprint \w+\): kv_cache_memory_bytes={planned_bytes}
PROFILE  0.20 - (CPU)  Explicitly set  \({kv_set~}/{total_memory~}\) GiB for KV cache on node
PROFILE  0.20 - (CPU)  Auto set
    \({kv_cache~}/{total_memory~}\) GiB for KV cache on node \d+, with {requested_memory} requested
    memory
PROFILE  0.6.4 - 0.9 (HPU)  Free device memory:
    [\d.]+ GiB, [\d.]+ GiB usable \(gpu_memory_utilization={gpu_memory_utilization}\), [\d.]+
    [GMK]iB reserved for HPUGraphs \([^)]*\), {kv_cache} reserved for KV cache
PROFILE  0.6 - (the plugin)  vllm_tuning figures, profiled:  {exact}
PROFILE  0.18 -  Estimated CUDA graph memory:  {cuda_graph_estimated} total
PROFILE  0.18 -  CUDA graph memory profiling is enabled
    (?P<charged>)(?:.*?-gpu-memory-utilization={gpu_memory_utilization})?
PROFILE  0.18 -  CUDA graph memory profiling is disabled|CUDA graph memory profiling will be enabled
    (?P<uncharged>)(?:.*?-gpu-memory-utilization from {gpu_memory_utilization})?
# what the engine made of it
POOL  0.4.3 -  Overriding num_gpu_blocks=(?!0\D)\d+ with  num_gpu_blocks_override={override}(?= \Z)
POOL  0.4.3 - 0.10  # (?P<device>(?!CPU)[A-Za-z]+) blocks:  {num_gpu_blocks}(?= [,;]| \Z)
POOL  0.8 -, one line from 0.28  KV cache size:
    {kv_cache_tokens} tokens(?:, Maximum concurrency for {max_model_len} tokens per request:
    {max_concurrency}x)?
POOL  0.6.2 - 0.27  Maximum concurrency for  {max_model_len} tokens per request: {max_concurrency}x
POOL  0.14 -  Auto-fit max_model_len: reduced from  \d+ to {max_model_len} to fit
POOL  0.9.2 -  Add \d+ padding layers|Hybrid KV cache manager is disabled for this hybrid model
    (?P<hybrid>)
POOL  0.9 - (DEBUG)  vllm cache_config_info with initialization after num_gpu_blocks is:
    {num_gpu_blocks}(?= \Z)
LATE  0.6.6 -  Graph capturing finished in  [\d.]+ secs(?:\.|, took {cuda_graph})
LATE  0.18 -  CUDA graph pool memory:  {cuda_graph} \(actual\), {cuda_graph_estimated} \(estimated\)
LATE  0.10.2 - 0.27  Free memory on device
    \([\d.]+/{total_memory}\) on startup\. Desired GPU memory utilization is
    \({gpu_memory_utilization}, {requested_memory}\)\. Actual usage is {model_weights} for weight,
    {peak_activation} for peak activation, {non_torch} for non-torch memory, and {cuda_graph} for
    CUDAGraph memory(?:.*?--kv-cache-memory={fit_bytes}`)?(?:.*?Current kv cache memory in use is
    (?:{kv_bytes} bytes|{kv_cache}))?
LATE  0.27.1 -  Free memory on device
    \([\d.]+/{total_memory}\) on startup\. Desired GPU memory utilization is
    \({gpu_memory_utilization}, {requested_memory}\)\. Actual usage is {consumed} for consumed
    memory \(weights \+ non-torch\), {peak_with_graphs} for peak activation, and {cuda_graph} for
    CUDAGraph memory(?:.*?--kv-cache-memory={fit_bytes}`)?(?:.*?Current kv cache memory in use is
    {kv_cache})?
LATE  0.18 - (NPU)  Free memory on device
    \([\d.]+/{total_memory}\) on startup\. Desired GPU memory utilization is
    \({gpu_memory_utilization}, {requested_memory}\)\. Actual usage: {model_weights} for weights,
    {peak_activation} for peak activation, {non_torch} for non-torch memory, {cuda_graph} for NPU
    graph memory
LATE  0.6 - (the plugin)  vllm_tuning figures, ready:  {exact}
# why it failed
ERROR  0.4.3 -  No available memory for the cache blocks
ERROR  0.8 -  To serve at least one request with the model(?:'s|s's) max seq len
    \({max_model_len}\), \(?[\d.]+ GiB KV cache is needed, which is larger than the available KV
    cache memory \({kv_left}\)
ERROR  0.4.3 - 0.10 (V0)  The model's max seq len
    \({max_model_len}\) is larger than the maximum number of tokens that can be stored in KV cache
    \({tokens_left}\)
ERROR  0.9.2 -  Free memory on device
    (?:\w+(?::\d+)? )?\([\d.]+/{total_memory}\) on startup is less than (?:desired GPU memory
    utilization \({gpu_memory_utilization}, {requested_memory}\))?
ERROR  0.8 -  CUDA out of memory occurred when warming up
ERROR  0.14 -  Cannot auto-fit max_model_len
ERROR  0.4.3 -  Error in memory profiling
ERROR  0.4.3 -  max_num_batched_tokens \(\d+\) (?:must be|is smaller)
ERROR  0.4.3 -  User-specified max_model_len \(\d+\) is greater
MARK  any  memory allocation failed with OOM|CUDA out of memory\. Tried to allocate  (?P<oom>)
MARK  any  Error: |Exception: |OutOfResources:  (?P<generic>)
MARK  any  Traceback \(most recent call last\)  (?P<traceback>)
MARK  any  The above exception was the direct cause|During handling of the above exception
    (?P<chained>)
MARK  0.8 -  Compiling a graph for|Cache the graph
    (?P<compiled>)(?: compile range \(\d+, {compile_end}\))?
MARK  0.8 -  Directly load  (?P<compiled_before>)
MARK  0.22 -  Using V2 Model Runner  (?P<v2>)
MARK  any  Application startup complete  (?P<serving>)
MARK  0.4.3 - 0.10 (V0)  Sequence group \S+ is preempted by  (?P<preempted>)
"""


def _rows(table: str) -> Iterator[Format]:
    """The rows of the table, but for its comments."""
    for row in re.sub(r"\n +", "  ", table).splitlines():
        if row and not row.startswith("#"):
            stage, releases, anchor, *rest = row.split("  ")
            yield _format(STAGES.index(stage), anchor, " ".join(["", *rest]), releases)


@functools.cache  # compiling takes long, and a table of launches needs none of it
def formats() -> tuple[Format, ...]:
    """The lines that are read out of a log, those of ``TABLE`` and what ends a process."""
    return *_rows(TABLE), _format(MARK, FATAL, "(?P<fatal>)", "0.6 -")


@functools.cache
def anchors() -> re.Pattern:
    """The words that any of the lines begins with."""
    words = (re.sub(r"\(\?P<\w+>", "(?:", row.anchor.pattern) for row in formats())
    return re.compile("|".join(dict.fromkeys(words)))
