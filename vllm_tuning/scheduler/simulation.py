"""Requests through the scheduler: a workload in; a summary, times and a trace out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from ..launch import first_known
from ..optimum import Optimum
from ..pool import Pool
from ..units import LARGEST_COUNT, InputError
from ..workload import Workload
from .config import Request, SchedulerConfig
from .kv_blocks import BlockPool
from .scheduler import Scheduler, Step
from .step_time import Clock, StepTime, Times
from .trace import Trace

MOST_TRACED = 10**6, 10**8  # steps before the last arrival, generated tokens: some GB of memory


@dataclass
class Summary:
    """What a simulation comes to, added up step by step so that no step has to be kept.

    n_steps, n_preempt, sched_tokens, max_used, max_run are those of the replay format.
    sched_tokens: tokens scheduled in all steps, recomputed_tokens of them for the second time,
    after a preemption. hit_tokens: not computed, thanks to prefix caching. max_run: requests;
    max_used and mean_used: blocks taken in a step, out of the usable ones. idle_steps: no work.
    """

    usable_blocks: int
    n_steps: int = 0
    n_preempt: int = 0
    sched_tokens: int = 0
    max_used: int = 0
    max_run: int = 0
    n_requests: int = 0
    idle_steps: int = 0
    output_tokens: int = 0
    recomputed_tokens: int = 0
    hit_tokens: int = 0
    used_in_all: int = 0

    def add_request(self, request: Request) -> None:
        self.n_requests += 1
        self.output_tokens += request.max_tokens

    def add(self, step: Step) -> None:
        self.n_steps += 1
        self.n_preempt += len(step.preempted)
        self.sched_tokens += step.tokens
        self.idle_steps += not step.tokens
        self.used_in_all += step.used
        self.max_used = max(self.max_used, step.used)
        self.max_run = max(self.max_run, step.running)
        if step.hits:
            self.hit_tokens += sum(step.hits.values())

    @property
    def tokens_per_step(self) -> float:
        """Generated tokens in a step that had work: the throughput, with a step as its clock."""
        return self.output_tokens / max(1, self.n_steps - self.idle_steps)

    @property
    def sched_tokens_per_step(self) -> float:
        """Tokens scheduled in a step that had work, out of max_num_batched_tokens."""
        return self.sched_tokens / max(1, self.n_steps - self.idle_steps)

    @property
    def mean_used(self) -> float:
        return self.used_in_all / max(1, self.n_steps)

    @property
    def mean_pool_use(self) -> float:
        return self.mean_used / self.usable_blocks

    @property
    def peak_pool_use(self) -> float:
        return self.max_used / self.usable_blocks

    def to_dict(self) -> dict:
        sums = asdict(self) | {"mean_used": self.mean_used}
        sums["usable_blocks"] = sums.pop("usable_blocks")  # the order of the keys in a file
        del sums["used_in_all"]
        means = ("tokens_per_step", "sched_tokens_per_step", "mean_pool_use", "peak_pool_use")
        return sums | {name: getattr(self, name) for name in means}


@dataclass(frozen=True)
class Simulation:
    """A summary, and the trace and the times if they were asked for."""

    config: SchedulerConfig
    summary: Summary
    trace: Trace | None = field(default=None, repr=False)
    times: Times | None = field(default=None, repr=False)


def simulate(
    config: SchedulerConfig,
    requests: Iterable[Request],
    concurrency: int | None = None,
    trace: bool = False,
    progress: Callable[[int], object] | None = None,
    step_time: StepTime | None = None,
) -> Simulation:
    """Run all requests to their end.

    requests: a list, checked whole before the first step and put in order of arrival; or an
    iterator in that order, which is then read only as far as the scheduler needs. concurrency: so
    many at most waiting and running; the next arrives when one has left (a closed loop). trace:
    keep what every step did. progress: called with the number of requests that a step finished.
    step_time: what a step takes, for ``times``; then requests are read as they arrive, and a few
    numbers are kept of each. Raises InputError for a request that can never finish.
    """
    if concurrency is not None and not concurrency >= 1:
        raise InputError(f"concurrency is {concurrency}; at least 1 must be in flight")
    if isinstance(requests, Sequence):
        requests = sorted(map(config.check, requests), key=lambda request: request.at)
    scheduler, summary = Scheduler(config), Summary(config.num_gpu_blocks - 1)
    arrivals = _Arrivals(config, requests, concurrency, trace, read_all=trace or bool(step_time))
    kept, clock = Trace() if trace else None, Clock(step_time) if step_time else None
    while arrivals.next or scheduler.running or scheduler.waiting:
        if not trace and (idle := arrivals.skip_idle_steps(scheduler)):
            summary.n_steps += idle
            summary.idle_steps += idle
            if clock:
                clock.idle(idle)
        for request in arrivals.due(scheduler):
            scheduler.add_request(request)
            summary.add_request(request)
            if clock:
                clock.add_request(request)
            if kept is not None:
                kept.requests.append(replace(request, at=scheduler.now))
        step = scheduler.schedule()
        if kept is not None:
            kept.steps.append(step)
            kept.order.append(list(scheduler.running))
        scheduler.update_from_output(step)
        summary.add(step)
        if clock:
            clock.add(step)
        if progress and step.finished:
            progress(len(step.finished))
    summary.recomputed_tokens = scheduler.recomputed_tokens
    return Simulation(config, summary, kept, clock.times() if clock else None)


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
        step, running = scheduler.schedule(), list(scheduler.running)
        tokens = {names[number]: step.chunks.get(number, 1) for number in running}
        steps.append((tokens, {names[n]: scheduler.block_table(n) for n in running}))
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


def server_at(
    optimum: Optimum,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    **flags,
) -> SchedulerConfig:
    """The server that launches describe, with its pool at these flags: as printed, else expected.

    Default: the recommended flags; for other requests the token budget that is free beside them.
    flags: of SchedulerConfig. Raises InputError where the launches do not give the blocks.
    """
    model, best = optimum.model, optimum.recommended
    seqs, budget, tokens = max_num_seqs, max_num_batched_tokens, None
    if best and optimum.max_num_seqs is not None:
        pool = Pool(model, optimum.workload, 1)
        free = pool.largest_free_token_budget
        budget = budget or (free(seqs) if seqs else best.max_num_batched_tokens)
        seqs = seqs or best.max_num_seqs
        tokens = pool.whole_tokens(seqs, budget)
    launches = [fitted.launch for fitted in model.launches]
    same = [fitted.launch for fitted in model.launches if fitted.flags == (seqs, budget)]
    if not model.hybrid:
        tokens = first_known(same, "kv_cache_tokens", tokens)
    if tokens is None or not (seqs and budget):
        reason = optimum.reason or "layers of several kinds share the pool"
        raise InputError(f"the launches do not tell num_gpu_blocks: {reason}")
    longest = max((launch.max_model_len or 0 for launch in launches), default=0)
    given = {"block_size": model.block_size, "max_model_len": longest or optimum.workload.length}
    return SchedulerConfig(seqs, budget, max(0, tokens) // model.block_size, **given | flags)


def fixed_requests(count: int, input_len: int, output_len: int) -> Iterator[Request]:
    """``count`` requests of one length, all at step 0, made as they are read."""
    for number in range(count):
        yield Request(f"r{number}", input_len, output_len)


def full_requests(server: SchedulerConfig, workload: Workload) -> int:
    """Finished requests that the pool holds at once, in whole blocks: the method's max_num_seqs."""
    return (server.num_gpu_blocks - 1) // workload.blocks(server.block_size)


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
