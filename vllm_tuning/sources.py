"""Launches out of whatever a person names: a table of them or a server's log."""

from pathlib import Path

from .launches import COLUMNS, Launch, read_launches


def read_source(source) -> list[Launch]:
    """The launches that LAUNCHES names: a launches.csv, a folder of one, a carried set, or a log."""
    path = Path(source)
    if str(source) != "-" and (not path.is_file() or path.suffix == ".csv" or _has_header(path)):
        return read_launches(source)
    from .server_log import read_log  # its table of formats takes long to load

    return read_log(source)


def _has_header(path: Path) -> bool:
    """Whether the first line that is no comment names columns of a launches.csv."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line for line in iter(lambda: file.readline(4096), "")
                      if line.strip() and not line.startswith("#")), "")
    return any(cell.strip() in COLUMNS for cell in first.split(","))
