"""vLLM's server log, of any release, as launches.

From below: ``log_lines`` finds the passages around start-ups and takes the prefixes off,
``log_formats`` is the table of the lines that are read, ``log_readings`` reads them, ``log_engine``
weighs the ranks of an engine. Here readings become starts, and starts become launches.
"""

import re
from dataclasses import dataclass, field

from .launches import Launch, Notice
from .log_engine import launch_of
from .log_formats import ENGINE, ERROR, FLAGS, LATE, LOAD, MARK, POOL, PROFILE, SERVER
from .log_lines import Process, open_log
from .log_readings import Reading, readings
from .units import InputError

_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)")
_SAME_MOMENT = 120  # seconds between the same line of two ranks of one writer, at most


def read_log(source, name: str | None = None) -> list[Launch]:
    """The launches in a server log: a path (``-`` for stdin, gzip or not) or a binary stream.

    One record for each start of the server, or for each data-parallel engine of a start. Raises
    InputError ``NAME: what it is instead`` where the file cannot be read or holds no start.
    """
    name = name or str(source)
    starts, running = [], {}
    for reading in readings(open_log(source, name)):
        start = running.get(reading.service)
        if start is None or start.is_over_at(reading):
            start = running[reading.service] = Start()
            starts.append(start)
        start.add(reading)
    real = [start for start in starts if start.is_real]
    if not real:
        raise InputError(f"{name}: no start of a vLLM server in it; expected the server's log from "
                         "its start on, with lines such as 'Available KV cache memory: 54.8 GiB'")
    return [launch_of(part, f"{name}:{number}")
            for start in real for number, part in start.engines()]


@dataclass
class Start:
    """The readings of one start of the server, all its ranks and engines together."""

    readings: list[Reading] = field(default_factory=list)
    said: set = field(default_factory=set)

    def add(self, new: Reading) -> None:
        if not self._repeats(new):
            self.readings.append(new)
            self.said.add(_content(new))

    def _repeats(self, new: Reading) -> bool:
        """A line with a clock that stands twice, or one that follows itself, says nothing new."""
        return _content(new) in self.said and (
            bool(_CLOCK.search(new.text)) or _content(new) == _content(self.readings[-1]))

    @property
    def is_real(self) -> bool:
        """Whether a server started here: an echoed command or anyone's error does not count."""
        return any(old.row.stage not in (FLAGS, MARK) and "command" not in old.values
                   for old in self.readings)

    def is_over_at(self, new: Reading) -> bool:
        """Whether a reading belongs to the next start: it says again what this one has said."""
        stage = new.row.stage
        if stage in (ERROR, MARK) or self._repeats(new):
            return False
        if stage == SERVER:
            return not new.process.name.startswith("ApiServer_") and any(
                old.row is new.row or old.row.stage in (ENGINE, LOAD, PROFILE, POOL, LATE, ERROR)
                or {"generic", "fatal"} & set(old.values) for old in self.readings)
        if stage == FLAGS:  # the engine itself may print them once more when it has started
            return not re.match("EngineCore|Worker", new.process.name) and any(
                old.row.stage == POOL for old in self.readings)
        mine = [old for old in self.readings if _same_rank(old.process, new.process)]
        if stage == ENGINE:
            return any(old.row.stage in (ENGINE, LOAD, PROFILE, POOL, LATE) for old in mine)
        if stage == LOAD and "weights" in new.values:
            return any(old.row.stage in (PROFILE, POOL, LATE) for old in mine)
        again = [old for old in mine if old.row is new.row]
        if any(_seconds_apart(old, new) > _SAME_MOMENT for old in again):
            return True
        return stage == PROFILE and bool(again) and any(
            old.row.stage == POOL and old.number > again[-1].number for old in self.readings)

    def engines(self) -> list[tuple[int, list[Reading]]]:
        """First line and readings of each data-parallel engine, the server's included."""
        engines = {_engine(old.process) for old in self.readings} - {None}
        nameless = {}
        for process in {old.process for old in self.readings}:
            if process.name.startswith("Worker") and process.pid and _engine(process) is None:
                nameless.setdefault(process.name, []).append(process)
        owners = {}
        if len(engines) > 1:  # the n-th process id of a rank's name is the n-th engine's
            for group in nameless.values():
                owners |= zip(sorted(group, key=lambda process: int(process.pid)), sorted(engines))
        owned = [(owners.get(old.process, _engine(old.process)), old) for old in self.readings]
        measured = {engine for engine, old in owned if engine is not None
                    and old.row.stage in (LOAD, PROFILE, POOL) and old.values}
        if len(measured) < 2:
            return [(self.readings[0].number, self.readings)]
        parts = []
        for this in sorted(measured):
            first = next(old.number for engine, old in owned if engine == this)
            configured = any(engine == this and old.row.stage == ENGINE for engine, old in owned)
            parts.append((first, [old for engine, old in owned if engine in (None, this)
                                  or old.row.stage == ENGINE and not configured]))
        return parts


