"""Runs one server, and ends it with all that it has started: DRIVER GRACE COMMAND...

A script in a process of its own, because vLLM starts a family of processes: PR_SET_PDEATHSIG, by
which the kernel signals the death of a parent, reaches this child of the driver, but not what a
server has started, and process groups do not hold those who leave them.

It stops on a signal, from the driver or, where that has died, from the kernel. The server then gets
SIGTERM and GRACE seconds, none without a driver. Whoever loses its parent becomes a child of this
process (PR_SET_CHILD_SUBREAPER), so that killing children until there are none leaves nobody. The
exit status is the server's, 128 + its number for a signal.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LONG = 1e8  # seconds


def main(driver: int, grace: float, command: list[str]) -> int:
    awaited = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    for option, value in ((PR_SET_PDEATHSIG, signal.SIGTERM), (PR_SET_CHILD_SUBREAPER, 1)):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    if os.getppid() != driver:  # it died before the kernel was asked
        return 0
    server = os.posix_spawnp(command[0], command, os.environ, setsigmask=())
    ended, status, deadline = 0, 0, time.monotonic() + LONG
    while not ended:
        heard = signal.sigtimedwait(awaited, max(0, deadline - time.monotonic()))
        if heard is None:
            break
        if heard.si_signo != signal.SIGCHLD:
            os.kill(server, signal.SIGTERM)
            patience = grace if os.getppid() == driver else 0.0
            deadline = min(deadline, time.monotonic() + patience)
        ended, status = os.waitpid(server, os.WNOHANG)
    with suppress(ChildProcessError):  # raised where there is none left
        while True:
            for child in children():
                os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def children() -> Iterator[int]:
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{process}/stat", errors="replace") as stat:
            if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                yield int(process)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
