"""One engine's messages to its launch: the rank that limits it, derived figures, and the outcome.

Figures are in GiB as printed until the record is made. Derived figures are differences of printed
ones, rounded to their digits, and each is named in ``warnings``.
"""

from dataclasses import replace
from typing import Any

from ..launch import KNOBS, Launch
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
from .log_formats import ENGINE, ERROR, FLAGS, LATE, LOAD, POOL, PROFILE, SERVER
from .log_messages import Message, arguments
from .tables import COLUMNS, by_warnings

BUFFER = 150 * 2**20  # bytes that vLLM subtracts from the --kv-cache-memory it proposes

_ROUNDING = 0.0101  # GiB between two prints of one figure

_PARTS = {  # figures of the table from which those of a record are made
    "consumed": "non_torch",
    "peak_torch": "peak_activation",
    "peak_with_graphs": "peak_activation",
    "kv_set": "kv_cache",
    "exact": "kv_cache",
}


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
        """The figures of each writer, exact ones first; of several profiles, the tightest."""
        written: dict[tuple, list] = {}
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
                    -(_non_kv(r.values) or 0),
                ),
            ):
                rank = message.values | rank
            ranks.append(rank | {"non_kv": _non_kv(rank)})
        return ranks

    def _limiting(self) -> dict:
        """The rank with the largest non-KV total, else the smallest pool, else the most weights."""
        if any(rank["non_kv"] is not None for rank in self.ranks):
            return max(
                (rank for rank in self.ranks if rank["non_kv"] is not None),
                key=lambda rank: rank["non_kv"],
            )
        if any("kv_cache" in rank for rank in self.ranks):
            return min(self.ranks, key=lambda rank: rank.get("kv_cache", float("inf")))
        return max(self.ranks, key=lambda rank: rank.get("model_weights", -1), default={})

    def _ranks_differ(self) -> bool:
        for name in ("model_weights", "non_torch", "peak_activation", "non_kv", "kv_cache"):
            values = [rank[name] for rank in self.ranks if rank.get(name) is not None]
            if values and max(values) - min(values) > _ROUNDING:
                return True
        return False

    # ---------------------------------------------------------------- memory

    def _memory(self) -> dict[str, Any]:
        """The memory attributes of the record, GiB, and whether graphs were charged."""
        rank = self.rank
        weights, peak, non_torch = (
            rank.get(name) for name in ("model_weights", "peak_activation", "non_torch")
        )
        requested = rank.get(
            "requested_memory", self.first("requested_memory", PROFILE, LOAD, LATE, ERROR)
        )
        total = rank.get("total_memory", self.first("total_memory", PROFILE, LOAD, LATE, ERROR))
        if total is None and requested and self.utilization:
            total = self.derived("total_memory", requested / self.utilization)
        estimate = rank.get(
            "cuda_graph_estimated", self.first("cuda_graph_estimated", PROFILE, LATE)
        )
        charged = True if self.all("charged") else False if self.all("uncharged") else None
        pays = charged if charged is not None else charges_graph_estimate(self.version)
        charge = (estimate or 0.0) if pays else 0.0
        if peak is None and "peak_torch" in rank and weights is not None:
            peak = self.derived("peak_activation", rank["peak_torch"] - weights)
        if peak is None and "peak_with_graphs" in rank:
            peak = rank["peak_with_graphs"]
            if charge:
                peak = self.derived("peak_activation", peak - charge)
        if non_torch is None and "consumed" in rank and weights is not None:
            non_torch = self.derived("non_torch", rank["consumed"] - weights)
        pool = self._pool(requested, charge)
        if estimate and not pays:
            self.warn("graph_estimate_not_charged")
        budget = requested
        if budget is None and total and self.utilization:
            budget = total * self.utilization
        left = _sum_of(
            budget, *(None if x is None else -x for x in (weights, non_torch, peak, pool))
        )
        skipped = "profiling_skipped" in self.warnings
        if left is not None and not skipped and abs(left - charge) > 0.035:
            self.warn("balance_does_not_close")
        return {
            "total_memory": total,
            "model_weights": weights,
            "non_torch": non_torch,
            "peak_activation": peak,
            "kv_cache": pool,
            "cuda_graph_estimated": estimate,
            "cuda_graph": rank.get("cuda_graph", self.first("cuda_graph", LATE)),
            "cuda_graph_charged": charged,
        }

    def _pool(self, requested: float | None, charge: float) -> float | None:
        """GiB that the limiting rank leaves: its own print, else requested - its non-KV total."""
        given = self.first("kv_set", PROFILE)
        if given is not None:
            self.warn("profiling_skipped")
            return given
        if "kv_cache" in self.rank:
            return self.rank["kv_cache"]
        printed = [rank for rank in self.ranks if "kv_cache" in rank]
        used = self.rank.get("non_kv")
        equals = [rank for rank in printed if rank["non_kv"] == used]
        if used is not None and requested is not None and not equals:
            return self.derived("kv_cache", requested - used - charge)
        return min((rank["kv_cache"] for rank in printed), default=self.first("kv_left", ERROR))

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
        if "profiling_skipped" in self.warnings:
            exact = self.asked.get("kv_cache_memory_bytes")
        elif (
            exact is None
            and rank.get("cuda_graph") == 0
            and (self.config.get("enforce_eager") == "True")
        ):
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

    def _is_hybrid(self, tokens: int | None, concurrency: float | None, length: int | None) -> bool:
        """Whether layers of several kinds share the pool, so that tokens are no measure of it."""
        if self.all("hybrid") or self.all("hybrid_block"):
            return True
        if not (tokens and concurrency and length):
            return False
        if not agrees(concurrency, tokens, length):
            return True
        rounded = tokens % 1000 == 0  # as people quote it
        return length % 16 == 0 and (tokens + 1) % 16 > 1 and not rounded

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
        seqs = seqs or self.asked.get("max_num_seqs") or in_force("max_num_seqs")
        server = any(r.process.name.startswith("APIServer") for r in self.messages)
        if (
            seqs is None
            and server
            and self.asked_in_full
            and self.config.get("device_config") == "cuda"
            and "max_num_batched_tokens" not in self.asked
        ):
            seqs = default_seqs(tokens)
            if seqs:
                self.warn("defaults_assumed")
        return {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}

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
        )
        if self._is_hybrid(blocks["kv_cache_tokens"], blocks["max_concurrency"], length):
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
        if (
            peak is None
            and "profiling_skipped" not in self.warnings
            and (pool is not None or launch.kv_cache_tokens)
        ):
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


def _non_kv(values: dict) -> float | None:
    """The non-KV total of a rank, GiB: as printed, else the sum of its terms."""
    if values.get("non_kv") is not None:
        return values["non_kv"]
    return _sum_of(
        *(values.get(name) for name in ("model_weights", "non_torch", "peak_activation"))
    )


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
