"""What the requests look like: input and output length, of one or of each in a file."""

import csv
import json
import math
import os
from dataclasses import dataclass
from numbers import Integral

from .units import LARGEST_COUNT, InputError

PROMPT_COLUMNS = (
    "prompt_tokens",
    "prompt_len",
    "input_tokens",
    "input_len",
    "ContextTokens",
    "Request tokens",
)
OUTPUT_COLUMNS = (
    "output_tokens",
    "output_len",
    "completion_tokens",
    "max_tokens",
    "GeneratedTokens",
    "Response tokens",
)


@dataclass(frozen=True)
class Workload:
    """Requests of ``input_len`` prompt tokens and ``output_len`` generated ones."""

    input_len: int
    output_len: int

    def __post_init__(self):
        for name in ("input_len", "output_len"):
            value = getattr(self, name)
            if not isinstance(value, Integral):
                raise InputError(f"{name} is {value!r}; it must be a whole number of tokens")
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1 token")

    @property
    def length(self) -> int:
        """L = input + output, tokens of one finished request."""
        return self.input_len + self.output_len

    def blocks(self, block_size: int) -> int:
        """Whole KV blocks of one finished request: ceil(L / block_size)."""
        return -(-self.length // block_size)


def largest(fits, most: float = math.inf, near: int = 0) -> int:
    """The largest count for which ``fits(count)`` holds, 0 if none; it holds for all below one.

    The search begins at ``near``, a guess, with steps that double, and stops beyond ``most``.
    """
    low, high, step = near, near + 1, 1
    if near and not fits(near):
        high = near
        while (low := max(0, high - step)) and not fits(low):
            high, step = low, 2 * step
    else:
        while high <= most and fits(high):
            step *= 2
            low, high = high, high + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def at_percentile(workloads: list[Workload], percent: float = 95) -> Workload:
    """The request whose length ``percent`` % of them do not exceed (nearest rank).

    >>> at_percentile([Workload(10, n) for n in range(1, 21)])
    Workload(input_len=10, output_len=19)
    """
    ordered = sorted(workloads, key=lambda workload: workload.length)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def read_lengths(path: str | os.PathLike) -> list[Workload]:
    """Each request of a CSV with a header, or of a JSONL file, in the order of the file.

    The prompt is the first of ``PROMPT_COLUMNS`` that is there, the output the first of
    ``OUTPUT_COLUMNS`` (the last two of both are those of public traces); other columns are not
    read. Raises InputError ``FILE:LINE: what is wrong, and what would be right``.
    """
    line = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            json_lines = file.read(4096).lstrip()[:1] in ("{", "[")
            file.seek(0)
            found = []
            for line, entry in _json_lines(file) if json_lines else _csv_lines(file):
                found.append(
                    Workload(
                        _tokens(entry, PROMPT_COLUMNS, "prompt"),
                        _tokens(entry, OUTPUT_COLUMNS, "output"),
                    )
                )
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, csv.Error) as error:
        what = str(error) if isinstance(error, InputError) else f"neither CSV nor JSONL ({error})"
        raise InputError(f"{path}:{line}: {what}" if line else f"{path}: {what}") from None
    if not found:
        raise InputError(
            f"{path}: no request; expected a CSV with a header, or JSONL, such as "
            '{"prompt_tokens": 1024, "output_tokens": 256}'
        )
    return found


def _json_lines(file):
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, _object(line)


def _object(line: str):
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _csv_lines(file):
    reader = csv.DictReader(file)
    for entry in reader:
        yield reader.line_num, entry


def _tokens(entry, columns: tuple[str, ...], what: str) -> int:
    if not isinstance(entry, dict):
        raise InputError("no JSON object; JSONL has one a line")
    name = next((name for name in columns if entry.get(name) not in (None, "")), None)
    if name is None:
        raise InputError(f"no {what} tokens; expected one of {', '.join(columns)}")
    value = entry[name]
    text = value.strip() if isinstance(value, str) else str(value)
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:20]) <= LARGEST_COUNT:
        raise InputError(f"{name} is {text[:40]!r}; expected a whole number of tokens, at least 1")
    return int(text)
