"""Launches out of whatever a person names: a table of them or a server's log."""

import glob
import os
import shlex
from pathlib import Path

from ..launch import Launch
from ..units import InputError
from .tables import COLUMNS, DATA, locate, read_launches


def sources_of(text) -> list[str]:
    """What a person names in one line: a path, or several with blanks between; wildcards and ~.

    A path begins here, else in the project's folder, where the README's paths begin. Raises
    InputError where nothing is named, or not there.
    """
    text = str(text).strip()
    if not text:
        raise InputError("no launches are named; expected a data set, a launches.csv, or logs")
    if found := _found(glob.escape(text)):
        return found
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{text}: {error}") from None
    for part in parts:
        names = [part] if part in os.listdir(DATA) else _found(part)
        if not names:
            looked = " and ".join(dict.fromkeys(map(str, (Path.cwd(), DATA.parent))))
            raise InputError(f"{part}: no such file, folder or data set; looked in {looked}")
        found += names
    return list({locate(name).resolve(): name for name in found}.values())  # each file once


def _found(pattern) -> list[str]:
    return next(
        filter(
            None,
            (
                sorted(glob.glob(str(folder / Path(pattern).expanduser())))
                for folder in (Path(), DATA.parent)
            ),
        ),
        [],
    )


def read_source(source) -> list[Launch]:
    """The launches that LAUNCHES names: a launches.csv, a folder of one, a carried set, or a log."""
    if not is_log(source):
        return read_launches(source)
    from .log import read_log

    return read_log(source)


def is_log(source) -> bool:
    path = Path(source)
    if str(source) == "-" or path.is_fifo():
        return True
    return path.is_file() and path.suffix != ".csv" and not _has_header(path)


def _has_header(path: Path) -> bool:
    """Whether the first line that is no comment names columns of a launches.csv."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next(
            (
                line
                for line in iter(lambda: file.readline(4096), "")
                if line.strip() and not line.startswith("#")
            ),
            "",
        )
    return any(cell.strip() in COLUMNS for cell in first.split(","))
