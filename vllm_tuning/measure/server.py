"""One server process with its log: started, and stopped with all that it started."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


@contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str], grace: float
) -> Iterator[Callable[[], int | None]]:
    """A server under ``supervisor``, gone when the block is left or this process has died.

    Gives what tells its exit status, None while it runs; 128 + its number for a signal.
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
        return ended and ended.si_status

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
