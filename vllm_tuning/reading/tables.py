"""launches.csv: its columns, read and written."""

import csv
import io
import os
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ..launch import KNOBS, Launch
from ..units import GIB, LARGEST_COUNT, InputError, parse_size
from .files import read_text, write_whole

DATA = next(
    (
        folder
        for folder in (Path(__file__).parents[1] / "data", Path(__file__).parents[2] / "data")
        if folder.is_dir()
    ),
    Path("data"),
)

_WORDS: dict[str, dict[str, str | bool]] = {
    "status": {"ok": "ok", "failed": "failed"},
    "flag": {"true": True, "false": False},
    "runner": {"v1": "V1", "v2": "V2"},
}


@dataclass(frozen=True)
class Column:
    """How one column is read; ``low`` and ``high`` are the bounds of a sensible value."""

    attribute: str
    kind: str
    low: float = -1e9
    high: float = 1e9

    def parse(self, text: str):
        """The cell's value, or ValueError with what would be right."""
        if self.kind == "text":
            return text
        if self.kind == "list":
            return tuple(text.split())
        if words := _WORDS.get(self.kind):
            if text.lower() not in words:
                raise ValueError(f"{text!r} is not {' or '.join(words)}")
            return words[text.lower()]
        if self.kind == "count":
            value: float = parse_size(text)
        elif re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
            value = float(text)
        else:
            unit = "a number of GiB, such as 11.32" if self.kind == "gib" else "a number"
            raise ValueError(f"{text!r} is not {unit}; leave the cell blank if it is unknown")
        if not self.low <= value <= self.high:
            raise ValueError(f"{text} is out of range; expected {self.low:g} to {self.high:g}")
        return value * GIB if self.kind == "gib" else value

    def to_json(self, value):
        if self.kind == "list":
            return list(value)
        if self.kind == "gib" and value is not None:
            return value / GIB
        return value

    def to_cell(self, value) -> str:
        if value is None:
            return ""
        if self.kind == "list":
            return " ".join(value)
        return str(value).lower() if self.kind == "flag" else str(self.to_json(value))


_KINDS: dict[str, tuple] = {
    **dict.fromkeys(("source", "vllm_version", "model", "kv_cache_dtype", "error"), ("text",)),
    "status": ("status",),
    "warnings": ("list",),
    "cuda_graph_charged": ("flag",),
    "cold_start": ("flag",),
    "model_runner": ("runner",),
    "gpu_memory_utilization": ("number", 1e-9, 1),
    "max_concurrency": ("number", 0),
    "total_memory": ("gib", 1e-9),
    "model_weights": ("gib", 0),
    "peak_activation": ("gib", 0),
    **dict.fromkeys(("non_torch", "kv_cache", "cuda_graph", "cuda_graph_estimated"), ("gib",)),
}


def _columns() -> dict[str, Column]:
    columns = {}
    for item in fields(Launch):
        if item.compare and item.name not in ("hybrid", "measured", "exact"):
            kind = _KINDS.get(item.name, ("count", 1, LARGEST_COUNT))
            columns[item.name + ("_gib" if kind[0] == "gib" else "")] = Column(item.name, *kind)
    return columns


COLUMNS = _columns()


def locate(launches: str | os.PathLike) -> Path:
    """The launches.csv meant by a file, a folder that holds one, or the name of a carried data set.

    Raises InputError where there is none.
    """
    path = Path(launches)
    if not path.exists() and path.parent == Path() and (DATA / path / "launches.csv").is_file():
        path = DATA / path
    if path.is_dir():
        if not (path / "launches.csv").is_file():
            logs = any(path.glob("*.log*"))
            raise InputError(
                f"{path}: no launches.csv in this folder"
                + (f"; name the logs themselves: {path}/*.log" if logs else "")
            )
        path = path / "launches.csv"
    if not path.exists():
        carried = ", ".join(sorted(p.parent.name for p in DATA.glob("*/launches.csv")))
        raise InputError(f"{path}: no such file, folder or data set (carried: {carried or 'none'})")
    return path


def read_launches(launches: str | os.PathLike) -> list[Launch]:
    """Launches out of a launches.csv, a folder of one, or a carried data set's name.

    Any subset of the columns in any order; ``#`` starts a comment line; a blank cell is unknown;
    sizes may be written as ``80K``. Raises InputError ``FILE:LINE: what, and what would be right``.
    """
    path = locate(launches)
    return parse_launches(read_text(path, "a launches.csv"), str(path))


def by_warnings(launch: Launch) -> Launch:
    """The launch with the fields that its warnings stand for."""
    given = {"profiling_skipped", "persisted_startup_plan", "blocks_overridden"}
    return replace(
        launch,
        hybrid="hybrid_kv" in launch.warnings,
        measured=not given & set(launch.warnings),
        exact="exact_figures" in launch.warnings,
    )


def parse_launches(text: str, name: str = "launches.csv") -> list[Launch]:
    """Launches out of the text of a launches.csv; ``name`` is the file's name in messages."""
    header, launches = None, []
    for line, cells in _rows(text, name):
        if header is None:
            header = _header(cells, f"{name}:{line}")
            continue
        where = f"{name}:{line}"
        if len(cells) > len(header) and any(cells[len(header) :]):
            raise InputError(
                f"{where}: {len(cells)} cells, but the header names {len(header)} "
                "columns; a figure with a comma must stand in quotes"
            )
        values = {}
        for column, cell in zip(header, cells, strict=False):
            if not cell:
                continue
            if not column:
                raise InputError(f"{where}: {cell!r} stands in a column without a name")
            try:
                values[COLUMNS[column].attribute] = COLUMNS[column].parse(cell)
            except ValueError as error:
                raise InputError(f"{where}: {column}: {error}") from None
        if values:
            launches.append(by_warnings(Launch(**{"source": where, **values}, where=where)))
    if header is None:
        raise InputError(
            f"{name}: empty; expected a header such as "
            "max_num_seqs,max_num_batched_tokens,kv_cache_gib"
        )
    if not launches:
        raise InputError(f"{name}: a header but no launches below it")
    return launches


def _rows(text: str, name: str):
    lines = [
        ("" if line.lstrip().startswith("#") else line) for line in re.split(r"\r\n|\n|\r", text)
    ]
    reader = csv.reader(io.StringIO("\n".join(lines)), strict=True)
    line = 1
    try:
        for cells in reader:
            cells = [" ".join(cell.split()) for cell in cells]
            if any(cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}: not a CSV line ({error})") from None


def _header(cells: list[str], where: str) -> list[str]:
    for number, cell in enumerate(cells):
        if cell and cell not in COLUMNS:
            raise InputError(f"{where}: unknown column {cell!r}; known: {', '.join(COLUMNS)}")
        if cell and cell in cells[:number]:
            raise InputError(f"{where}: column {cell!r} stands twice")
    return cells


def write_launches(launches: list[Launch], path: str | os.PathLike) -> None:
    """Write launches.csv with the two flags and the columns that any launch fills.

    Whole or not at all; the folder is made where it is missing.
    """
    used = [
        name
        for name, column in COLUMNS.items()
        if name in KNOBS
        or any(getattr(launch, column.attribute) not in (None, ()) for launch in launches)
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(used)
    for launch in launches:
        writer.writerow(
            [COLUMNS[name].to_cell(getattr(launch, COLUMNS[name].attribute)) for name in used]
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, out.getvalue())
