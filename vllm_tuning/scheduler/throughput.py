"""What each max_num_seqs costs in throughput and latency, from two or three load runs.

A load run of one server at one load is a pair: n requests running at once in the mean, and X output
tokens a second. By Little's law a step takes t = n / X. Between the runs t is drawn straight; no
further coefficient, for runs of one shape cannot tell two apart. With i, o input and output tokens
of a request, N in flight, C full requests that the pool holds, and a budget of B tokens a step:

    n(m) = min(m, N, C, B*o / (i + o - 1))      X(m) = n / t(n)

Above C requests are preempted, and the scheduler's simulation answers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..launch import own_name
from ..optimum import Optimum, Recommended, budget_needed
from ..reading import LoadRun
from ..units import InputError
from ..workload import Workload
from .config import SchedulerConfig
from .simulation import fixed_requests, simulate
from .step_time import Roofline

BAND = 0.10  # of X: nine in ten of the held-out points of real servers lie within
APART = 1.5  # times the smallest run's requests, that the largest must be
LEAST = 0.3  # of the smallest run's step time, below it
ENOUGH = 0.95  # of the best throughput


class StepTimes:
    """t(n), seconds of a step with n requests running, drawn straight between the runs.

    >>> from vllm_tuning.reading import LoadRun
    >>> t = StepTimes([LoadRun(8, 400), LoadRun(32, 1200), LoadRun(64, 1920)])
    >>> [round(1e3 * float(t(n)), 4) for n in (4, 16, 48, 128)]
    [18.8889, 22.2222, 30.0, 46.6667]
    """

    kind = "from load runs"

    def __init__(self, runs: Sequence[LoadRun], workload: Workload | None = None):
        loads: dict[float, list[float]] = {}
        for run in runs:
            loads.setdefault(run.running, []).append(run.output_tokens_per_s)
        self.running = np.array(sorted(loads))
        self.step = np.array([n / np.mean(loads[n]) for n in self.running])
        if len(self.running) < 2 or self.running[-1] < APART * self.running[0]:
            ran = ", ".join(f"{n:,.4g}" for n in self.running)
            raise InputError(
                f"{runs[0].where if runs else 'load runs'}: the runs had {ran or 'no'} requests "
                f"running; expected two or more, the largest at least {APART:g} times the "
                "smallest: make one at an eighth of the largest (--max-concurrency)"
            )
        slopes = np.maximum(0.0, np.diff(self.step) / np.diff(self.running))
        self.low, self.high = slopes[0], slopes[-1]
        self.share = 1.0  # requests for each scheduled token, as the simulation asks
        if workload:
            self.share = workload.output_share

    def __call__(self, running):
        """Seconds at so many requests; floats or an array."""
        n = np.asarray(running, float)
        first, last = self.running[[0, -1]]
        below = np.maximum(LEAST * self.step[0], self.step[0] - self.low * np.maximum(0, first - n))
        above = self.step[-1] + self.high * np.maximum(0, n - last)
        inside = np.interp(n, self.running, self.step)
        return np.where(n < first, below, np.where(n > last, above, inside))

    def seconds(self, tokens, kv_tokens=0):
        """Seconds of a step with so many tokens of prefill and decoding together."""
        return self(np.asarray(tokens, float) * self.share)

    def measured(self, running: float) -> bool:
        """Whether so many lie between the smallest and the largest run, or next to them."""
        return bool(0.98 * self.running[0] <= running <= 1.02 * self.running[-1])


@dataclass(frozen=True)
class Point:
    """What one max_num_seqs gives; seconds, tokens a second, None where not known.

    ``preempts``: requests are preempted, and the figures are simulated; ``beyond_runs``: not
    between the load runs.
    """

    max_num_seqs: int
    running: float
    output_tokens_per_s: float
    tpot_s: float
    ttft_s: float | None
    preempts: bool = False
    beyond_runs: bool = False

    @property
    def low(self) -> float:
        return (1 - BAND) * self.output_tokens_per_s

    @property
    def high(self) -> float:
        return (1 + BAND) * self.output_tokens_per_s


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """A server under a load that lasts: lengths, C, the budget, requests in flight (None: any)."""

    workload: Workload
    full: float
    budget: int
    in_flight: int | None = None
    rate: float | None = None

    def running(self, seqs: int, times: StepTimes) -> float:
        """n(m): what of mns, the load, the pool and the budget is smallest."""
        throttled = self.budget * self.workload.output_share
        most = min(seqs, self.in_flight or math.inf, self.full, throttled)
        if self.rate is None:
            return most
        return _at_rate(self.rate * self.workload.output_len, most, times)

    def point(self, seqs: int, times: StepTimes) -> Point:
        """Steady state at m = ``seqs`` without preemption."""
        work, n = self.workload, self.running(seqs, times)
        step = float(times(n))
        rate = n / step
        ttft = None
        if self.in_flight and self.budget > n:
            queueing = max(0.0, self.in_flight - n) * work.output_len / rate
            ttft = queueing + step * math.ceil(work.input_len / (self.budget - n))
        return Point(seqs, n, rate, step, ttft, beyond_runs=not times.measured(n))


def _at_rate(tokens_per_s: float, most: float, times: StepTimes) -> float:
    """n = r*o*t(n) by bisection; ``most`` where so many requests a second saturate the server."""
    low, high = 0.0, most
    if tokens_per_s * float(times(most)) >= most:
        return most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if tokens_per_s * float(times(middle)) > middle else (low, middle)
        )
    return high


def simulated(server: SchedulerConfig, work: Workload, seqs: int, times: StepTimes) -> Point:
    """The point above C: a closed loop on the pool, the middle three fifths of what finished."""
    pool = (server.num_gpu_blocks - 1) * server.block_size
    in_flight = max(seqs, round(2 * pool / (work.input_len + work.output_len / 2)))
    at = replace(server, max_num_seqs=seqs)
    requests = fixed_requests(12 * in_flight, work.input_len, work.output_len)
    done = simulate(at, requests, in_flight, step_time=times)
    assert done.times
    ends = np.sort(done.times.finished)
    first, last = len(ends) // 5, len(ends) * 4 // 5
    rate = (last - first) * work.output_len / (ends[last] - ends[first])
    tpot = float(np.nanmean(done.times.tpot))
    running = rate * tpot
    return Point(
        seqs,
        running,
        float(rate),
        tpot,
        float(np.nanmean(done.times.ttft[first:last])),
        preempts=done.summary.n_preempt > 0,
        beyond_runs=not times.measured(running),
    )


@dataclass(frozen=True)
class Throughput:
    """The curve, and on it the method's point, the best, the knee and the target.

    at_knee: the smallest mns with 95 % of the best; target: the largest whose step is at most as
    long as asked, None where none is or nothing was asked. budget_needed: tokens a step for the
    point.
    """

    points: tuple[Point, ...]
    method: Point
    best: Point
    at_knee: Point
    target: int | None
    budget_needed: int
    saturated: bool | None = None

    @property
    def knee(self) -> int:
        return self.at_knee.max_num_seqs

    @property
    def standing(self) -> str:
        """Where the method's point stands against the best, in words."""
        return f"{self.loss:.1%} below the best" if self.loss > 5e-4 else "the best of the curve"

    @property
    def loss(self) -> float:
        """Share of the best throughput that the method's point gives up."""
        return 1 - self.method.output_tokens_per_s / self.best.output_tokens_per_s


