"""vLLM's scheduler, step by step."""

from .config import SchedulerConfig
from .replay import config_to_json, read_workload, write_trace
from .simulation import Simulation, poisson_arrivals, requests_of, server_at, simulate
from .step_time import (
    GivenStepTime,
    quantiles,
    roofline_of,
    times_to_json,
)
from .sweep import Sweep

__all__ = [
    "GivenStepTime",
    "SchedulerConfig",
    "Simulation",
    "Sweep",
    "config_to_json",
    "poisson_arrivals",
    "quantiles",
    "read_workload",
    "requests_of",
    "roofline_of",
    "server_at",
    "simulate",
    "times_to_json",
    "write_trace",
]
