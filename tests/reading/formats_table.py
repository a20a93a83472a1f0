"""The table of the lines that are read, out of the formats themselves, as Markdown.

python tests/reading/formats_table.py  # the table in vllm_tuning/reading/README.md
"""

import re

from vllm_tuning.reading.log_formats import STAGES, formats

HEAD = """\
| part of the start | the line begins with | releases | what is taken from it |
| --- | --- | --- | --- |
"""
PARTS = {
    "SERVER": "what was asked for",
    "FLAGS": "flags in force",
    "ENGINE": "the engine",
    "LOAD": "loading",
    "PROFILE": "profiling",
    "POOL": "the pool",
    "LATE": "graphs, summary",
    "ERROR": "why it failed",
    "MARK": "what happened",
}


def words(pattern: str) -> str:
    """An anchor as people read it: without what a regular expression adds."""
    plain = re.sub(r"\(\?P<\w+>.*?\)|\[[^\]]*\]", "...", re.sub(r"\(\?[!=].*?\)", "", pattern))
    plain = re.sub(r"\\[A-Za-z]\*?|[?*+^$]|\(\?:", " ", plain)
    plain = re.sub(r"\\(.)", r"\1", plain)
    return " ".join(plain.replace("(", " ").replace(")", " ").split())


def row(form) -> str:
    pattern = re.sub(r"\(\?:([^()|]*)\|[^()]*\)", r"\1", form.anchor.pattern)  # the first will do
    begins = " or ".join(f"`{words(each)}`" for each in pattern.split("|"))
    figures = [f"`{name}`" for name in form.pattern.groupindex if name != "flags"]
    parts = PARTS[STAGES[form.stage]], begins, form.releases, ", ".join(figures)
    return f"| {' | '.join(parts)} |\n"


def table() -> str:
    return HEAD + "".join(map(row, formats()))


if __name__ == "__main__":
    print(table(), end="")
