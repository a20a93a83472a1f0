"""One server process with its log: started in its own session, stopped with all that it started."""

import select
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from ..units import InputError

_GUARD = Path(__file__).with_name("guard.py")


class Server:
    """A running server; on leaving the ``with`` block its whole process group is gone.

    SIGTERM, and after ``grace`` seconds SIGKILL, come from ``guard``, which also acts when this
    process dies. ``lock``: a file descriptor that stays open until the server is gone.
    """

    def __init__(self, command: list[str], log: Path, environment: dict, grace: float, lock: int):
        with log.open("ab") as out:
            self.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(grace), str(lock), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=environment,
                start_new_session=True,
                pass_fds=[lock],
            )

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.guard.stdin.close()
        self.guard.wait()
        self.guard.stdout.close()

    @property
    def ended(self) -> bool:
        """Whether the server ended by itself.

        By the guard's pipe: Popen.poll takes a lock, which a Ctrl-C in it would leave locked.
        """
        return bool(select.select([self.guard.stdout], [], [], 0)[0])

    def exit_status(self) -> int | None:
        """Of a server that ended by itself, negative for a signal; None where it is not known."""
        status = self.guard.stdout.read()
        return int(status) if status else None


def executable(command: list[str]) -> None:
    """Raises InputError where there is no such program."""
    if not shutil.which(command[0]):
        raise InputError(
            f"{command[0]}: no such program on the PATH; activate the environment "
            "that vLLM is installed in, or give its path"
        )


def free_port() -> int:
    """A TCP port that nobody listens on; another process may take it before the server does."""
    with socket.socket() as any_port:
        any_port.bind(("", 0))
        return any_port.getsockname()[1]
