"""Plans, launches made and their check on a terminal, as in ``terminal``."""

from dataclasses import replace

from ..launch import KNOBS, serve_flags
from ..units import with_error
from .text import answer_text, fit_text, launches_text, plain, wrapped


def plan_text(plan, paint=plain) -> str:
    """The launches of a plan as command lines, a group at a time."""
    lines = []
    if plan.expected:
        lines = [
            "By the estimates the answer lies near mns {:,.0f}, mnbt {:,.0f}.".format(
                *plan.expected
            ),
            "",
        ]
    heading = paint("Launches to make, MODEL and all other flags equal:", bold=True)
    notes = [line for note in plan.notes for line in ("", *wrapped(note, paint, fg="yellow"))]
    return "\n".join([*lines, heading, *_commands(plan.launches), *notes])


def missing_text(missing, paint=plain) -> str:
    """The launches that are missing as command lines, and why."""
    lines = wrapped(missing.why, plain)
    if missing.launches:
        heading = paint("Launch next, all else equal:", bold=True)
        lines = [heading, *_commands(missing.launches), "", *lines]
    return "\n".join(lines)


def _commands(launches) -> list[str]:
    """Command lines, a group at a time."""
    lines, group = [], None
    for launch in launches:
        lines += [f"  # {launch.why}"] * (group != launch.why)
        lines.append(f"  vllm serve MODEL {launch.flags}")
        group = launch.why
    return lines


def measured_text(found, paint=plain) -> str:
    """The launches made, the answer or the fit, and how the check launch agrees."""
    made = [replace(launch, where=launch.source.partition(":")[0]) for launch in found.launches]
    lines = [
        launches_text(made, (), paint),
        "",
        answer_text(found.optimum, paint) if found.optimum else fit_text(found.model, paint),
    ]
    if found.verification:
        lines += ["", verify_text(found.verification, paint)]
    return "\n".join([*lines, "", f"Launches: {found.table}"])


def verify_text(verification, paint=plain) -> str:
    """Predicted and measured side by side, and the verdict."""
    launch = verification.launch
    lines = [
        paint(
            f"Verified with {serve_flags(*(getattr(launch, name) for name in KNOBS))}", bold=True
        ),
        f"  {'':<24}{'predicted':>24}{'measured':>26}",
    ]
    lines += [
        f"  {check.name + ', ' + check.unit:<24}{with_error(check.predicted):>24}"
        f"{with_error(check.measured):>26}"
        for check in verification.checks
    ]
    return "\n".join(
        [
            *lines,
            *wrapped(verification.verdict, paint, fg="green" if verification.holds else "yellow"),
        ]
    )
