"""Plans, launches made and their check on a terminal, as in ``terminal``."""

from dataclasses import replace

from ..launch import KNOBS, serve_flags
from ..units import with_error
from .answer_summary import answer_summary, fit_summary, launches_summary
from .summary import Paragraph, plain


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
    lines += [paint("Launches to make, MODEL and all other flags equal:", bold=True)]
    group = None
    for launch in plan.launches:
        lines += [f"  # {launch.why}"] * (group != launch.why) + [
            f"  vllm serve MODEL {launch.flags}"
        ]
        group = launch.why
    return "\n".join([*lines, *_notes(plan.notes, paint)])


def step_text(step, paint=plain) -> str:
    """The one next launch and what it would gain."""
    lines = []
    if step.launch:
        lines = [
            paint("Launch next, all else equal:", bold=True),
            f"  vllm serve MODEL {step.launch.flags}",
            "",
        ]
    lines += Paragraph(step.why).as_text(paint)
    if step.stderr_after is not None:
        lines.append(
            f"  standard error of C* {step.stderr:,.2g} -> {step.stderr_after:,.2g}, "
            f"C* being {step.seqs:,.1f}"
        )
    return "\n".join(lines)


def measured_text(found, paint=plain) -> str:
    """The launches that were made, the answer or what they tell, and how the check launch agrees."""
    made = [replace(launch, where=launch.source.partition(":")[0]) for launch in found.launches]
    lines = [
        launches_summary(made).as_text(paint),
        "",
        (answer_summary(found.optimum) if found.optimum else fit_summary(found.model)).as_text(
            paint
        ),
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
            *Paragraph(verification.verdict, "good" if verification.holds else "warning").as_text(
                paint
            ),
        ]
    )


def _notes(notes, paint) -> list[str]:
    return [line for note in notes for line in ("", *Paragraph(note, "warning").as_text(paint))]
