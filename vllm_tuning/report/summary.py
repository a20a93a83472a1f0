"""What an answer says, made once: text for a terminal, HTML for a notebook or a page.

After statsmodels' Summary. A Summary is a row of parts: paragraphs, flags to copy, tables,
warnings. Cells are values or text. The text of every command and the tables of the report are
laid out here, escaped in ``_html`` and freed of control characters in ``text_of``.
"""

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from numbers import Integral, Real
from typing import Any

from uncertainties import UFloat

from ..diagnosis import Notice
from ..units import with_error

WIDTH = 80  # columns of a terminal

COLOURS: dict[str, dict[str, Any]] = {  # styles, as ``click.style`` takes them
    "heading": {"bold": True},
    "good": {"bold": True, "fg": "green"},
    "warning": {"fg": "yellow"},
    "bad": {"fg": "red"},
}

FIGURE = re.compile(
    r"([-+]?[\d.,]+%?|\?)?( \+- <?[\d.,]+)?"
)  # what stands on the right of a column

MOST_WARNINGS = 12  # on a terminal

Paint = Callable[..., str]  # (text, **style) -> text


def plain(text: str, **_style) -> str:
    return text


@dataclass(frozen=True)
class Cell:
    """A value or text with its kind (measured, estimated, derived) and a style of COLOURS."""

    value: object
    kind: str = ""
    style: str = ""


@dataclass(frozen=True)
class Paragraph:
    text: str
    style: str = ""

    def as_text(self, paint: Paint) -> list[str]:
        indent = "" if self.style == "heading" else "  "
        lines = textwrap.wrap(
            text_of(self.text),
            WIDTH - 2,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
        return [_painted(line, self.style, paint) for line in lines]

    def as_html(self) -> str:
        if self.style == "warning":
            return f'<p class="warning">{_html(self.text)}</p>'
        return f"<p>{_html(Cell(self.text, style=self.style))}</p>"


@dataclass(frozen=True)
class Flags:
    """Lines to copy, which are never broken; what follows a # says why."""

    lines: Sequence[str]

    def as_text(self, paint: Paint) -> list[str]:
        return [_painted(f"  {text_of(line)}", "good", paint) for line in self.lines]

    def as_html(self) -> str:
        lines = "\n".join(map(_html, self.lines))
        return (
            f'<div class="copy"><pre><code>{lines}</code></pre>'
            '<button type="button" onclick="getSelection().selectAllChildren('
            "this.previousSibling);document.execCommand('copy');this.textContent='Copied'\">"
            "Copy</button></div>"
        )


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header, which may be (); the first cell of a row names it."""

    header: Sequence
    rows: Sequence[Sequence]

    def as_text(self, paint: Paint) -> list[str]:
        """Figures on the right of their column; the widest column is broken to fit the width."""
        head = [Cell(cell.value, cell.kind, "heading") for cell in map(_cell, self.header)]
        rows = [[_cell(cell) for cell in row] for row in ([head] if head else []) + [*self.rows]]
        columns = [[*map(text_of, column)] for column in zip(*rows, strict=True)]
        right = [all(map(FIGURE.fullmatch, column[len(head) > 0 :])) for column in columns]
        widths = [max(1, *map(len, column)) for column in columns]
        while sum(widths) + 2 * len(widths) > WIDTH and max(widths) > 1:
            widths[widths.index(max(widths))] -= 1
        lines = []
        for row in rows:
            broken = [
                textwrap.wrap(text_of(cell), width, break_on_hyphens=False) or [""]
                for cell, width in zip(row, widths, strict=True)
            ]
            for parts in zip_longest(*broken, fillvalue=""):
                line = [
                    " " * (width - len(part)) * figures
                    + _painted(part, cell.style, paint)
                    + " " * (width - len(part)) * (not figures)
                    for part, width, figures, cell in zip(parts, widths, right, row, strict=True)
                ]
                lines.append("  " + "  ".join(line).rstrip())
        return lines

    def as_html(self) -> str:
        head = "".join(f'<th scope="col">{_html(cell)}</th>' for cell in self.header)
        body = "\n".join(
            f'<tr><th scope="row">{_html(first)}</th>'
            + "".join(f"<td>{_html(cell)}</td>" for cell in rest)
            + "</tr>"
            for first, *rest in self.rows
        )
        return (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n'
            "</tbody></table></div>"
        )


@dataclass(frozen=True)
class Warnings:
    notices: Sequence[Notice]

    def as_text(self, paint: Paint) -> list[str]:
        lines: list[str] = []
        for notice in self.notices[:MOST_WARNINGS]:
            text = f"{notice.name}: {notice.text}"
            lines += [""] * bool(lines) + Paragraph(text, "warning").as_text(paint)
        if (more := len(self.notices) - MOST_WARNINGS) > 0:
            lines += ["", f"  ... and {more} more warnings (all with --json)"]
        return lines

    def as_html(self) -> str:
        items = (
            f"<li><strong>{_html(notice.name)}</strong> {_html(notice.text)}</li>"
            for notice in self.notices
        )
        return f'<div class="warnings"><ul>{"".join(items)}</ul></div>'


Part = Paragraph | Flags | Table | Warnings


class Summary:
    """Parts in the order they are read; two are added with +."""

    def __init__(self, *parts: Part):
        self.parts = parts

    def __add__(self, other: "Summary") -> "Summary":
        return Summary(*self.parts, *other.parts)

    def as_text(self, paint: Paint = plain) -> str:
        """At most 80 columns but for flags; ``paint(text, **style)`` colours it."""
        lines: list[str] = []
        for before, part in zip((None, *self.parts), self.parts, strict=False):
            headed = isinstance(before, Paragraph) and before.style == "heading"
            apart = not headed and not (
                isinstance(part, Paragraph) and isinstance(before, Paragraph)
            )
            new = isinstance(part, Paragraph) and part.style == "heading"
            lines += [""] * bool(lines and (apart or new)) + part.as_text(paint)
        return "\n".join(lines)

    def as_html(self) -> str:
        return "\n".join(part.as_html() for part in self.parts)

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return self.as_text()


def warnings(notices: Sequence[Notice]) -> Summary:
    """The warnings; nothing where there are none."""
    return Summary(*[Warnings(tuple(notices))] * bool(notices))


def text_of(value) -> str:
    """A cell as text: ``1,024``, ``310.3 +- 0.2``, ``?`` for None; no control character is left."""
    if isinstance(value, Cell):
        return text_of(value.value) + f" ({value.kind})" * bool(value.kind)
    if value is None or isinstance(value, UFloat):
        return with_error(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{value:,}"
    if isinstance(value, Real):
        return f"{value:,.6g}"
    return "".join(
        c if c.isprintable() else " " if c.isspace() else _escaped(c) for c in str(value)
    )


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def _cell(value) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _painted(text: str, style: str, paint: Paint) -> str:
    return paint(text, **COLOURS[style]) if style else text


def _html(value) -> str:
    """A cell as HTML: the text escaped, what kind of figure it is as a label."""
    cell = _cell(value)
    text = escape(text_of(cell.value)).replace(" +- ", " \u00b1 ")
    if cell.style:
        text = f"<strong>{text}</strong>"
    return text + (f' <span class="tag {cell.kind}">{cell.kind}</span>' if cell.kind else "")
