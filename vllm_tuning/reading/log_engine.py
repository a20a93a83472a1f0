"""One engine's messages to its launch: the rank that limits it, derived figures, and the outcome.

Figures are in GiB as printed until the record is made. Derived figures are differences of printed
ones, rounded to their digits, and each is named in ``warnings``.
"""

import math
import re
from dataclasses import replace
from typing import Any

from ..launch import KNOBS, UNBALANCED, Launch
from ..law import agrees
from ..releases import (
    charges_graph_estimate,
    default_seqs,
    default_utilization,
    prints_activation,
    release,
)
from ..units import GIB
from .log_failure import failure_of
from .log_formats import ENGINE, ERROR, FLAGS, LATE, LOAD, MARK, POOL, PROFILE, SERVER
from .log_messages import Message, arguments
from .tables import COLUMNS, by_warnings

BUFFER = 150 * 2**20  # bytes that vLLM subtracts from the --kv-cache-memory it proposes

_ROUNDING = 0.0101  # GiB between two prints of one figure
_UNBALANCED = UNBALANCED / GIB

_TOTALS = (
    ("non_kv",),
    ("consumed", "peak_with_graphs"),
    ("model_weights", "non_torch", "peak_activation"),
)

_PARTS = {  # figures of the table from which those of a record are made
    "consumed": "non_torch",
    "peak_torch": "peak_activation",
    "peak_with_graphs": "peak_activation",
    "kv_set": "kv_cache",
    "exact": "kv_cache",
}

CPU_BLOCK = 128  # tokens, where nothing else is asked for


def launch_of(messages: list[Message], where: str) -> Launch:
    """The record of one engine; ``where`` is the file and line it begins at."""
    return _Engine(messages).launch(where)


