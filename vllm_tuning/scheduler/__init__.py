"""vLLM's scheduler, step by step."""

from .config import Request, SchedulerConfig
from .replay import config_to_json, read_workload, write_trace
from .simulation import (
    Simulation,
    block_tables,
    fixed_requests,
    full_requests,
    poisson_arrivals,
    requests_of,
    server_at,
    simulate,
)
from .step_time import GivenStepTime, Roofline, quantiles, roofline_of, times_to_json
from .throughput import (
    SteadyState,
    StepTimes,
    Throughput,
    bound_of,
    given_runs,
    runs_to_make,
    throughput_curve,
    throughput_of,
)

__all__ = [
    "GivenStepTime",
    "Request",
    "Roofline",
    "SchedulerConfig",
    "Simulation",
    "SteadyState",
    "StepTimes",
    "Throughput",
    "block_tables",
    "bound_of",
    "config_to_json",
    "fixed_requests",
    "full_requests",
    "given_runs",
    "poisson_arrivals",
    "quantiles",
    "read_workload",
    "requests_of",
    "roofline_of",
    "runs_to_make",
    "server_at",
    "simulate",
    "throughput_curve",
    "throughput_of",
    "times_to_json",
    "write_trace",
]