def throughput_curve(
    server: SteadyState,
    seqs: int,
    times: StepTimes,
    longest_step: float | None = None,
    scheduler: SchedulerConfig | None = None,
    progress: Callable[[int], object] | None = None,
) -> Throughput:
    """The curve from a sixteenth of the method's point, ``seqs``, to 1.3 times it.

    scheduler: the server whose pool is simulated above C; without it the curve ends there.
    progress: called with 1 after each simulated point.
    """
    below = [server.point(m, times) for m in range(1, seqs + 1)]
    shown = {max(1, round(seqs / 16 * 16 ** (step / 24))) for step in range(25)}
    points = [point for point in below if point.max_num_seqs in shown]
    if scheduler:
        for above in _above(seqs):
            points.append(simulated(scheduler, server.workload, above, times))
            if progress:
                progress(1)
    best = max([*below, *points], key=lambda point: point.output_tokens_per_s)
    enough = ENOUGH * best.output_tokens_per_s * (1 - 1e-12)
    fast = [p for p in below if longest_step and p.tpot_s <= longest_step * (1 + 1e-9)]
    saturated = None
    if server.rate is not None:
        asked = server.rate * server.workload.output_len
        saturated = asked > best.output_tokens_per_s * (1 + 1e-9)
    return Throughput(
        tuple(points),
        below[-1],
        best,
        next(p for p in [*below, *points] if p.output_tokens_per_s >= enough),
        max((p.max_num_seqs for p in fast), default=None),
        budget_needed(seqs, server.workload),
        saturated,
    )


