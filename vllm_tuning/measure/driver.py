"""Makes a launch: starts the server, waits for its figures, stops it, reads its log.

Each is in DIR/launches.csv as soon as it is made, so a driver that was stopped in whatever way goes
on where it was.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM, default_int_handler, signal

from ..launch import KNOBS, Launch
from ..reading import FATAL, read_log
from ..units import InputError
from .folder import TABLE, Folder, with_flags
from .server import Server, executable, free_port

READY = re.compile(rb"init engine \(profile, create kv cache|Application startup complete")


LOST = re.compile(FATAL.encode())


TAKEN = re.compile(rb"Address already in use|EADDRINUSE")


TRIES = 3  # of a launch whose port was taken by someone else meanwhile


SHORTEST, LONGEST = 0.02, 0.5  # seconds between two looks into the log


_OURS = ("--max-num-seqs", "--max-num-batched-tokens", "--port")


def check_command(command: list[str]) -> None:
    """Raises InputError where there is no such program, or where it sets the driver's own flags."""
    for argument in command:
        name = argument.partition("=")[0].replace("_", "-")
        if name in _OURS:
            raise InputError(f"{name}: measure sets it for each launch; take it out of the command")
    executable(command)


@contextmanager
def interruptible():
    """SIGTERM ends the driver as Ctrl-C does: the server is stopped first."""
    before = signal(SIGTERM, default_int_handler)
    try:
        yield
    finally:
        signal(SIGTERM, before)


def make(
    folder: Folder,
    command: list[str],
    flags: tuple[int, int],
    timeout: float,
    table: str = TABLE,
    show: Callable[[str], None] = lambda text: None,
) -> list[Launch]:
    """The launch at ``flags`` (mns, mnbt), made unless it is in the table; more with DP engines.

    A launch that gives no figures within ``timeout`` seconds, or ends before, is one with the
    status failed and the reason. ``show`` is told what is going on.
    """
    if made := folder.made(flags, table):
        return made
    for _ in range(TRIES):
        outcome, log = _run(folder, command, flags, timeout, show)
        if outcome is None or not TAKEN.search(log.read_bytes()):
            break
    launches = _read(log, flags, outcome)
    folder.add(launches, table)
    return launches


def _run(folder: Folder, command, flags, timeout, show) -> tuple[str | None, Path]:
    """Start, wait, stop: why it is not up, None if it is; and the log."""
    full = [
        *command,
        *(
            text
            for name, flag in zip(KNOBS, flags)
            for text in (f"--{name.replace('_', '-')}", str(flag))
        ),
        "--port",
        str(free_port()),
    ]
    log = folder.begin_log(flags, full)
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "DEBUG"}
    with Server(full, log, environment, folder.grace, folder.lock) as server:
        outcome = _wait(
            server,
            log,
            timeout,
            folder.grace,
            lambda text: show(f"mns {flags[0]}, mnbt {flags[1]}: {text}"),
        )
    return outcome, log


def _wait(server: Server, log: Path, timeout: float, grace: float, show) -> str | None:
    begin, pause, tail = time.monotonic(), SHORTEST, b""
    with log.open("rb") as file:
        while True:
            ended = server.ended  # before the last look, so that no line is missed
            new = file.read()
            if READY.search(tail + new):
                return None
            lost = LOST.search(tail + new)
            tail = (tail + new)[-200:]
            if ended:
                status = server.exit_status()
                return "ended " + (
                    "before it was up"
                    if status is None
                    else f"by signal {-status}"
                    if status < 0
                    else f"with status {status}"
                )
            waited = time.monotonic() - begin
            if lost:  # it should exit by itself now
                timeout = min(timeout, waited + grace)
            if waited > timeout:
                return f"gave no figures within {timeout:g} s"
            show(f"{waited:.0f} s")
            time.sleep(min(pause, max(0.0, timeout - waited) + SHORTEST))
            pause = min(LONGEST, pause * 1.3)


def _read(log: Path, flags: tuple[int, int], outcome: str | None) -> list[Launch]:
    """A log's launches; a failed one has vLLM's reason, else how it ended and its last line."""
    try:
        launches = read_log(log)
    except InputError:
        launches = [Launch(where=f"{log}:1")]
    launches = with_flags(launches, flags, log)
    if outcome is None:
        return launches
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    last = next((f", after: {line[:200]}" for line in map(_plain, reversed(lines)) if line), "")
    return [
        launch
        if launch.status == "failed"
        else replace(launch, status="failed", error=launch.error or f"the server {outcome}{last}")
        for launch in launches
    ]


def _plain(line: str) -> str:
    """A line without what a terminal would act on."""
    return "".join(char if char.isprintable() else " " for char in line).strip()
