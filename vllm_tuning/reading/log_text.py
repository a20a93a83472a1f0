"""The text of a server log: from bytes to lines, and from a line to its message and its writer.

Whatever stands before a message is removed here: time stamps, levels, source files, process names,
colours, docker and Kubernetes prefixes, JSON around the line. Months of request lines are passed
over: only the passages around start-ups, and the head of the file, are read closely.
"""

import bisect
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .files import BLOCK, Read

HEAD = 1 << 21  # bytes read closely from the beginning, so that short excerpts need no anchor

AFTER = 2 * BLOCK  # bytes read closely after an anchor: a failure follows the last figure

LONGEST = 1 << 22  # bytes of a passage, and of a line

CUT = "\ufffc"  # ends a last line without a line feed: a figure that touches it may be cut

ANCHORS = (b"GiB", b"Initializing a", b"non-default args")  # at least one stands in every start-up


class Process(NamedTuple):
    """Who wrote a line: ``Worker_TP1_EP1``, 445, "" (Ray adds the address of its node)."""

    name: str = ""
    pid: str = ""
    node: str = ""


class Line(NamedTuple):
    """A line of the file by its number, without colours and what collected it.

    ``fresh``: it begins with a prefix, so it is not the wrap of another line.
    """

    number: int
    text: str
    fresh: bool


_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"

_DATE = rf"\d{{4}}[-/]\d\d[-/]\d\d[T ]{_TIME}(?:\s?Z|\s?[+-]\d\d:?\d\d)?"

_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"

_SOURCE = r"\[?[\w./<>\-]+\.py:\d+\]?:?"

_PROCESS = r"[(\[](?:[\w:.\-/]+(?: [\w=]+)? )?pid=\d{1,10}\b[^)\]]*[)\]]"

_LEAD = r"(?:[A-Z]{2,5}(?:\s\+\shost)?|In v[\d.]+,|Engine \d+:)"  # the device of "KV cache size"

_COLOUR = re.compile(r"(?:\x1b)?\[\d+(?:;\d+)*m|\x1b\[[0-9;?]*[A-Za-z]")  # with its ESC, or lost

_COLLECTOR = re.compile(  # docker compose, then a time stamp, then Kubernetes' CRI
    rf"\A(?:[\w.\-/]+ *\| )?(?:{_DATE}\s+)?(?:std(?:out|err) [FP] )?"
)

_QUOTES = "▎▏▌│┃>"  # before each line, as people paste

_QUOTED = re.compile(rf"\A(?:[{_QUOTES}] ?)+")

_TOKENS = "|".join(
    (
        _PROCESS,
        rf"\[?{_DATE}\]?",
        r"\d\d-\d\d(?=\s)",
        rf"\[?{_TIME}Z?\]?",
        rf"\[?(?i:{_LEVEL})\b\]?:?",
        _SOURCE,
        r"\[[^\[\]\"'`{}=]{1,60}\]",
        r"[|>*:+-]+(?=\s)",
        r"[▀▄█]+",
        rf"{_LEAD}(?=\s*\Z)",
    )
)

_PREFIX = re.compile(rf"\s*+(?:(?:{_TOKENS})\s*+)*+")

_BAR = re.compile(r"\A(?:[^\"'`]*(?:it/s|s/it)\])?")

_FRESH = re.compile(
    rf"{_PROCESS}|\[?{_LEVEL}\b|\[?\d{{4}}-(?:\d\d-|[\d-]*{CUT})"
    rf"|\[?\d\d:(?:\d\d:\d|[\d:]*{CUT})"
    rf"|\d\d-\d\d {_TIME}|{_SOURCE}\s"
)

_WRITER = re.compile(
    r"[(\[](?:(?P<name>[\w:.\-/]+(?: [\w=]+)?) )?pid=(?P<pid>\d{1,10})\b"
    r"(?:, ?ip=(?P<node>[\w.:]+))?[^)\]]*[)\]]"
)


