"""The verdict under load as text of at most 80 columns; ``paint(text, **style)`` colours it."""

import textwrap

from ..load import Rule, Verdict
from ..reading import ScrapeSeries

WIDTH = 80


WORDS = {True: "Healthy", False: "Not healthy", None: "Not known whether healthy"}


_COLOUR = {
    True: "green",
    False: "red",
    None: "yellow",
    "pass": "green",
    "fail": "red",
    "unknown": "yellow",
}


NAMES = {
    "preemptions": "preemptions",
    "kv_cache_usage_peak": "KV cache usage, peak",
    "waiting": "waiting requests, growth",
    "max_num_seqs": "max_num_seqs, fits",
}


def plain(text: str, **_style) -> str:
    return text


def check_text(verdict: Verdict, changes: list[dict] | None = None, paint=plain) -> str:
    """The verdict, the rules as a table, and for each that does not pass why and what to change."""
    series, colour = verdict.series, _COLOUR[verdict.healthy]
    lines = [
        paint(WORDS[verdict.healthy], bold=True, fg=colour) + f": {_seen(series)}",
        "",
        f"  {'':<26}{'measured':>14}{'limit':>14}",
        *(
            f"  {NAMES[rule.name]:<26}{shown(rule, rule.measured):>14}{shown(rule, rule.limit):>14}"
            f"  {paint(rule.verdict, fg=_COLOUR[rule.verdict])}"
            for rule in verdict.rules
        ),
    ]
    if len(series.engines) > 1:
        lines += ["", "  Each engine: preemptions, KV cache usage, waiting, running at most"]
        lines += [
            f"  {one['engine']:>6}{_short(one['preemptions']):>14}"
            f"{_per_cent(one['kv_cache_usage_peak']):>14}"
            f"{_short(one['waiting_peak']):>14}{_short(one['running_peak']):>14}"
            for one in verdict.to_dict()["per_engine"]
        ]
    for rule in verdict.rules:
        if rule.verdict != "pass":
            lines += ["", *_wrap(f"{NAMES[rule.name]}: {rule.why}")]
        if rule.change:
            lines += [paint(line, bold=True) for line in _wrap(f"Change: {rule.change}.")]
    for notice in verdict.notices:
        text = _wrap(f"{notice.name}: {notice.text}.")
        lines += ["", *(paint(line, fg="yellow") for line in text)]
    if changes is not None:
        lines += [
            "",
            paint("What differs from the baseline", bold=True),
            f"  {'':<36}{'then':>18}{'now':>18}",
        ]
        lines += [
            f"  {change['name']:<36}{_short(change['then']):>18}{_short(change['now']):>18}"
            for change in changes
        ]
    return "\n".join(lines)


def shown(rule: Rule, value: float | None) -> str:
    """A measured value or a limit with its unit."""
    return _per_cent(value) if rule.name == "kv_cache_usage_peak" else _short(value)


def _seen(series: ScrapeSeries) -> str:
    scrapes, engines, seconds = len(series.scrapes), len(series.engines), series.seconds
    return (
        f"{scrapes:,} scrape{'s' * (scrapes != 1)} of {engines:,} engine{'s' * (engines != 1)}"
        + (f" over {seconds[-1]:,.1f} s" if scrapes > 1 and seconds is not None else "")
    )


def _per_cent(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"


def _short(value: float | None) -> str:
    if value is None:
        return "?"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{int(value):,}" if value == int(value) else f"{value:,.4g}"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH - 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
