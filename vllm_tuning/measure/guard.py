"""Keeps one server, and all that it starts, for as long as its own stdin is open.

A script, run in a session of its own by ``server``: GRACE LOCK COMMAND... Its stdin ends when the
driver stops the server, and also when the driver dies, in whatever way. Then the process group is
told to end and, when the server has ended or after GRACE seconds, killed, this script with it; and
on Linux so is what left the group. The server's exit status goes to stdout before. LOCK is a file
descriptor to be held until then.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

POLL = 0.02  # seconds


PR_SET_CHILD_SUBREAPER = 36


def main(grace: float, lock: int, command: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler: the server does not inherit it
    with suppress(AttributeError):  # whoever loses its parent becomes a child of this process
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = os.posix_spawnp(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 2, 1),
            (os.POSIX_SPAWN_CLOSE, lock),
        ],
    )
    status = None
    while status is None and not select.select([0], [], [], POLL)[0]:
        status = exit_status(server)
    send(signal.SIGTERM, runaways())
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while status is None and time.monotonic() < deadline:
        time.sleep(POLL)
        status = exit_status(server)
    os.write(1, b"" if status is None else b"%d" % status)
    deadline = time.monotonic() + 1  # a process may fork while it is being killed
    while (left := runaways()) and time.monotonic() < deadline:
        send(signal.SIGKILL, left)
        time.sleep(POLL)
    os.killpg(0, signal.SIGKILL)


def send(number: int, processes) -> None:
    for process in processes:
        with suppress(OSError):  # it ended meanwhile
            os.kill(process, number)


def runaways() -> set[int]:
    """Living processes below this one that are in another process group."""
    below, groups = {os.getpid()}, {}
    for process in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with suppress(OSError), open(f"/proc/{process}/stat", errors="replace") as stat:
            state, parent, group = stat.read().rpartition(")")[2].split()[:3]
            if state not in "ZX":
                groups[int(process)] = int(parent), int(group)
    while more := {each for each, (parent, _) in groups.items() if parent in below} - below:
        below |= more
    return {each for each in below & {*groups} if groups[each][1] != os.getpgrp()}


def exit_status(process: int) -> int | None:
    """None while it runs; negative is the signal that ended it."""
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
