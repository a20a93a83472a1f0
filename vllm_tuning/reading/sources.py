"""Launches out of whatever a person names: a table of them or a server's log."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..launch import Launch
from ..units import InputError
from .files import opened
from .log import read_log
from .tables import COLUMNS, locate, read_launches


@dataclass(frozen=True)
class Source(os.PathLike):
    """A path with the launches that were read from it: handed on, it is not read again."""

    path: str
    launches: tuple[Launch, ...]

    def __fspath__(self) -> str:
        return self.path

    __str__ = __fspath__


def sources_of(launches: str | os.PathLike | Iterable) -> list[Source]:
    """What LAUNCHES names, read once: a table, a carried set, a log, a folder of logs, or several.

    Raises InputError where nothing is named, or what is named cannot be read.
    """
    named = [launches] if isinstance(launches, str | os.PathLike) else list(launches)
    paths = [path for each in named if str(each) for path in _launches_in(each)]
    if not paths:
        raise InputError("no launches are named; expected a data set, a launches.csv, or logs")
    files = (path if is_log(path) else locate(path) for path in paths)
    each_once = dict(zip(map(os.path.realpath, files), paths, strict=True)).values()
    return [Source(os.fspath(path), tuple(read_source(path))) for path in each_once]


def _launches_in(source) -> list:
    """What is read for a source: itself, or the logs of a folder that holds no launches.csv."""
    return [source] if (Path(source) / "launches.csv").exists() else logs_in(source)


def logs_in(source) -> list:
    """The logs of a folder, by name; of anything else, and of a folder without any, itself."""
    logs = Path(source).glob("*.log*") if os.path.isdir(source) else ()
    return sorted(filter(Path.is_file, logs)) or [source]


def read_source(source) -> list[Launch]:
    """The launches of one source: a launches.csv, a folder of one, a carried set, or a log."""
    if isinstance(source, Source):
        return list(source.launches)
    return read_log(source) if is_log(source) else read_launches(source)


def is_log(source) -> bool:
    """Whether a source is a server's log: stdin, a pipe, or a file without a table's header."""
    path = Path(source)
    if str(source) == "-" or path.is_fifo():
        return True
    return path.is_file() and path.suffix != ".csv" and not _has_header(path)


def _has_header(path: Path) -> bool:
    """Whether the first line that is no comment names columns of a launches.csv."""
    with opened(path, "a server's log or a launches.csv") as read:
        lines = read(1 << 16).decode("utf-8-sig", "replace").splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return any(cell.strip() in COLUMNS for cell in first.split(","))