def passages(read: Read) -> Iterator[tuple[int, str]]:
    """Number of the first line and text of each passage that may hold a start-up.

    The last text ends without a line feed where the file does.
    """
    number, seen, quiet = 1, 0, AFTER
    passage: list[bytes] = []
    before = (1, b"")
    for block in _blocks(read):
        near = seen < HEAD or any(anchor in block for anchor in ANCHORS)
        quiet = 0 if near else quiet + len(block)
        if quiet <= AFTER:
            if not passage:
                first, lead = before
                passage = [lead]
            passage.append(block)
        elif passage:
            yield first, b"".join(passage).decode("utf-8", "replace")
            passage = []
        before = (number, block)
        number += int(np.count_nonzero(np.frombuffer(block, np.uint8) == 10))
        seen += len(block)
        if passage and sum(map(len, passage)) > LONGEST:
            yield first, b"".join(passage).decode("utf-8", "replace")
            passage, before = [], (number, b"")
    if passage:
        yield first, b"".join(passage).decode("utf-8", "replace")


def _blocks(read: Read) -> Iterator[bytes]:
    """Blocks of whole lines; a line beyond all measure is cut."""
    rest = b""
    while data := read(BLOCK):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:
            rest += data
            if len(rest) > LONGEST:
                yield rest
                rest = b""
    if rest:
        yield rest


def lines_of(first: int, text: str) -> list[Line]:
    """The lines of a passage; progress bars, which share a line, are lines of their own."""
    if "\x1b" in text or "[0" in text:
        text = _COLOUR.sub("", text)
    text = text.removeprefix("\ufeff")
    lines = []
    for number, raw in enumerate(text.removesuffix("\n").split("\n"), first):
        raw = _QUOTED.sub("", raw) if raw[:1] in _QUOTES else raw
        line = _COLLECTOR.sub("", raw)
        line = line[:-1] if line[-1:] == "\\" else line  # as a shell goes on in the next
        line = _unwrapped(line) if line.startswith("{") else line
        parts = re.split(r"[\r\n]+", line) if "\r" in line or "\n" in line else [line]
        lines += [Line(number, part, is_fresh(part)) for part in parts]
    if not text.endswith("\n"):
        last = lines[-1].text + CUT
        lines[-1] = lines[-1]._replace(text=last, fresh=is_fresh(last))
    return lines


def is_fresh(text: str) -> bool:
    """Whether a line begins with a prefix, or is a progress bar: not the wrap of another line."""
    return "%|" in text or (text[:1] in "([DIWEC0123456789" and bool(_FRESH.match(text)))


def _unwrapped(line: str) -> str:
    """The message of a line that is JSON, as docker or a collector writes it."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    found = [record[key] for key in ("message", "msg", "log") if isinstance(record.get(key), str)]
    return _COLOUR.sub("", found[0]) if found else line


def writer_of(before: str) -> Process | None:
    """Who wrote the message that follows ``before``; None where no message can begin there.

    Only prefixes may stand before a message; a progress bar may come before them where its line
    was never ended.
    """
    before = before[-600:]
    if not _PREFIX.fullmatch(_BAR.sub("", before)):
        return None
    writers = list(_WRITER.finditer(before))
    if not writers:
        return Process()
    return Process(*(part or "" for part in writers[-1].group("name", "pid", "node")))


def joined(lines: list[Line]) -> str:
    """A sentence that a terminal wrapped: indented parts follow a space, others split words."""
    return lines[0].text + "".join(
        " " + line.text.lstrip() if line.text[:1].isspace() else line.text for line in lines[1:]
    )


class Flat:
    """All lines as one string, so that a sentence is found wherever it was wrapped."""

    def __init__(self, lines: list[Line]):
        self.lines = lines
        self.text = "".join(line.text for line in lines)
        self.starts, position = [], 0
        for line in lines:
            self.starts.append(position)
            position += len(line.text)

    def locate(self, position: int) -> tuple[int, int]:
        """Index of the line that holds a position, and the position in it."""
        index = bisect.bisect_right(self.starts, position) - 1
        return index, position - self.starts[index]
