"""The verdict under load as text of at most 80 columns; ``paint(text, **style)`` colours it."""

import textwrap

from ..load import Rule, Verdict

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
    series = verdict.series
    lines = [
        paint(WORDS[verdict.healthy], bold=True, fg=_COLOUR[verdict.healthy])
        + f": {_seen(series)}",
        "",
        f"  {'':<26}{'measured':>14}{'limit':>14}",
    ]
    for rule in verdict.rules:
        lines.append(
            f"  {NAMES[rule.name]:<26}{shown(rule, rule.measured):>14}"
            f"{shown(rule, rule.limit):>14}  " + paint(rule.verdict, fg=_COLOUR[rule.verdict])
        )
    if len(series.engines) > 1:
        lines += ["", "  Each engine: preemptions, KV cache usage, waiting, running at most"]
        lines += [
            f"  {one['engine']:>6}"
            + "".join(
                f"{'?' if one[name] is None else format(one[name], form):>14}"
                for name, form in (
                    ("preemptions", ",d"),
                    ("kv_cache_usage_peak", ".1%"),
                    ("waiting_peak", ",d"),
                    ("running_peak", ",d"),
                )
            )
            for one in verdict.to_dict()["per_engine"]
        ]
    for rule in verdict.rules:
        if rule.verdict != "pass":
            lines += ["", *_wrap(f"{NAMES[rule.name]}: {rule.why}")]
            lines += (
                [paint(line, bold=True) for line in _wrap(f"Change: {rule.change}.")]
                if rule.change
                else []
            )
    for notice in verdict.notices:
        lines += [
            "",
            *(paint(line, fg="yellow") for line in _wrap(f"{notice.name}: {notice.text}.")),
        ]
    if changes is not None:
        lines += [
            "",
            paint("What differs from the baseline", bold=True),
            f"  {'':<36}{'then':>18}{'now':>18}",
            *(
                "  {name:<36}".format_map(change) + f"{_short(change['then']):>18}"
                f"{_short(change['now']):>18}"
                for change in changes
            ),
        ]
    return "\n".join(lines)


def shown(rule: Rule, value) -> str:
    """A measured value or a limit with its unit."""
    if value is None:
        return "?"
    if rule.name == "kv_cache_usage_peak":
        return f"{value:.1%}"
    return f"{value:,.4g}" if value != int(value) else f"{int(value):,}"


def _seen(series) -> str:
    def many(count, what):
        return f"{count:,} {what}" + "s" * (count != 1)

    over = (
        f" over {series.seconds[-1]:,.1f} s"
        if series.seconds is not None and len(series.scrapes) > 1
        else ""
    )
    return f"{many(len(series.scrapes), 'scrape')} of {many(len(series.engines), 'engine')}{over}"


def _short(value) -> str:
    if value is None:
        return "?"
    if isinstance(value, (bool, str)):
        return " ".join(str(value).lower().split())[:17]
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH - 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
