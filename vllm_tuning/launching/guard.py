"""Keeps one server, and all that it starts, for as long as its own stdin is open.

A script, run in a session of its own by ``server``: GRACE LOCK COMMAND... Its stdin ends when the
driver stops the server, and also when the driver dies, in whatever way. Then the process group is
told to end and, when the server has ended or after GRACE seconds, killed, this script with it. The
server's exit status goes to stdout before. LOCK is a file descriptor to be held until then.
"""

import os
import select
import signal
import sys
import time

POLL = 0.02  # seconds


def main(grace: float, lock: int, command: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler: the server does not inherit it
    server = os.posix_spawnp(command[0], command, os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1),
        (os.POSIX_SPAWN_CLOSE, lock)])
    status = None
    while status is None and not select.select([0], [], [], POLL)[0]:
        status = exit_status(server)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while status is None and time.monotonic() < deadline:
        time.sleep(POLL)
        status = exit_status(server)
    os.write(1, b"" if status is None else b"%d" % status)
    os.killpg(0, signal.SIGKILL)


def exit_status(process: int) -> int | None:
    """None while it runs; negative is the signal that ended it."""
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
