"""Requests through the scheduler: a workload in, a summary and, if wanted, a trace out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from ..optimum import Optimum
from ..pool import Pool
from ..units import LARGEST_COUNT, InputError
from ..workload import Workload
from .config import Request, SchedulerConfig
from .kv_blocks import BlockPool
from .scheduler import Scheduler, Step
from .step_time import Estimate, estimate_of
from .trace import Trace, TraceRecorder

MOST_TRACED = 10**6, 10**8  # steps before the last arrival, generated tokens: some GB of memory


@dataclass(frozen=True)
class Summary:
    """What a simulation comes to; the first five names are those of the replay format.

    sched_tokens: tokens scheduled in all steps, recomputed_tokens of them for the second time,
    after a preemption. hit_tokens: not computed, thanks to prefix caching. max_run: requests;
    max_used and mean_used: blocks taken in a step, out of the usable ones. idle_steps had no work.
    """

    n_steps: int
    n_preempt: int
    sched_tokens: int
    max_used: int
    max_run: int
    n_requests: int
    idle_steps: int
    output_tokens: int
    recomputed_tokens: int
    hit_tokens: int
    mean_used: float
    usable_blocks: int

    @property
    def tokens_per_step(self) -> float:
        """Generated tokens in a step that had work: the throughput, with a step as its clock."""
        return self.output_tokens / max(1, self.n_steps - self.idle_steps)

    @property
    def sched_tokens_per_step(self) -> float:
        """Tokens scheduled in a step that had work, out of max_num_batched_tokens."""
        return self.sched_tokens / max(1, self.n_steps - self.idle_steps)

    @property
    def mean_pool_use(self) -> float:
        return self.mean_used / self.usable_blocks

    @property
    def peak_pool_use(self) -> float:
        return self.max_used / self.usable_blocks

    def to_dict(self) -> dict:
        return asdict(self) | {
            name: getattr(self, name)
            for name in (
                "tokens_per_step",
                "sched_tokens_per_step",
                "mean_pool_use",
                "peak_pool_use",
            )
        }


@dataclass(frozen=True)
class Simulation:
    """A summary, and the trace and the times if they were asked for."""

    config: SchedulerConfig
    summary: Summary
    trace: Trace | None = field(default=None, repr=False)
    times: Estimate | None = field(default=None, repr=False)


def simulate(
    config: SchedulerConfig,
    requests: Iterable[Request],
    concurrency: int | None = None,
    trace: bool = False,
    progress: Callable[[int], object] | None = None,
    step_time=None,
) -> Simulation:
    """Run all requests to their end.

    requests: a list, checked whole before the first step and put in order of arrival; or an
    iterator in that order, which is then read only as far as the scheduler needs. concurrency: so
    many at most waiting and running; the next arrives when one has left (a closed loop). trace:
    keep what every step did. progress: called with the number of requests that a step finished.
    step_time: what a step takes (of ``step_time.py``), for ``times``; then requests are read as they
    arrive, and a few numbers are kept of each. Raises InputError for a request that can never finish.
    """
    if concurrency is not None and not concurrency >= 1:
        raise InputError(f"concurrency is {concurrency}; at least 1 must be in flight")
    if isinstance(requests, Sequence):
        requests = sorted(map(config.check, requests), key=lambda request: request.at)
    scheduler = Scheduler(config)
    arrivals = _Arrivals(config, requests, concurrency, trace, read_all=trace or bool(step_time))
    totals, recorder = _Totals(config), TraceRecorder() if trace else None
    clock = step_time and _Clock(step_time)
    while arrivals.next or scheduler.running or scheduler.waiting:
        if not trace and (idle := arrivals.skip_idle_steps(scheduler)):
            totals.idle += idle
            if clock:
                clock.idle(idle)
        for request in arrivals.due(scheduler):
            scheduler.add_request(request)
            totals.add_request(request)
            if clock:
                clock.add_request(request)
            if recorder:
                recorder.requests.append(replace(request, at=scheduler.now))
        step = scheduler.schedule()
        if recorder:
            recorder.add(step, scheduler.running)
        scheduler.update_from_output(step)
        totals.add(step)
        if clock:
            clock.add(step)
        if progress and step.finished:
            progress(len(step.finished))
    return Simulation(
        config, totals.summary(scheduler), recorder and recorder.trace(), clock and clock.times()
    )


def block_tables(config: SchedulerConfig, requests: Sequence[Request], block_ids: Sequence[int]):
    """Step by step what is scheduled and where it lies, on the physical blocks ``block_ids``.

    A list of (tokens of each request, block table of each running request) by the requests' ids; a
    block table is a list of (physical block, slots filled). For small examples.
    """
    requests = sorted(map(config.check, requests), key=lambda request: request.at)
    scheduler = Scheduler(config, BlockPool(block_ids, config.enable_prefix_caching))
    names, steps = [request.id for request in requests], []
    while scheduler.arrived < len(requests) or scheduler.running or scheduler.waiting:
        for request in requests[scheduler.arrived :]:
            if request.at <= scheduler.now:
                scheduler.add_request(request)
        step = scheduler.schedule()
        steps.append(
            (
                {names[n]: step.chunks.get(n, 1) for n in scheduler.running},
                {names[n]: scheduler.block_table(n) for n in scheduler.running},
            )
        )
        scheduler.update_from_output(step)
    return steps


class _Arrivals:
    """Requests as they arrive; unless ``read_all`` no more of them than a step can admit.

    One more is read: whether a request is alone makes a difference.
    """

    def __init__(self, config, requests, concurrency, traced, read_all):
        self.check, self.requests = config.check, iter(requests)
        self.concurrency = concurrency or float("inf")
        self.most_waiting = float("inf") if read_all else config.max_num_seqs + 1
        self.traced, self.generated = traced, 0
        self.next = self._read()

    def _read(self) -> Request | None:
        request = next(self.requests, None)
        if request and self.check(request) and self.traced:
            self.generated += request.max_tokens
            steps, tokens = MOST_TRACED
            if request.at > steps or self.generated > tokens:
                raise InputError(
                    f"request {request.id}: a trace is kept of at most {tokens:,} "
                    f"generated tokens, and of arrivals up to step {steps:,}"
                )
        return request

    def due(self, scheduler: Scheduler) -> Iterator[Request]:
        waiting, running = len(scheduler.waiting), len(scheduler.running)
        room = min(self.most_waiting - waiting, self.concurrency - waiting - running)
        while self.next and self.next.at <= scheduler.now and room > 0:
            yield self.next
            room -= 1
            self.next = self._read()

    def skip_idle_steps(self, scheduler: Scheduler) -> int:
        """Go to the next arrival at once where nothing else is left to do."""
        if scheduler.running or scheduler.waiting:
            return 0
        idle = max(0, self.next.at - scheduler.now)
        scheduler.now += idle
        return idle


class _Clock:
    """The time, step by step, and when each request arrived, had its first token and its last."""

    def __init__(self, step_time):
        self.step_time, self.now = step_time, 0.0
        self.arrived, self.first, self.last, self.outputs = [], [], [], []

    def idle(self, steps: int) -> None:
        self.now += steps * float(self.step_time.seconds(0))

    def add_request(self, request: Request) -> None:
        self.arrived.append(self.now)
        self.outputs.append(request.max_tokens)
        self.first.append(None)
        self.last.append(None)

    def add(self, step: Step) -> None:
        self.now += float(self.step_time.seconds(step.tokens, step.kv_tokens))
        for number in step.first_token:
            self.first[number] = self.now
        for number in step.finished:
            self.last[number] = self.now

    def times(self) -> Estimate:
        return estimate_of(
            self.step_time, self.now, self.arrived, self.first, self.last, self.outputs
        )


class _Totals:
    """Sums over the steps, so that no step has to be kept."""

    def __init__(self, config: SchedulerConfig):
        self.usable = config.num_gpu_blocks - 1
        self.preempted = self.tokens = self.hits = self.idle = self.used = self.output = 0
        self.max_used = self.max_run = 0

    def add_request(self, request: Request) -> None:
        self.output += request.max_tokens

    def add(self, step: Step) -> None:
        self.preempted += len(step.preempted)
        self.tokens += step.tokens
        self.idle += not step.tokens
        self.used += step.used
        self.max_used = max(self.max_used, step.used)
        self.max_run = max(self.max_run, step.running)
        if step.hits:
            self.hits += sum(step.hits.values())

    def summary(self, scheduler: Scheduler) -> Summary:
        steps = scheduler.now
        return Summary(
            n_steps=steps,
            n_preempt=self.preempted,
            sched_tokens=self.tokens,
            max_used=self.max_used,
            max_run=self.max_run,
            n_requests=scheduler.arrived,
            idle_steps=self.idle,
            output_tokens=self.output,
            recomputed_tokens=scheduler.recomputed_tokens,
            hit_tokens=self.hits,
            mean_used=self.used / max(1, steps),
            usable_blocks=self.usable,
        )


def server_at(
    optimum: Optimum,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    **flags,
) -> SchedulerConfig:
    """The server that launches describe, with its pool at these flags: as printed, else expected.

    Default: the recommended flags; for other requests the token budget that is free beside them.
    flags: of SchedulerConfig. Raises InputError where the launches do not tell the blocks.
    """
    model, best = optimum.model, optimum.recommended
    seqs, budget = max_num_seqs, max_num_batched_tokens
    if best and not (seqs and budget):
        seqs, budget = (
            seqs or best.max_num_seqs,
            budget
            or (
                Pool(model, optimum.workload, 1).largest_free_token_budget(seqs)
                if seqs
                else best.max_num_batched_tokens
            ),
        )
    longest = max((fitted.launch.max_model_len or 0 for fitted in model.launches), default=0)
    given = {"block_size": model.block_size, "max_model_len": longest or optimum.workload.length}
    return SchedulerConfig(seqs, budget, _num_gpu_blocks(optimum, seqs, budget), **given | flags)


def _num_gpu_blocks(optimum: Optimum, seqs: int | None, budget: int | None) -> int:
    model = optimum.model
    for launch in (fitted.launch for fitted in model.launches):
        if (launch.max_num_seqs, launch.max_num_batched_tokens) == (seqs, budget):
            if launch.kv_cache_tokens and not model.hybrid:
                return launch.kv_cache_tokens // model.block_size
    if optimum.recommended is None or optimum.recommended.kv_cache_tokens is None:
        reason = optimum.reason or "layers of several kinds share the pool"
        raise InputError(f"the launches do not tell num_gpu_blocks: {reason}")
    return max(0, Pool(model, optimum.workload, 1).whole_tokens(seqs, budget)) // model.block_size


def fixed_requests(count: int, input_len: int, output_len: int) -> Iterator[Request]:
    """``count`` requests of one length, all at step 0, made as they are read."""
    for number in range(count):
        yield Request(f"r{number}", input_len, output_len)


def requests_of(workloads: Iterable[Workload]) -> Iterator[Request]:
    """One request of each, all at step 0."""
    for number, workload in enumerate(workloads):
        yield Request(f"r{number}", workload.input_len, workload.output_len)


def poisson_arrivals(
    requests: Iterable[Request], rate: float, step_time: float, seed: int = 0
) -> Iterator[Request]:
    """The requests at random times, ``rate`` a second; a step takes ``step_time`` seconds."""
    if not (0 < rate < float("inf") and 0 < step_time < float("inf")):
        raise InputError(f"rate {rate:g} a second and step time {step_time:g} s must be above 0")
    draw, now = np.random.default_rng(seed), 0.0
    for request in requests:
        now += draw.exponential(1 / rate)
        if not now / step_time < LARGEST_COUNT:
            raise InputError(
                f"request {request.id} would arrive after {now / step_time:.1e} steps "
                f"of {step_time:g} s; rate {rate:g} a second is too low"
            )
        yield replace(request, at=int(now / step_time))
