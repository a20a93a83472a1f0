"""Time and memory to read a long log: three starts, months of request lines between them.

    python tests/benchmarks/bench_server_log.py [MIB, default 256]

Exits 1 above 6 times the wall time of grep on the same file, or above 200 MB of memory.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT, MEMORY = 6.0, 200e6  # times grep; bytes
GREP = ["grep", "-cE", "GiB|KV cache|blocks"]
START = ROOT / "tests/data/logs/v0.19-tp2-debug.log"


def requests(size: int) -> bytes:
    """About ``size`` bytes of what a running server writes."""
    draw = random.Random(1)
    lines, length = [], 0
    while length < size:
        second = len(lines)
        lines.append(
            f"(APIServer pid=1) INFO 04-{second // 86400 % 28 + 1:02d} {second // 3600 % 24:02d}:"
            f"{second // 60 % 60:02d}:{second % 60:02d} [loggers.py:259] "
            "Engine 000: Avg prompt throughput: "
            f"{draw.random() * 9000:.1f} tokens/s, "
            f"Avg generation throughput: {draw.random() * 3000:.1f} tokens/s, "
            f"Running: {draw.randrange(200)} reqs, Waiting: {draw.randrange(9)} reqs, "
            f"GPU KV cache usage: {draw.random() * 100:.1f}%, "
            f"Prefix cache hit rate: {draw.random() * 100:.1f}%\n"
            if second % 10 == 0
            else f"(APIServer pid=1) INFO:     10.0.{draw.randrange(256)}.{draw.randrange(256)}:"
            f'{draw.randrange(65536)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        )
        length += len(lines[-1])
    return "".join(lines).encode()


def write_log(path: str, size: int) -> None:
    start = START.read_bytes()
    served = requests(6 << 20)
    with open(path, "wb") as out:
        for part in range(3):
            out.write(start.replace(b"04-22 01:", f"0{part + 4}-22 01:".encode()))
            while out.tell() < size * (part + 1) // 3:
                out.write(served)


def timed(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,  # to /dev/null grep stops at the first
        env={**os.environ, "LC_ALL": "C"},
    )
    return time.perf_counter() - begin


def read_in_child(path: str) -> tuple[int, float, float]:
    """Launches, seconds and peak bytes of reading in a process of its own."""
    code = (
        "import resource, sys, time; from vllm_tuning.reading import read_log;"
        "t = time.perf_counter();"
        "n = len(read_log(sys.argv[1])); t = time.perf_counter() - t;"
        "print(n, t, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, path], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.split()
    return int(out[0]), float(out[1]), float(out[2])


def main() -> int:
    size = int(sys.argv[1] if len(sys.argv) > 1 else 256) << 20
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "server.log")
        write_log(path, size)
        timed([*GREP, path])  # both read from the page cache
        grep, (launches, seconds, peak) = (
            min(timed([*GREP, path]) for _ in range(3)),
            read_in_child(path),
        )
    print(
        f"{size >> 20} MiB: {launches} launches in {seconds:.2f} s, grep {grep:.2f} s: "
        f"{seconds / grep:.1f} times (limit {LIMIT:g}); "
        f"{peak / 1e6:.0f} MB (limit {MEMORY / 1e6:.0f})"
    )
    return int(seconds / grep > LIMIT or peak > MEMORY or launches != 3)


if __name__ == "__main__":
    sys.exit(main())
