"""Plans, launches made, and their check."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from .answer_summary import answer_summary, fit_summary, launches_summary, verification_summary
from .summary import Flags, Paragraph, Part, Summary


def plan_summary(plan) -> Summary:
    """The launches of a plan as command lines, a group at a time, and what is to be said."""
    near = "By the estimates the answer lies near mns {:,.0f}, mnbt {:,.0f}."
    expected = [Paragraph(near.format(*plan.expected))] if plan.expected else []
    heading = Paragraph("Launches to make, MODEL and all other flags equal:", "heading")
    notes = [Paragraph(note, "warning") for note in plan.notes]
    return Summary(*expected, heading, _commands(plan.launches), *notes)


def missing_summary(missing) -> Summary:
    """The launches that are missing as command lines, and why."""
    heading = Paragraph("Launch next, all else equal:", "heading")
    launches: list[Part] = [heading, _commands(missing.launches)] if missing.launches else []
    return Summary(*launches, Paragraph(missing.why))


def measured_summary(found) -> Summary:
    """The launches made, the answer or the fit, and how the check launch agrees."""
    made = [replace(launch, where=launch.source.partition(":")[0]) for launch in found.launches]
    answer = answer_summary(found.optimum) if found.optimum else fit_summary(found.model)
    summary = launches_summary(made) + answer
    if found.verification:
        summary += verification_summary(found.verification)
    return summary + Summary(Paragraph(f"Launches: {found.table}"))


def _commands(launches: Iterable) -> Flags:
    lines: list[str] = []
    for why, group in groupby(launches, lambda launch: launch.why):
        lines += [f"# {why}", *(f"vllm serve MODEL {launch.flags}" for launch in group)]
    return Flags(lines)