def _content(reading: Reading) -> tuple:
    return reading.text, reading.process, reading.row, tuple(reading.values.items())


def _engine(process: Process) -> int | None:
    number = re.search(r"(?:DP|EngineCore_)(\d+)", process.name)
    return int(number[1]) if number else None


def _same_rank(old: Process, new: Process) -> bool:
    """The same writer, or the same rank under another process id, as after a restart."""
    if old.pid and (old.pid, old.node) == (new.pid, new.node):
        return True
    return old.name == new.name and (
        not old.pid or bool(re.search(r"\d|EngineCore|APIServer", old.name)))


def _seconds_apart(old: Reading, new: Reading) -> int:
    """Between two lines by their clocks; 0 where they have none."""
    times = []
    for reading in (old, new):
        if clock := _CLOCK.search(reading.text[:200]):
            hours, minutes, seconds = map(int, clock.groups())
            times.append(3600 * hours + 60 * minutes + seconds)
    gap = abs(times[0] - times[1]) if len(times) == 2 else 0
    return min(gap, 86400 - gap)


# ---------------------------------------------------------------- what must be said

EXPLANATIONS = {
    "activation_not_printed":
        "The log does not hold the peak activation. VLLM_LOGGING_LEVEL=DEBUG prints it from 0.9.2 "
        "on; INFO does from 0.26 on, and in the V0 engine of 0.6.4 to 0.10. The KV-only route "
        "works without it, from kv_cache_gib or kv_cache_tokens of launches that differ in "
        "max_num_seqs and max_num_batched_tokens.",
    "balance_does_not_close":
        "Total x utilization - weights - non_torch - graphs - activation is not the printed pool: "
        "one of the figures counts something else. The KV-only route does not use them.",
    "block_size_assumed":
        "The block size is not printed; 16 was taken. If the server ran with another --block- "
        "size, kv_cache_tokens is wrong by that factor.",
    "blocks_overridden":
        "num_gpu_blocks_override replaced the measured number of blocks: kv_cache_gib is the "
        "measured pool, kv_cache_tokens the overridden one. Start without it to measure.",
    "defaults_assumed":
        "max_num_seqs or gpu_memory_utilization was not given: the release's default was taken, "
        "where release and device decide it.",
    "derived_kv_cache":
        "The pool of the rank that limits it is not printed as such: it is requested memory - "
        "non-KV memory - charged graphs, or to the byte --kv-cache-memory + 150 MiB where no "
        "graphs are taken.",
    "derived_kv_cache_tokens":
        "The log counts blocks: kv_cache_tokens is their number times the block size.",
    "derived_non_torch":
        "From 0.28 on the log prints consumed memory: non_torch is consumed - weights.",
    "derived_peak_activation":
        "The printed peak holds something else too: the weights (0.6.4) or the charged graph "
        "estimate (0.28 on). They were subtracted.",
    "derived_total_memory":
        "The total is not printed: it is requested memory / utilization.",
    "graph_estimate_not_charged":
        "The estimate for CUDA graphs was printed but not taken from the pool: real graphs come "
        "on top of the utilization. Releases before 0.20 and "
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 do so.",
    "hybrid_kv":
        "Layers of several kinds share the pool: a request costs a + b x length, not tokens x "
        "bytes. Launch at two max_model_len, or give config.json.",
    "incomplete":
        "The log ends before the pool was printed, and names no failure: give the whole start-up.",
    "negative_kv_cache":
        "Nothing was left for the pool and the launch failed; the figure still measures what is "
        "missing. Raise gpu_memory_utilization, or lower max_num_seqs, max_num_batched_tokens or "
        "the weights.",
    "negative_non_torch":
        "Memory outside torch shrank while profiling: sleep mode, or another process left the "
        "GPU. Launch again on an idle GPU, without sleep mode.",
    "older_format":
        "This release never prints the activation or non_torch (up to 0.6.3, and V1 of 0.8 to "
        "0.9.0). The KV-only route works with kv_cache_tokens; the four-launch formula needs "
        "another release, or VLLM_USE_V1=0 from 0.8 to 0.9.",
    "preempted":
        "Requests were preempted while serving: the pool was too small for max_num_seqs.",
    "profiling_skipped":
        "The pool was set by hand (kv_cache_memory_bytes), not measured: this launch says nothing "
        "about activation. Start without it to measure.",
    "ranks_differ":
        "The ranks did not measure the same: the figures are those of the rank that limits the "
        "pool.",
    "speculative_decoding":
        "Speculative decoding multiplies the sampler's rows: max_num_seqs costs more than without "
        "it.",
}


def notices(launch: Launch) -> list[Notice]:
    """The sentence for each warning of a launch read from a log."""
    return [Notice(name, f"{launch.where}: {_explanation(name)}") for name in launch.warnings]


def _explanation(name: str) -> str:
    if name.startswith("unreadable_"):
        return (f"{name.removeprefix('unreadable_')} stands in the log, but its line is cut or "
                "wrapped beyond repair and could not be read. Give the log as the server wrote it.")
    return EXPLANATIONS.get(name, name)
