"""Why a start failed: the cause that vLLM names first, not the failures that follow from it."""

import re

from .log_formats import ERROR
from .log_messages import Message

_CONSEQUENCE = re.compile(
    r"initialization failed|failed to start|Worker failed with error|stack trace|Broken ?pipe"
    r"|ConnectionReset|EngineDead|CancelledError|shut ?down",
    re.IGNORECASE,
)


def failure_of(messages: list[Message]) -> tuple[str | None, str | None]:
    """The cause of a failed start, and the last words of a process that died; None without one."""
    own = memory = cause = fatal = by = None
    traced, chained = set(), set()
    for r in messages:
        values = r.values
        if "serving" in values:
            cause = memory or cause if fatal else None  # what it survived
            memory = None
            break
        if r.row.stage == ERROR:
            own = own or values["reason"]
        elif "oom" in values:
            memory = memory or values["reason"]
        elif "traceback" in values:
            traced.add(r.process)
        elif "chained" in values:
            chained.add(r.process)
        elif "fatal" in values:
            fatal = fatal or values["reason"]
        elif "generic" in values and not _CONSEQUENCE.search(values["reason"]):
            first = cause is None or (by == r.process and by in chained)
            if first and (r.process in traced or values["logged"]):
                cause, by = values["reason"], r.process
                chained.discard(by)
    return own or memory or cause, fatal
