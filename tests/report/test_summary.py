"""One Summary is text that fits a terminal and HTML that holds nothing but what was put in."""

import re
from html import unescape
from xml.etree import ElementTree

import pytest
from uncertainties import ufloat

from vllm_tuning.diagnosis import Notice
from vllm_tuning.report.summary import Cell, Flags, Paragraph, Summary, Table, warnings

BAD = "<b>&\x1b[2J\x07\u202eevil\ud800\n" + "long " * 60


def everything(text=BAD):
    return Summary(
        Paragraph(text, "heading"),
        Paragraph(text),
        Paragraph(text, "warning"),
        Flags(["--max-num-seqs 310"]),
        Table((Cell(text, "estimated"), "b"), [(text, 1), (Cell(text, style="bad"), None)]),
        Table((), [(text, text)]),
    ) + warnings([Notice("name", text)] * 14)


def test_text_fits_80_columns_and_holds_no_control_character():
    text = everything().as_text()
    assert max(map(len, text.splitlines())) <= 80
    assert all(letter.isprintable() for letter in text.replace("\n", ""))
    assert "... and 2 more warnings" in text and text.encode()


def test_a_table_of_many_columns_fits_too():
    text = Summary(Table(["column"] * 20, [["1,234,567"] * 20])).as_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "".join(re.findall(r"[\d,]", text)) and "?" not in text


def test_html_is_well_formed_and_nothing_in_it_is_markup_of_the_input():
    html = everything().as_html()
    page = ElementTree.fromstring(f"<div>{html}</div>")
    assert page.findall(".//b") == [] and "<b>&" in "".join(page.itertext())
    assert html.count("<li>") == 14 and "\x1b" not in html
    assert everything()._repr_html_() == html


def test_flags_are_never_broken():
    line = "--max-num-seqs 1 " + "--and-so-on 2 " * 20
    assert f"  {line}" in Summary(Flags([line])).as_text()
    assert line in unescape(Summary(Flags([line])).as_html())


@pytest.mark.parametrize(
    "value, text, html",
    [
        (1234567, "1,234,567", "1,234,567"),
        (None, "?", "?"),
        (True, "yes", "yes"),
        (0.25, "0.25", "0.25"),
        (ufloat(310.3, 0.2), "310.30 +- 0.20", "310.30 \u00b1 0.20"),
        ("a < b", "a < b", "a &lt; b"),
        (Cell(7, "derived"), "7 (derived)", '7 <span class="tag derived">derived</span>'),
    ],
)
def test_a_cell_is_a_value_or_text(value, text, html):
    summary = Summary(Table((), [("name", value)]))
    assert summary.as_text() == f"  name  {text}"
    assert f"<td>{html}</td>" in summary.as_html()


def test_figures_stand_on_the_right_and_words_on_the_left():
    text = Summary(Table(("name", "GiB"), [("a", "1.25"), ("long name", "-10.00")])).as_text()
    assert text.splitlines() == [
        "  name          GiB",
        "  a            1.25",
        "  long name  -10.00",
    ]


def test_colours_are_the_painters():
    def paint(text, **style):
        return f"<{style}>{text}"

    text = Summary(Paragraph("x", "warning"), Paragraph("y")).as_text(paint)
    assert text == "<{'fg': 'yellow'}>  x\n  y"


def test_a_table_without_rows_or_with_an_empty_column_is_text_too():
    assert Summary(Table(("", "then", "now"), [])).as_text().split() == ["then", "now"]
