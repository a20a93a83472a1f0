"""Throughput and preemptions over max_num_seqs, by simulation."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..workload import Workload
from .config import SchedulerConfig
from .simulation import fixed_requests, poisson_arrivals, simulate
from .step_time import StepTime

SATURATION = 1.15  # staggered requests arrive so many times as fast as the pool can serve them


@dataclass(frozen=True)
class Sweep:
    """One shape of requests on one pool over max_num_seqs.

    full: full requests that the pool holds, the method's point. average: requests of the mean size
    of a staggered one, input + output / 2. Arrays of shape (points,): seqs, throughput (generated
    tokens/s, from the first step to the last), preemptions.
    """

    full: int
    average: float
    seqs: np.ndarray
    throughput: np.ndarray
    preemptions: np.ndarray

    @property
    def cost(self) -> float:
        """Throughput that the method's point gives up against the best, a share."""
        return float(1 - self.throughput[self.seqs == self.full].item() / self.throughput.max())


def full_requests(server: SchedulerConfig, workload: Workload) -> int:
    """Finished requests that the pool holds at once, in whole blocks: the method's max_num_seqs."""
    return (server.num_gpu_blocks - 1) // workload.blocks(server.block_size)


def average_requests(server: SchedulerConfig, workload: Workload) -> float:
    """pool / (input + output / 2): requests held where each is, on average, half way through."""
    pool = (server.num_gpu_blocks - 1) * server.block_size
    return pool / (workload.input_len + workload.output_len / 2)


def staggered(server: SchedulerConfig, workload: Workload, requests: int, seed: int = 0) -> list:
    """Requests arriving at random, ``SATURATION`` times as fast as the pool can serve them."""
    rate = SATURATION * average_requests(server, workload) / workload.output_len  # a step
    shape = workload.input_len, workload.output_len
    return list(poisson_arrivals(fixed_requests(requests, *shape), rate, 1.0, seed))


def sweep(
    server: SchedulerConfig,
    workload: Workload,
    step_time: StepTime,
    requests: Iterable,
    points: int = 10,
) -> Sweep:
    """The server at ``points`` max_num_seqs up to 1.2 times the average, and at the method's point.

    The pool is held: what further requests take from it (K2) is left out, so that only the
    scheduling differs.
    """
    full, average = full_requests(server, workload), average_requests(server, workload)
    seqs = np.unique(np.r_[np.linspace(0.3, 1.2, points) * average, full].astype(int).clip(1))
    requests, rows = list(requests), []
    for count in seqs.tolist():
        done = simulate(replace(server, max_num_seqs=count), requests, step_time=step_time)
        assert done.times
        rows.append((done.times.throughput, done.summary.n_preempt))
    return Sweep(full, average, seqs, *map(np.array, zip(*rows, strict=True)))
