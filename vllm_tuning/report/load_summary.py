"""The verdict under load."""

from ..load import Rule, Verdict
from .summary import Cell, Paragraph, Part, Summary, Table, warnings

WORDS = {True: "Healthy", False: "Not healthy", None: "Not known whether healthy"}

STYLES = {True: "good", False: "bad", None: "warning", "pass": "good", "fail": "bad"}

NAMES = {
    "preemptions": "preemptions",
    "kv_cache_usage_peak": "KV cache usage, peak",
    "waiting": "waiting requests, growth",
    "max_num_seqs": "max_num_seqs, fits",
}


def check_summary(verdict: Verdict, changes: list[dict] | None = None) -> Summary:
    """The verdict, the rules, why one does not pass and what to change, what differs from then."""
    series = verdict.series
    scrapes, engines, seconds = len(series.scrapes), len(series.engines), series.seconds
    over = f" over {seconds[-1]:,.1f} s" if scrapes > 1 and seconds is not None else ""
    seen = f"{scrapes:,} scrape{'s' * (scrapes != 1)} of {engines:,} engine{'s' * (engines != 1)}"
    rules = [
        (
            NAMES[rule.name],
            _shown(rule, rule.measured),
            _shown(rule, rule.limit),
            Cell(rule.verdict, style=STYLES.get(rule.verdict, "warning")),
        )
        for rule in verdict.rules
    ]
    parts: list[Part] = [
        Paragraph(f"{WORDS[verdict.healthy]}. {seen}{over}.", STYLES[verdict.healthy]),
        Table(("", "measured", "limit", "verdict"), rules),
    ]
    if engines > 1:
        head = ("engine", "preemptions", "KV cache usage", "waiting at most", "running at most")
        names = ("waiting_peak", "running_peak")
        rows = [
            (
                one["engine"],
                one["preemptions"],
                per_cent(one["kv_cache_usage_peak"]),
                *(one[name] for name in names),
            )
            for one in verdict.to_dict()["per_engine"]
        ]
        parts.append(Table(head, rows))
    for rule in verdict.rules:
        if rule.verdict != "pass":
            parts.append(Paragraph(f"{NAMES[rule.name]}: {rule.why}"))
        if rule.change:
            parts.append(Paragraph(f"Change: {rule.change}.", "good"))
    if changes is not None:
        rows = [(change["name"], change["then"], change["now"]) for change in changes]
        parts.append(Paragraph("What differs from the baseline", "heading"))
        parts.append(Table(("", "then", "now"), rows))
    return Summary(*parts) + warnings(verdict.notices)


def per_cent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _shown(rule: Rule, value: float | None):
    return per_cent(value) if rule.name == "kv_cache_usage_peak" else value
