"""Makes a launch: starts the server, waits for its figures, stops it, reads its log.

Each is in DIR/launches.csv as soon as it is made, so a driver that was stopped in whatever way goes
on where it was.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGTERM, default_int_handler, signal

from ..launch import Launch, serve_flags
from ..reading import FATAL, read_log
from ..units import InputError
from .folder import TABLE, Folder

READY = re.compile(rb"init engine \(profile, create kv cache|Application startup complete")
LOST = re.compile(FATAL.encode())
TAKEN = re.compile(rb"Address already in use|EADDRINUSE")
TRIES = 3  # of a launch whose port was taken by someone else meanwhile
SHORTEST, LONGEST = 0.02, 0.5  # seconds between two looks into the log
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_OURS = ("--max-num-seqs", "--max-num-batched-tokens", "--port")


def check_command(command: list[str]) -> None:
    """Raises InputError where there is no such program, or where it sets the driver's own flags."""
    for argument in command:
        name = argument.partition("=")[0].replace("_", "-")
        if name in _OURS:
            raise InputError(f"{name}: measure sets it for each launch; take it out of the command")
    if sys.platform != "linux":
        raise InputError("measure runs on Linux; elsewhere launch by hand what plan prints")
    if not shutil.which(command[0]):
        raise InputError(
            f"{command[0]}: no such program on the PATH; activate the environment "
            "that vLLM is installed in, or give its path"
        )


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the driver as Ctrl-C does: the server is stopped first."""
    before = signal(SIGTERM, default_int_handler)
    try:
        yield
    finally:
        signal(SIGTERM, before)


@dataclass(frozen=True)
class Driver:
    """Makes launches of one command into one folder; seconds.

    timeout: that a server may take to its figures; grace: from SIGTERM to SIGKILL.
    """

    folder: Folder
    command: list[str]
    timeout: float
    grace: float

    def make(
        self,
        flags: tuple[int, int],
        table: str = TABLE,
        show: Callable[[str], None] = lambda text: None,
    ) -> list[Launch]:
        """The launch at ``flags`` (mns, mnbt), made unless it is in the table.

        Several records where the server has several data parallel engines.
        A launch that gives no figures in time, or ends before, is one with the status failed and
        the reason. One in which the compiler ran is made once more, and the second counts; the
        first log is kept beside it. ``show`` gets what is going on.
        """
        if made := self.folder.made(flags, table):
            return made
        first = self.folder.log(flags).with_suffix(".cold.log")
        launches, log = self._launch(flags, show)
        if any(launch.cold_start for launch in launches) and not first.exists():
            log.rename(first)
            launches, _ = self._launch(flags, lambda text: show(f"{text}, once more"))
        return self.folder.add(launches, flags, table)

    def _launch(self, flags: tuple[int, int], show) -> tuple[list[Launch], Path]:
        """What one start gives, tried again where its port was taken; and its log."""
        for _ in range(TRIES):
            outcome, log = self._run(flags, show)
            if outcome is None or not TAKEN.search(log.read_bytes()):
                break
        return _read(log, outcome), log

    def _run(self, flags: tuple[int, int], show) -> tuple[str | None, Path]:
        """Start, wait, stop: why it is not up, None if it is; and the log."""
        command = [*self.command, *serve_flags(*flags).split(), "--port", str(free_port())]
        log = self.folder.begin_log(flags, command)
        environment = os.environ | {"VLLM_LOGGING_LEVEL": "DEBUG"}
        with running(command, log, environment, self.grace) as exit_status:
            return self._wait(log, exit_status, flags, show), log

    def _wait(self, log: Path, exit_status, flags: tuple[int, int], show) -> str | None:
        """Why no figures came, None where they did."""
        begin, pause, tail, timeout = time.monotonic(), SHORTEST, b"", self.timeout
        with log.open("rb") as file:
            while True:
                status = exit_status()  # before the last look, so that no line is missed
                text = tail + file.read()
                if READY.search(text):
                    return None
                if status is not None:
                    how = f"by signal {status - 128}" if status > 128 else f"with status {status}"
                    return f"ended {how}"
                waited = time.monotonic() - begin
                if LOST.search(text):  # it should exit by itself now
                    timeout = min(timeout, waited + self.grace)
                if waited > timeout:
                    return f"gave no figures within {timeout:g} s"
                show(f"mns {flags[0]}, mnbt {flags[1]}: {waited:.0f} s")
                time.sleep(min(pause, max(0.0, timeout - waited) + SHORTEST))
                pause, tail = min(LONGEST, pause * 1.3), text[-200:]


def _read(log: Path, outcome: str | None) -> list[Launch]:
    """A log's launches; a failed one has vLLM's reason, else how it ended and its last line."""
    try:
        launches = read_log(log)
    except InputError:
        launches = [Launch(where=f"{log}:1")]
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


@contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str], grace: float
) -> Iterator[Callable[[], int | None]]:
    """A server under ``supervisor``, gone when the block is left or this process has died.

    Gives a function for its exit status: None while it runs, 128 + its number for a signal.
    """
    script = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()), str(grace)]
    with log.open("ab") as out:
        supervisor = subprocess.Popen(
            [*script, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
        )

    def exit_status() -> int | None:
        # not Popen.poll: it takes a lock, which a Ctrl-C in it would leave locked
        ended = os.waitid(os.P_PID, supervisor.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended and ended.si_status + 128 * (ended.si_code != os.CLD_EXITED)

    try:
        yield exit_status
    finally:
        supervisor.terminate()
        supervisor.wait()


def free_port() -> int:
    """A TCP port that nobody listens on; another process may take it before the server does."""
    with socket.socket() as any_port:
        any_port.bind(("", 0))
        return any_port.getsockname()[1]
