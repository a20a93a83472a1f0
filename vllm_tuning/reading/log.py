"""vLLM's server log, of any release, as launches.

From below: ``lines`` finds the passages around start-ups and takes the prefixes off,
``formats`` is the table of the lines that are read, ``messages`` finds them, ``engine``
weighs the ranks of an engine. Here messages become starts, and starts become launches.
"""

import re
from dataclasses import dataclass, field

from ..launch import Launch
from .files import Head, opened
from .kinds import not_expected
from .log_engine import launch_of
from .log_formats import ENGINE, ERROR, FLAGS, LATE, LOAD, MARK, POOL, PROFILE, SERVER
from .log_messages import Message, messages
from .log_text import Process

_CLOCK = re.compile(r"\d\d:\d\d:\d\d")


def read_log(source, name: str | None = None) -> list[Launch]:
    """The launches in a server log: a path (``-`` for stdin, gzip or not) or a binary stream.

    One record for each start of the server, or for each data-parallel engine of a start. Raises
    InputError ``NAME: what it is instead`` where the file cannot be read or holds no start.
    """
    name = name or str(source)
    starts: list[Start] = []
    head = Head()
    with opened(source, "the log of a vLLM server", name) as read:
        for message in messages(lambda size: head.keep(read(size))):
            if not starts or starts[-1].is_over_at(message):
                starts.append(Start())
            starts[-1].add(message)
    real = [
        start
        for start in starts
        if start.is_real and not any(start.sums_up(other) for other in starts)
    ]
    if not real:
        raise not_expected(
            name,
            head.text,
            "no start of a vLLM server in it",
            "the server's log from its start on, with lines such as 'Available KV cache memory: "
            "54.8 GiB'",
        )
    return [
        launch_of(part, f"{name}:{number}") for start in real for number, part in start.engines()
    ]


@dataclass
class Start:
    """The messages of one start of the server, all its ranks and engines together."""

    messages: list[Message] = field(default_factory=list)
    said: set = field(default_factory=set)

    def add(self, new: Message) -> None:
        if not self._repeats(new):
            self.messages.append(new)
            self.said.add(_content(new))

    def _repeats(self, new: Message) -> bool:
        """A line with a clock that stands twice, or one that follows itself, says nothing new."""
        return _content(new) in self.said and (
            bool(_CLOCK.search(new.text)) or _content(new) == _content(self.messages[-1])
        )

    def sums_up(self, other: "Start") -> bool:
        """Whether all its lines, with their clocks, stand in the other start too."""
        return self.said < other.said and any(_CLOCK.search(text) for text, *_ in self.said)

    @property
    def is_real(self) -> bool:
        """Whether a server started here: an echoed command or anyone's error does not count."""
        return any(
            old.row.stage not in (FLAGS, MARK) and "command" not in old.values
            for old in self.messages
        )

    def is_over_at(self, new: Message) -> bool:
        """Whether a message belongs to the next start: it says again what this one has said."""
        stage = new.row.stage
        if stage in (ERROR, MARK) or self._repeats(new):
            return False
        if stage == SERVER:
            return not new.process.name.startswith("ApiServer_") and any(
                old.row is new.row
                or old.row.stage in (ENGINE, LOAD, PROFILE, POOL, LATE, ERROR)
                or {"generic", "fatal"} & set(old.values)
                for old in self.messages
            )
        if stage == FLAGS:  # the engine itself may print them once more when it has started
            return not re.match("EngineCore|Worker", new.process.name) and any(
                old.row.stage == POOL for old in self.messages
            )
        mine = [old for old in self.messages if _same_rank(old.process, new.process)]
        if stage == ENGINE:
            return any(old.row.stage in (ENGINE, LOAD, PROFILE, POOL, LATE) for old in mine)
        if stage == LOAD and "model_weights" in new.values:
            failed = any(old.row.stage == ERROR for old in self.messages)
            unseen = new.process.pid and all(
                old.process.pid != new.process.pid for old in self.messages
            )
            return any(old.row.stage in (PROFILE, POOL, LATE) for old in mine) or (
                failed and bool(unseen)
            )
        again = [old for old in mine if old.row is new.row]
        return (
            stage == PROFILE
            and bool(again)
            and any(
                old.row.stage == POOL and old.number > again[-1].number for old in self.messages
            )
        )

    def engines(self) -> list[tuple[int, list[Message]]]:
        """First line and messages of each data-parallel engine, the server's included."""
        owned = [(_engine(old.process), old) for old in self.messages]
        measured = {
            engine
            for engine, old in owned
            if engine is not None and old.row.stage in (LOAD, PROFILE, POOL) and old.values
        }
        if len(measured) < 2:
            return [(self.messages[0].number, self.messages)]
        parts = []
        for this in sorted(measured):
            first = next(old.number for engine, old in owned if engine == this)
            configured = any(engine == this and old.row.stage == ENGINE for engine, old in owned)
            parts.append(
                (
                    first,
                    [
                        old
                        for engine, old in owned
                        if engine in (None, this) or (old.row.stage == ENGINE and not configured)
                    ],
                )
            )
        return parts


def _content(message: Message) -> tuple:
    return message.text, message.process, message.row, tuple(message.values.items())


def _engine(process: Process) -> int | None:
    number = re.search(r"(?:DP|EngineCore_)(\d+)", process.name)
    return int(number[1]) if number else None


def _same_rank(old: Process, new: Process) -> bool:
    """The same writer, or the same rank under another process id, as after a restart."""
    if old.pid and (old.pid, old.node) == (new.pid, new.node):
        return True
    return old.name == new.name and (
        not old.pid or bool(re.search(r"\d|EngineCore|APIServer", old.name))
    )
