"""Ratios of wall times in one run: the two sides take turns, so that a slow machine slows both."""

import statistics
import subprocess
import sys
import time


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(name, ours, yardstick, limit, turns) -> None:
    """Print the median ratio ours / yardstick; exit 1 where it is above ``limit``."""
    ours(), yardstick()
    pairs = [(seconds(ours), seconds(yardstick)) for _ in range(turns)]
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"{name}: {mine * 1e3:,.1f} ms, yardstick {theirs * 1e3:,.1f} ms, "
        f"ratio {ratio:.2f} (limit {limit})"
    )
    if ratio > limit:
        sys.exit(f"{name}: above the limit")


def command(*args):
    """A call that runs a command to its end, its output thrown away."""
    return lambda: subprocess.run(args, check=True, stdout=subprocess.DEVNULL)
