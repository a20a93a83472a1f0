"""Steps a second of the scheduler model against vLLM's own scheduler; memory of a long stream.

vLLM is measured anew where it is installed, else its figures from the same kind of machine (two
cores, vLLM 0.32.0) are used.
"""

import random
import statistics
import subprocess
import sys
from pathlib import Path

from real_scheduler import steps_per_second
from timing import seconds

from vllm_tuning.scheduler.config import Request, SchedulerConfig
from vllm_tuning.scheduler.simulation import fixed_requests, simulate

AMPLE = SchedulerConfig(256, 8192, 20_000)
CACHING = SchedulerConfig(256, 8192, 20_000, enable_prefix_caching=True)
TIGHT = SchedulerConfig(256, 2048, 64 * 150 + 1)  # 150 full requests fit
REAL = {"fixed": 168.3, "random": 168.3, "caching": 209.2, "tight": 290.6}  # random: as for fixed


def requests_of(lengths) -> list[Request]:
    """All prompts different."""
    return [
        Request(
            f"r{i}",
            prompt,
            output,
            prompt=tuple(1000 + (131 * i + 17 * j) % 30_000 for j in range(prompt)),
        )
        for i, (prompt, output) in enumerate(lengths)
    ]


def ours(config, requests, trace: bool) -> float:
    steps = simulate(config, requests).summary.n_steps
    return steps / statistics.median(
        seconds(lambda: simulate(config, requests, trace=trace)) for _ in range(5)
    )


def compare(name, config, requests, limits) -> list[str]:
    """Print the ratios with and without a trace; the names of those below their limits."""
    measured = steps_per_second(config, requests)
    real, source = measured or REAL[name], "measured now" if measured else "measured before"
    slow = []
    for trace, limit in limits.items():
        mine = ours(config, requests, trace)
        what = f"{name}, {'full' if trace else 'no'} trace"
        print(
            f"{what}: {mine:,.0f} steps/s, vLLM {real:,.0f} ({source}), "
            f"{mine / real:.0f} times as fast (at least {limit})"
        )
        slow += [what] if mine < limit * real else []
    return slow


def peak_memory(count: int) -> int:
    """Bytes of a process that streams so many requests (Linux)."""
    code = f"import bench_scheduler as bench; bench.stream({count})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=sys.path[0], check=True, capture_output=True, text=True
    )
    return int(done.stdout) * 1024


def stream(count: int) -> None:
    simulate(AMPLE, fixed_requests(count, 32, 8))
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in status if line[:5] == "VmHWM"))


if __name__ == "__main__":
    few, many = peak_memory(20_000), peak_memory(1_000_000)
    print(
        f"a stream of 20,000 requests: {few / 2**20:.1f} MiB; of 1,000,000: {many / 2**20:.1f} "
        f"MiB, ratio {many / few:.2f} (limit 1.1)"
    )
    slow = ["memory of a stream"] if many > 1.1 * few else []
    draw = random.Random(1)
    fixed = requests_of([(512, 512)] * 1000)
    mixed = requests_of([(draw.randint(1, 1023), draw.randint(1, 1023)) for _ in range(1000)])
    slow += [
        *compare("fixed", AMPLE, fixed, {True: 10, False: 50}),
        *compare("random", AMPLE, mixed, {True: 10, False: 50}),
        *compare("caching", CACHING, fixed, {True: 5}),
        *compare("tight", TIGHT, fixed, {True: 10}),
    ]
    if slow:
        sys.exit(f"{', '.join(slow)}: outside the limit")
