"""Why a start failed: the cause that vLLM names first, not the failures that follow from it."""

import re

from .log_formats import ENGINE, ERROR, LATE, LOAD, POOL, PROFILE
from .log_messages import Message

_CONSEQUENCE = re.compile(
    r"initialization failed|failed to start|Worker failed with error|stack trace|Broken ?pipe"
    r"|ConnectionReset|EngineDead|CancelledError|shut ?down",
    re.IGNORECASE,
)


def failure_of(messages: list[Message]) -> tuple[str | None, str | None]:
    """The cause of a failed start, and the last words of a process that died; None without one."""
    own = cause = fatal = by = None
    ready, traced, chained = set(), set(), set()
    caused = survived = 0
    for r in messages:
        values = r.values
        if "serving" in values:
            survived = r.number
            break
        if r.row.stage in (ENGINE, LOAD, PROFILE, POOL, LATE) or "ready" in values:
            survived = r.number
        if "ready" in values:
            ready.add(r.process)
        elif r.process in ready:
            continue
        elif r.row.stage == ERROR:
            own = own or values["reason"]
        elif "traceback" in values:
            traced.add(r.process)
        elif "chained" in values:
            chained.add(r.process)
        elif "fatal" in values:
            fatal = fatal or values["reason"]
        elif (
            "generic" in values
            and not _CONSEQUENCE.search(values["reason"])
            and (r.process in traced or values["logged"])
        ):
            if cause is None or (by == r.process and by in chained):
                cause, by, caused = values["reason"], r.process, r.number
                chained.discard(by)
    if caused < survived and not fatal:
        cause = None
    return own or cause, fatal
