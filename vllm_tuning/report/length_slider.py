"""The report's slider for the length of a request, which needs no kernel and no network.

The page holds the answer and the picture at each of 33 lengths, all computed here; its script shows
one and hides the others. Without the script the answer at the given length stands there.
"""

import re
from pathlib import Path

from ..answer import Answer, find_optimum
from ..figures import figure_1_by_length
from ..workload import Workload
from .answer_summary import expected
from .sections import svg
from .summary import Flags, Paragraph, Summary, warnings

SCRIPT = Path(__file__).with_suffix(".js")
STEPS = [2.0 ** (eighth / 8) for eighth in range(-16, 17)]  # 1/4 ... 4, each 9 % above the last


def ladder(given: Workload) -> list[Workload]:
    """Workloads of 1/4 to 4 times the given length, which is among them, at its share of output.

    >>> [(rung.input_len, rung.output_len) for rung in ladder(Workload(3, 1))][:3]
    [(1, 1), (2, 1), (3, 1)]
    """
    lengths = sorted({max(2, round(given.length * step)) for step in STEPS})
    outputs = [min(length - 1, -(-length * given.output_len // given.length)) for length in lengths]
    return [
        Workload(length - output, output) for length, output in zip(lengths, outputs, strict=True)
    ]


def length_slider(optimum: Answer) -> str:
    """HTML: a slider over the lengths of ``ladder``; else a sentence that says why not."""
    rungs, given = ladder(optimum.workload), optimum.workload
    optima = [find_optimum(optimum.model, rung) for rung in rungs]
    if not any(each.recommended for each in optima):
        none = f"No slider for the length of a request: {optima[0].reason}."
        return Summary(Paragraph(none)).as_html()
    start = rungs.index(given)

    def frame(i) -> str:
        return f'data-frame="{i}" ' + ('class="given"' if i == start else 'style="display:none"')

    def frames(kind, show) -> str:
        return "\n".join(
            f"<{kind} {frame(i)}>{show(each)}</{kind}>" for i, each in enumerate(optima)
        )

    picture = svg(figure_1_by_length, optimum.model, optima, start, height=3.2)
    picture = re.sub("<metadata>.*?</metadata>", "", picture[picture.index("<svg") :], flags=re.S)
    picture = re.sub(r'<g id="frame-(\d+)">', lambda found: f"<g {frame(int(found[1]))}>", picture)
    return (
        '<section class="lengths"><label style="display:none">'
        "Length of a finished request, input + output"
        f'<input type="range" max="{len(rungs) - 1}" value="{start}" autocomplete="off"/></label>\n'
        f"<p><output>{frames('strong', lambda each: _length(each, given))}</output></p>\n"
        f"{frames('div', _answer)}\n"
        '<figure role="img" aria-label="Figure 1 at this length: model run flat, sampler run '
        f'rising, point C where they meet.">{picture}</figure>\n'
        f"{frames('div', _warnings)}\n"
        f"<script>\n{SCRIPT.read_text('utf-8')}</script></section>"
    )


def _length(optimum: Answer, given: Workload) -> str:
    work = optimum.workload
    return (
        f"{work.length:,} tokens ({work.input_len:,} input + {work.output_len:,} output"
        f"{', as given' * (work == given)})"
    )


def _answer(optimum: Answer) -> str:
    if optimum.recommended is None:
        none = f"No recommendation: {optimum.reason}."
        return Summary(Paragraph(none, "warning")).as_html()
    return (Summary(Flags([optimum.recommended.flags])) + expected(optimum)).as_html()


def _warnings(optimum: Answer) -> str:
    """What ``find_optimum`` warns of beyond the launches."""
    found = warnings([one for one in optimum.notices if one not in optimum.model.notices])
    return (found if found.parts else Summary(Paragraph("No warning about this length."))).as_html()