def throughput_of(
    optimum: Optimum,
    runs: Sequence[LoadRun],
    longest_step: float | None = None,
    in_flight: int | None = None,
    rate: float | None = None,
    progress: Callable[[int], object] | None = None,
    above: bool = True,
) -> Throughput:
    """The curve of an answer from load runs of its server. Raises InputError where they are not.

    above: points above C, where requests are preempted, too.
    """
    best, model, work = optimum.recommended, optimum.model, optimum.workload
    if best is None:
        raise InputError(f"no recommendation, so no point to start from: {optimum.reason}")
    _refuse(runs, best, {fitted.launch.model for fitted in model.launches} - {None})
    scheduler = None
    if above and best.kv_cache_tokens is not None:
        scheduler = SchedulerConfig(
            best.max_num_seqs,
            best.max_num_batched_tokens,
            best.kv_cache_tokens // model.block_size,
            block_size=model.block_size,
            max_model_len=work.length,
        )
    server = SteadyState(
        workload=work,
        full=best.concurrency,
        budget=best.max_num_batched_tokens,
        in_flight=in_flight,
        rate=rate,
    )
    times = StepTimes(runs, work)
    return throughput_curve(server, best.max_num_seqs, times, longest_step, scheduler, progress)


def _refuse(runs: Sequence[LoadRun], best: Recommended, models: set) -> None:
    """Runs that are none of this server's, or in which requests waited or were preempted."""
    names = {own_name(model) for model in models}
    for run in runs:
        if run.running > best.concurrency * 1.005:
            raise InputError(
                f"{run.where}: {run.running:,.1f} requests ran at once, and the pool holds "
                f"{best.concurrency:,.1f} full ones; expected a run with at most "
                f"{best.max_num_seqs:,} in flight (--max-concurrency)"
            )
        if run.model and names and own_name(run.model) not in names:
            raise InputError(
                f"{run.where}: a run of {run.model}; expected one of {', '.join(sorted(models))}"
            )


def _above(seqs: int) -> Iterator[int]:
    yield from sorted({math.ceil(seqs * factor) for factor in (1.1, 1.2, 1.3)} - {seqs})


def bound_of(roofline: Roofline, workload: Workload, seqs: int) -> float:
    """Output tokens a second that a data sheet allows: reading, then multiplying, nothing else."""
    context = seqs * (workload.input_len + workload.output_len / 2)
    multiplied = roofline.compute_seconds(seqs / workload.output_share)
    return seqs / float(roofline.read_seconds(context) + multiplied)


def given_runs(measured: Sequence[LoadRun]) -> list[LoadRun]:
    """Of a sweep the runs nearest in the logarithm to C, C/2 and C/8, C the largest; each once."""
    full = max(run.running for run in measured)
    given: list[LoadRun] = []
    for wanted in (full, full / 2, full / 8):
        left = [run for run in measured if run not in given]
        given.append(min(left, key=lambda run: abs(math.log(run.running / wanted))))
    return given


def runs_to_make(full: int) -> tuple[int, ...]:
    """Requests in flight of the load runs that tell the curve: C/8, C/2 and C.

    >>> runs_to_make(310)
    (38, 155, 310)
    """
    return tuple(sorted({max(1, full // 8), max(1, full // 2), full}))
