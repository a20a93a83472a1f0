"""What the template notebook shows beside its text: the answer, the check launch, the figures."""

import base64
from html import escape

from ..answer import Answer
from ..figures import rendered
from ..measure import verified
from .answer_summary import recommendation, verification_summary
from .contract import recommend_yaml
from .summary import Flags, Paragraph, Summary


def answer(optimum: Answer) -> str:
    """HTML: the flags to add, the pool to expect and the three steps, and a file of the flags."""
    found = recommendation(optimum)
    if not optimum.recommended:
        return f'<section class="answer open">{found.as_html()}</section>'
    lead = Summary(Paragraph("Add to the flags of the launches:"))
    file = Summary(
        Paragraph("Or as a file for vllm serve --config:"),
        Flags(recommend_yaml(optimum).splitlines()),
    )
    return f'<section class="answer">{(lead + found + file).as_html()}</section>'


def check_launch(sources, optimum: Answer) -> str:
    """HTML: the launch in verify.csv beside the launches against the answer; "" without one."""
    found = verified(sources, optimum)
    if found is None:
        return ""
    return f'<h2 id="Check-launch">Check launch</h2>{verification_summary(found).as_html()}'


def figure(draw, *args, alt: str, height: float = 3.4) -> str:
    """HTML: ``draw(*args, ax)`` as an image."""
    image = base64.b64encode(svg(draw, *args, height=height).encode()).decode()
    return f'<figure><img alt="{escape(alt)}" src="data:image/svg+xml;base64,{image}"></figure>'


def svg(draw, *args, height: float) -> str:
    """``draw(*args, ax)`` as SVG 7 inches wide; the same text for the same data."""
    return rendered(
        draw, *args, height=height, format="svg", metadata={"Date": None, "Creator": None}
    ).decode()