class _Engine:
    """What was asked of an engine, what its ranks measured, and what must be said about it."""

    def __init__(self, messages: list[Message]):
        self.messages = messages
        self.warnings: dict[str, None] = {}
        self.asked: dict = {}
        self.config: dict = {}
        for message in messages:
            if message.row.stage == SERVER:
                self.asked = self.asked | arguments(message.values)
            elif message.row.stage == ENGINE and not self.config:
                self.config = arguments(message.values)
        begin = next((r.number for r in messages if r.row.stage == ENGINE), None)
        flags = [r for r in messages if r.row.stage == FLAGS]
        self.flags = [r.values for r in flags if begin is None or r.number < begin] or [
            r.values for r in flags
        ]
        self.version = self.first("vllm_version", ENGINE, SERVER, PROFILE, LATE)
        self.ranks = self._ranks()
        self.rank = self._limiting()

    def warn(self, *names: str) -> None:
        self.warnings.update(dict.fromkeys(names))

    def all(self, name: str, *stages: int) -> list:
        return [
            r.values[name]
            for r in self.messages
            if name in r.values and (not stages or r.row.stage in stages)
        ]

    def first(self, name: str, *stages: int):
        """The first figure of that name, looked for stage by stage."""
        return next((value for stage in stages for value in self.all(name, stage)), None)

    def derived(self, name: str, gib: float) -> float:
        """A difference of printed figures, to their digits, and a warning that it is one."""
        self.warn(f"derived_{name}")
        return round(gib, 2)

    # ---------------------------------------------------------------- ranks

    def _ranks(self) -> list[dict]:
        """The figures of each writer, exact ones first.

        Of several profiles the tightest holds; of several captures of CUDA graphs the last, and one
        before the pool is the profile's own: an estimate.
        """
        written: dict[tuple, list] = {}
        pool = next((r.number for r in self.messages if r.row.stage == POOL), 0)
        for message in self.messages:
            if message.row.stage in (LOAD, PROFILE, LATE):
                process = message.process
                key = process[1:] if process.pid else process
                written.setdefault(key, []).append(message)
        order = {PROFILE: 0, LATE: 1, LOAD: 2}
        ranks = []
        for group in written.values():
            rank: dict = {}
            for message in sorted(
                group,
                key=lambda r: (
                    "exact" not in r.values,
                    order[r.row.stage],
                    -(_used(r.values) or 0) if r.row.stage == PROFILE else -r.number,
                ),
            ):
                values = message.values
                if values.keys() == {"cuda_graph"} and message.number < pool:
                    values = {"cuda_graph_estimated": values["cuda_graph"]}
                rank = values | rank
            ranks.append(rank | {"used": _used(rank)})
        return ranks

    def _limiting(self) -> dict:
        """The rank with the largest non-KV total, else the smallest pool, else the most weights."""
        if any(rank["used"] is not None for rank in self.ranks):
            return max(
                (rank for rank in self.ranks if rank["used"] is not None),
                key=lambda rank: rank["used"],
            )
        if any("kv_cache" in rank for rank in self.ranks):
            return min(self.ranks, key=lambda rank: rank.get("kv_cache", float("inf")))
        return max(self.ranks, key=lambda rank: rank.get("model_weights", -1), default={})

    def _ranks_differ(self) -> bool:
        for name in ("model_weights", "non_torch", "peak_activation", "used", "kv_cache"):
            values = [rank[name] for rank in self.ranks if rank.get(name) is not None]
            if values and max(values) - min(values) > _ROUNDING:
                return True
        return False

    # ---------------------------------------------------------------- memory

    def known(self, name: str) -> float | None:
        """A figure of the limiting rank, else of any rank, else of the failure."""
        found = (rank[name] for rank in (self.rank, *self.ranks) if name in rank)
        return next(found, self.first(name, ERROR))

    def _memory(self) -> dict[str, Any]:
        """The memory attributes of the record, GiB, and whether graphs were charged.

        Where the log does not say whether the estimate for CUDA graphs was charged, and whether the
        peak beside consumed memory holds it, the balance decides: requested - used = pool.
        """
        rank = self.rank
        weights, non_torch, peak, consumed = (
            rank.get(name) for name in ("model_weights", "non_torch", "peak_activation", "consumed")
        )
        requested, total = self.known("requested_memory"), self.known("total_memory")
        if total is None and requested and self.utilization:
            total = self.derived("total_memory", requested / self.utilization)
        if peak is None and "peak_torch" in rank and weights is not None:
            peak = self.derived("peak_activation", rank["peak_torch"] - weights)
        if non_torch is None and consumed is not None and weights is not None:
            non_torch = self.derived("non_torch", consumed - weights)
        within = False  # whether the peak may hold the charged estimate
        if consumed is not None and "non_kv" in rank:  # torch's peak counts twice what stays
            charged_peak = rank["non_kv"] - consumed
            if peak is None or abs(charged_peak - peak) > 1.5 * _ROUNDING:
                peak = self.derived("peak_activation", charged_peak)
        elif peak is None and "peak_with_graphs" in rank:
            within, peak = True, rank["peak_with_graphs"]
        pool = self._printed_pool(requested)
        budget = requested
        if budget is None and total and self.utilization:
            budget = total * self.utilization
        parts = (weights, non_torch, peak) if consumed is None else (consumed, peak)
        left = _sum_of(budget, *(None if x is None else -x for x in (*parts, pool)))
        estimate = self.known("cuda_graph_estimated")
        charged = True if self.all("charged") else False if self.all("uncharged") else None
        if estimate and left is not None:
            closes = [charge for charge in (0.0, estimate) if abs(left - charge) <= _UNBALANCED]
            if charged is None and len(closes) == 1:
                charged = closes == [estimate] or (within and (peak or 0.0) >= estimate)
            within = within and abs(left) <= abs(left - estimate)
        pays = charged if charged is not None else charges_graph_estimate(self.version)
        if estimate and not pays:
            self.warn("graph_estimate_not_charged")
        charge = (estimate or 0.0) if pays else 0.0
        if within and charge and peak is not None:
            peak, charge = self.derived("peak_activation", peak - charge), 0.0
        if pool is None and requested is not None and rank.get("used") is not None:
            pool = self.derived("kv_cache", requested - rank["used"] - charge)
        if left is not None and not self.pool_given and abs(left - charge) > _UNBALANCED:
            self.warn("balance_does_not_close")
        graphs = self.known("cuda_graph")
        return {
            "total_memory": total,
            "model_weights": weights,
            "non_torch": non_torch,
            "peak_activation": peak,
            "kv_cache": pool,
            "cuda_graph_estimated": estimate,
            "cuda_graph": 0.0 if graphs is None and self.eager else graphs,
            "cuda_graph_charged": charged,
        }

    @property
    def pool_given(self) -> bool:
        """Whether the pool was given, by hand or by an earlier start, and not measured."""
        return bool(self.all("kv_set") or self.all("planned_bytes"))

    def _printed_pool(self, requested: float | None) -> float | None:
        """GiB that the limiting rank leaves, None where it is to be derived."""
        if self.pool_given:
            planned = self.first("planned_bytes", PROFILE)
            self.warn("persisted_startup_plan" if planned else "profiling_skipped")
            return self.first("kv_set", PROFILE) or planned / GIB
        if "kv_cache" in self.rank:
            return self.rank["kv_cache"]
        printed = [rank for rank in self.ranks if "kv_cache" in rank]
        used = self.rank.get("used")
        if None in (used, requested) or any(rank["used"] == used for rank in printed):
            return min((rank["kv_cache"] for rank in printed), default=self.first("kv_left", ERROR))
        return None

    def _exact(self, gib: float | None) -> float | None:
        """The pool in bytes, to the byte where the log or the arguments hold it so.

        The proposed --kv-cache-memory is short of the pool by 150 MiB and the graphs: exact where
        no graphs are taken.
        """
        rank, derived = self.rank, False
        if "exact" in rank and "kv_cache" in rank:
            self.warn("exact_figures")
            return _bytes(rank["kv_cache"])
        exact = rank.get("kv_bytes")
        if self.pool_given:
            exact = rank.get("planned_bytes") or self.asked.get("kv_cache_memory_bytes")
        elif exact is None and rank.get("cuda_graph") == 0 and self.eager:
            derived = "fit_bytes" in rank
            exact = rank["fit_bytes"] + BUFFER if derived else None
        if exact is None or gib is None or abs(exact / GIB - gib) > _ROUNDING:
            return _bytes(gib)
        if derived:
            self.warn("exact_kv_cache")
        return float(exact)

    # ---------------------------------------------------------------- blocks and tokens

    def _blocks(self) -> dict[str, Any]:
        """Tokens, concurrency, block size and blocks of the pool."""
        sizes = [
            r.values for r in self.messages if r.row.stage == POOL and "kv_cache_tokens" in r.values
        ]
        smallest = min(
            sizes, key=lambda values: values["kv_cache_tokens"], default={}
        )  # of the ranks
        tokens = smallest.get("kv_cache_tokens")
        concurrency = smallest.get(
            "max_concurrency", min(self.all("max_concurrency"), default=None)
        )
        counted = [
            r.values for r in self.messages if "device" in r.values and "num_gpu_blocks" in r.values
        ]
        blocks = counted[0]["num_gpu_blocks"] if counted else self.first("num_gpu_blocks", POOL)
        size = (
            self.first("hybrid_block", FLAGS)
            or self.first("block_size", FLAGS)
            or self.asked.get("block_size")
        )
        size = size or self.rank.get("block_size")
        if counted and tokens is None:
            size = size or self._block_size(counted[0], concurrency)
            if size and blocks:
                tokens = blocks * size
                self.warn("derived_kv_cache_tokens")
        if tokens is None:
            tokens = self.rank.get("kv_cache_tokens", self.first("tokens_left", ERROR))
        on_cpu = any(
            "(CPU)" in r.row.releases or "CPU KV cache size" in r.text for r in self.messages
        )
        if on_cpu and not size and tokens and tokens % CPU_BLOCK == 0:
            size = CPU_BLOCK
        measured = [r.number for r in self.messages if {"kv_cache", "kv_set"} & set(r.values)]
        override = self.asked.get("num_gpu_blocks_override") or next(
            (
                r.values["override"]
                for r in self.messages
                if "override" in r.values and measured and r.number > max(measured)
            ),
            None,
        )  # before, graphs are profiled so
        if override:
            self.warn("blocks_overridden")
        return {
            "kv_cache_tokens": tokens or None,
            "max_concurrency": concurrency,
            "block_size": size,
            "num_gpu_blocks": override or blocks or self.rank.get("num_gpu_blocks"),
        }

    def _block_size(self, counted: dict, concurrency: float | None) -> int | None:
        """Tokens of a block, not printed by V0: what the concurrency gives, else 16 on GPUs."""
        blocks, length = counted["num_gpu_blocks"], self.first("max_model_len", POOL)
        if not blocks:
            return None
        if concurrency and length:
            low, high = ((concurrency + slack) * length / blocks for slack in (-0.0051, 0.0051))
            return next((size for size in (16, 32, 64, 128, 8, 256) if low <= size <= high), None)
        if counted["device"].upper() not in ("GPU", "CUDA", "ROCM"):
            return None
        self.warn("block_size_assumed")
        return 16

    def _is_hybrid(self, tokens, concurrency, length, block_size) -> bool:
        """Whether layers of several kinds share the pool, so that tokens are no measure of it."""
        if self.all("hybrid") or self.all("hybrid_block"):
            return True
        if not (tokens and concurrency and length):
            return False
        if not agrees(concurrency, tokens, length):
            return True
        if tokens % 1000 == 0:  # as people quote it
            return False
        size = block_size or 16
        printed_a_block = (size, length / math.ceil(length / size))  # before and from 0.20.2 on
        return (block_size or length % 16 == 0) and all(
            (tokens + 1) % each > 1.001 for each in printed_a_block
        )

    # ---------------------------------------------------------------- what was asked

    @property
    def asked_in_full(self) -> bool:
        """Whether all that differs from a release's defaults was printed, so the rest is known."""
        return bool(release(self.version)) and any(
            "non-default" in r.row.anchor.pattern and _is_closed(r.values.get("flags", ""))
            for r in self.messages
        )

    @property
    def utilization(self) -> float | None:
        printed = (
            self.rank.get("gpu_memory_utilization"),
            self.asked.get("gpu_memory_utilization"),
            self.first("gpu_memory_utilization", PROFILE, LATE, ERROR),
        )
        value = next((value for value in printed if value is not None), None)
        if value is None and self.asked_in_full:
            self.warn("defaults_assumed")
            return default_utilization(self.version)
        return value if value is None or 0 < value <= 1 else None

    def _seqs_and_tokens(self) -> dict[str, Any]:
        """max_num_seqs and max_num_batched_tokens: the last line before the engine's holds."""

        def in_force(name):
            return next((v[name] for v in reversed(self.flags) if name in v), None)

        tokens, seqs = (self.rank.get(name) for name in reversed(KNOBS))
        tokens = (
            tokens or in_force("max_num_batched_tokens") or self.asked.get("max_num_batched_tokens")
        )
        if tokens is None:  # the last range that is compiled ends with it
            ends = re.findall(r"\d+", self.config.get("compile_ranges_endpoints", ""))
            tokens = int(ends[-1]) if ends else self.first("compile_end", MARK)
        seqs = seqs or self.asked.get("max_num_seqs") or in_force("max_num_seqs")
        server = any(r.process.name.startswith("APIServer") for r in self.messages)
        if (
            seqs is None
            and server
            and self.asked_in_full
            and self.config.get("device_config") == "cuda"
            and not self.asked.keys() & {"max_num_batched_tokens", "performance_mode"}
        ):
            seqs = default_seqs(tokens)
            if seqs:
                self.warn("defaults_assumed")
        return {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}

    @property
    def eager(self) -> bool:
        """Whether no CUDA graphs are taken: --enforce-eager, or optimization level 0."""
        mode = self.config.get("cudagraph_mode", "")
        return self.stated("enforce_eager") == "True" or mode == "0" or ".NONE" in mode

    @property
    def cold_start(self) -> bool | None:
        """Whether the compiler ran: True, False where its cache was read, else None."""
        return True if self.all("compiled") else False if self.all("compiled_before") else None

    @property
    def model_runner(self) -> str | None:
        """V2 says so; V1's lines come from a file of another name."""
        if self.all("v2"):
            return "V2"
        return "V1" if any("gpu_model_runner.py" in r.text for r in self.messages) else None

    @property
    def prefix_caching(self) -> bool | None:
        return {"True": True, "False": False}.get(self.stated("enable_prefix_caching"))

    @property
    def speculative_tokens(self) -> int | None:
        """Tokens that are drafted a step; 0 where the engine names no drafting."""
        drafted = self.stated("num_spec_tokens") or self.stated("num_speculative_tokens")
        return drafted or (0 if self.config and not self.config.get("speculative_config") else None)

    def stated(self, name: str):
        """An argument as the engine printed it, else as the server was asked for it."""
        return self.config.get(name) or self.asked.get(name)

    def _max_model_len(self) -> int | None:
        return (
            self.first("max_model_len", POOL)
            or self.config.get("max_seq_len")
            or self.first("max_model_len", ERROR)
            or self.asked.get("max_model_len")
            or self.first("max_model_len", FLAGS)
            or self.rank.get("max_model_len")
        )

    def launch(self, where: str) -> Launch:
        memory = self._memory()
        pool, peak, non_torch = (memory[n] for n in ("kv_cache", "peak_activation", "non_torch"))
        blocks, length = self._blocks(), self._max_model_len()
        for name in memory.keys() - {"cuda_graph_charged"}:
            memory[name] = self._exact(pool) if name == "kv_cache" else _bytes(memory[name])
        error, last_words = failure_of(self.messages)
        if (
            not error
            and not blocks["kv_cache_tokens"]
            and ((pool is not None and pool <= 0) or 0 in self.all("num_gpu_blocks", POOL))
        ):
            error = f"No available memory for the cache blocks: {pool or 0:g} GiB"
        error = error or last_words
        status = "failed" if error else "ok"
        launch = Launch(
            source=where,
            where=where,
            vllm_version=self.version,
            status=status,
            error=error,
            model=self.stated("model") or self.asked.get("model_tag"),
            kv_cache_dtype=self.stated("kv_cache_dtype"),
            tensor_parallel_size=self.stated("tensor_parallel_size"),
            pipeline_parallel_size=self.stated("pipeline_parallel_size"),
            **self._seqs_and_tokens(),
            **blocks,
            max_model_len=length,
            gpu_memory_utilization=self.utilization,
            **memory,
            cold_start=self.cold_start,
            model_runner=self.model_runner,
            prefix_caching=self.prefix_caching,
            speculative_tokens=self.speculative_tokens,
            decode_context_parallel_size=self.stated("decode_context_parallel_size"),
        )
        sizes = (blocks[name] for name in ("kv_cache_tokens", "max_concurrency", "block_size"))
        tokens, concurrency, size = sizes
        if self._is_hybrid(tokens, concurrency, length, size):
            self.warn("hybrid_kv")
        if self._ranks_differ():
            self.warn("ranks_differ")
        if non_torch is not None and non_torch < 0:
            self.warn("negative_non_torch")
        if pool is not None and pool <= 0 and status == "failed":
            self.warn("negative_kv_cache")
        if self.config.get("speculative_config"):
            self.warn("speculative_decoding")
        if self.all("preempted"):
            self.warn("preempted")
        if peak is None and not self.pool_given and (pool is not None or launch.kv_cache_tokens):
            old = prints_activation(self.version) is False
            self.warn("older_format" if old else "activation_not_printed")
        if pool is not None or launch.kv_cache_tokens:
            self.warn(*(f"{name}_not_printed" for name in KNOBS if getattr(launch, name) is None))
        if status == "ok" and pool is None and launch.kv_cache_tokens is None:
            self.warn("incomplete")
        for name in (name for message in self.messages for name in message.unreadable):
            attribute = _PARTS.get(name, name)
            if getattr(launch, attribute, "") is None:
                self.warn(f"unreadable_{attribute}")
        launch = replace(launch, warnings=tuple(self.warnings), **_out_of_range(launch))
        return by_warnings(launch)


def _used(values: dict) -> float | None:
    """The non-KV total of a rank, GiB: as printed, else the sum of its terms."""
    sums = (_sum_of(*map(values.get, parts)) for parts in _TOTALS)
    return next((total for total in sums if total is not None), None)


def _sum_of(*terms: float | None) -> float | None:
    """The sum, None where a term is unknown."""
    known = [term for term in terms if term is not None]
    return sum(known) if len(known) == len(terms) else None


def _out_of_range(launch: Launch) -> dict:
    """The attributes that launches.csv would refuse, as None."""
    refused: dict = {}
    for column in COLUMNS.values():
        value = column.to_json(getattr(launch, column.attribute))
        if isinstance(value, int | float) and not column.low <= value <= column.high:
            refused[column.attribute] = None
    return refused


def _is_closed(flags: str) -> bool:
    """Whether a printed dict is there to its end."""
    return 0 < flags.count("{") <= flags.count("}")


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB
