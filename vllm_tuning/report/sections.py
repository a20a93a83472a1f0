"""The report's sections as HTML: the answer, tables and figures for the template notebook."""

import base64
import re
from html import escape

from ..figures import rendered
from ..launch import short_places
from ..measure import verified
from ..optimum import Optimum
from ..units import is_known, with_error
from .contract import launch_json, recommend_yaml
from .text import pool_to_expect


def table(header, rows) -> str:
    """An HTML table of cells that are HTML already; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th><td>' + "</td><td>".join(map(str, rest)) + "</td></tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def tag(kind: str) -> str:
    """A label: measured (given by the launches), estimated (fitted) or derived (computed)."""
    return f' <span class="tag {kind}">{kind}</span>'


def to_copy(text: str) -> str:
    return (
        f'<div class="copy"><pre><code>{escape(text.rstrip())}</code></pre>'
        '<button type="button" onclick="getSelection().selectAllChildren(this.previousSibling);'
        "document.execCommand('copy');this.textContent='Copied'\">Copy</button></div>"
    )


def number(value, reason="not known") -> str:
    return (
        escape(reason)
        if value is None or not is_known(value)
        else with_error(value).replace(" +- ", "\u00a0±\u00a0")
    )


def answer(optimum: Optimum) -> str:
    """Flags to copy, the pool to expect and the three steps; else what is known and what to do."""
    best, seed = optimum.recommended, optimum.method
    warned = '<p><a href="#Warnings">Read the warnings before use.</a></p>' * bool(optimum.notices)
    if best is None:
        plan = "\n".join(
            f"{launch.flags}   # {launch.why}" for launch in optimum.model.next_launches
        )
        return (
            f'<section class="answer open"><p><strong>No recommendation yet.</strong> '
            f"{escape(optimum.reason[0].upper() + optimum.reason[1:])}.</p>{warned}"
            + f"<p>Launches to make, all other flags as before:</p>{to_copy(plan)}" * bool(plan)
            + f"<p>What the launches tell so far:</p>{parameters(optimum.model)}</section>"
        )
    steps = (
        (
            f"four-launch formula{tag('estimated')}",
            number(seed.max_num_seqs, seed.reason),
            number(seed.max_num_batched_tokens),
            "slopes of the printed peak",
        ),
        (
            f"refined{tag('estimated')}",
            number(optimum.max_num_seqs),
            number(optimum.max_num_batched_tokens),
            "also intercepts and hidden states",
        ),
        (
            f"recommended{tag('derived')}",
            f"<strong>{best.max_num_seqs:,}</strong>",
            f"<strong>{best.max_num_batched_tokens:,}</strong>",
            "also whole requests and KV blocks, vLLM's rules, 95 % confidence",
        ),
    )
    return "\n".join(
        (
            '<section class="answer"><p>Add to the flags of the launches:</p>',
            to_copy(best.flags),
            warned,
            expected(optimum),
            table(("step", "max-num-seqs", "max-num-batched-tokens", "accounts for"), steps),
            "<p>Or as a file for <code>vllm serve --config</code>:</p>",
            to_copy(recommend_yaml(optimum)),
            "</section>",
        )
    )


def expected(optimum: Optimum) -> str:
    """The pool at the recommended flags, and the requests that it holds."""
    best = optimum.recommended
    facts = (
        ("KV cache to expect", "estimated", pool_to_expect(best).replace("+-", "±")),
        ("Full requests it holds", "derived", f"{best.concurrency:,.1f}"),
        ("At once without preemption", "derived", f"{best.max_num_seqs:,} ({optimum.proviso})"),
    )
    return table(
        [name + tag(kind) for name, kind, _ in facts],
        [[f"<strong>{fact}</strong>" for *_, fact in facts]],
    )


def check_launch(sources, optimum: Optimum) -> str:
    """The launch in verify.csv beside the launches, predicted and measured; "" without one."""
    found = verified(sources, optimum)
    if found is None:
        return ""
    rows = [
        (
            f"{check.name} ({check.unit})",
            number(check.predicted),
            number(check.measured),
            "yes" if check.within else "<strong>no</strong>",
        )
        for check in found.checks
    ]
    return (
        f'<h2 id="Check-launch">Check launch</h2><p><strong>{escape(found.verdict)}</strong></p>'
        + table(
            (
                "at the recommended flags",
                "predicted" + tag("estimated"),
                "printed" + tag("measured"),
                "within 95 % error bars",
            ),
            rows,
        )
    )


def parameters(model) -> str:
    """The parameters of the law with standard errors; where one is unknown, the reason."""
    rows = [
        (
            symbol,
            meaning,
            number(
                getattr(model, name),
                "not known: " + model.reasons.get(name, "the launches do not tell"),
            ),
        )
        for symbol, name, meaning in (
            ("K<sub>1</sub>", "k1", "model run, per token of mnbt"),
            ("a<sub>1</sub>", "a1", "model run, at 0 tokens"),
            ("K<sub>2</sub>", "k2", "sampler run, per request of mns"),
            ("a<sub>2</sub>", "a2", "sampler run, at 0 requests"),
            ("k", "k", f"hidden state of a token ({model.k_source})"),
            *[("κ", "kv_per_token", "KV cache of a token")] * (not model.hybrid),
        )
    ]
    if model.request_cost:
        rows += [
            ("", f"a request, {what}", number(value)) for value, what in model.request_cost.in_words
        ]
    return table(("", "meaning", "bytes ± standard error" + tag("estimated")), rows) + (
        f"<p>Read from the printed {'KV cache' if model.route == 'kv_only' else 'peak'}. χ² = "
        f"{model.chi2:,.2f}, degrees of freedom: {model.dof}.</p>"
    )


def launch_table(launches, model) -> str:
    """The launches as given: what all share in a sentence, what differs in a table."""

    def cell(value):
        value = ", ".join(value) if isinstance(value, list) else value
        form = {int: ",", float: ".6g"}.get(type(value), "")
        return "" if value in (None, "") else escape(re.sub(r"\w+://", "", f"{value:{form}}"))

    rows = [
        {
            name: cell(None if value == launch.where or name == "error" else value)
            for name, value in launch_json(launch).items()
        }
        for launch in launches
    ]
    same = {
        name: value
        for name, value in rows[0].items()
        if not name.startswith("max_num") and all(row[name] == value for row in rows)
    }
    head = {name: name.replace("_gib", " (GiB)").replace("_", " ") for name in rows[0]}
    head |= {"max_num_seqs": "mns", "max_num_batched_tokens": "mnbt"}
    shared = "; ".join(f"{head[name]} {value}" for name, value in same.items() if value)
    branch = {
        f.launch.where: f.branch for f in model.launches if is_known(model.k1) or is_known(model.k2)
    }
    return f"<p>In all launches: {shared}.</p>" + table(
        ["line", *(head[n] for n in head if n not in same), "peak set by" + tag("estimated")],
        [
            (
                escape(place),
                *(row[name] for name in row if name not in same),
                branch.get(launch.where, "not known"),
            )
            for launch, place, row in zip(launches, short_places(launches), rows)
        ],
    )


def figure(draw, *args, alt: str, height: float = 3.4) -> str:
    """``draw(*args, ax)`` as an image."""
    image = base64.b64encode(svg(draw, *args, height=height).encode()).decode()
    return f'<figure><img alt="{escape(alt)}" src="data:image/svg+xml;base64,{image}"></figure>'


def svg(draw, *args, height: float) -> str:
    """``draw(*args, ax)`` as SVG 7 inches wide; the same text for the same data."""
    return rendered(
        draw, *args, height=height, format="svg", metadata={"Date": None, "Creator": None}
    ).decode()
