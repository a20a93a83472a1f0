"""What each max_num_seqs costs, in words, and the load runs that tell it."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..answer import Answer
from ..diagnosis import Notice
from ..reading import LoadRun
from ..scheduler import Throughput, runs_to_make
from .summary import Cell, Flags, Paragraph, Summary, Table, warnings

SHOWN = 12  # points of the curve in the table
OTHER = 0.1  # that the runs' lengths may differ from those asked for
PROMPTS = 8  # times the requests in flight


@dataclass(frozen=True)
class LoadsToMake:
    """The benchmarks to make against one server at the recommended flags, as commands."""

    answer: Answer

    @property
    def loads(self) -> tuple[int, ...]:
        best = self.answer.recommended
        assert best is not None
        return runs_to_make(best.max_num_seqs)

    @property
    def commands(self) -> list[str]:
        work = self.answer.workload
        return [
            "vllm bench serve --model MODEL --dataset-name random "
            f"--random-input-len {work.input_len} --random-output-len {work.output_len} "
            f"--ignore-eos --max-concurrency {load} --num-prompts {PROMPTS * load} "
            "--save-result --append-result --result-filename runs.json"
            for load in self.loads
        ]

    def to_dict(self) -> dict:
        return {"points": [], "in_flight": list(self.loads), "commands": self.commands}

    def summary(self) -> Summary:
        best = self.answer.recommended
        assert best is not None
        return Summary(
            Paragraph(f"Start ONE server with {best.flags}, and load it three times:", "heading"),
            Flags(self.commands),
            Paragraph("Then give runs.json by --load-runs."),
        )


def _cautions(answer: Answer, found: Throughput, runs: list[LoadRun]) -> Iterator[Notice]:
    """What the curve must be read with."""
    work, best = answer.workload, answer.recommended
    assert best is not None
    for run in runs:
        ran = run.input_len or work.input_len, run.output_len or work.output_len
        own = work.input_len, work.output_len
        if any(abs(a / b - 1) > OTHER for a, b in zip(ran, own, strict=True)):
            yield Notice(
                "other_lengths",
                f"{run.where} ran {ran[0]:,.0f} + {ran[1]:,.0f} tokens: the step time of other "
                "lengths is another.",
            )
            break
    if found.method.beyond_runs:
        loads = [run.running for run in runs]
        yield Notice(
            "beyond_runs",
            f"The method's point is not between the load runs ({min(loads):,.1f} to "
            f"{max(loads):,.1f} running): not measured.",
        )
    if best.max_num_batched_tokens < found.budget_needed:
        yield Notice(
            "budget_throttles",
            f"{best.max_num_batched_tokens:,} tokens a step throttle {best.max_num_seqs:,} "
            f"requests, which need {found.budget_needed:,}.",
        )
    if found.saturated:
        yield Notice("saturated", "So many requests a second are more than the server can put out.")


def throughput_json(
    answer: Answer, found: Throughput, runs: list[LoadRun], bound: float | None
) -> dict:
    """``throughput --json``: tokens a second, seconds; null where not known."""
    said = list(_cautions(answer, found, runs))
    points = [
        {**vars(point), "low": point.low, "high": point.high}
        for point in (*found.points, found.method, found.best)
    ]
    return {
        "workload": vars(answer.workload),
        "points": points[:-2],
        "method": points[-2],
        "best": points[-1],
        "knee": found.knee,
        "target": found.target,
        "budget_needed": found.budget_needed,
        "bound_tokens_per_s": bound,
        "warnings": [notice.name for notice in said],
        "explanations": [notice.text for notice in said],
    }


def throughput_summary(
    answer: Answer, found: Throughput, runs: list[LoadRun], bound: float | None
) -> Summary:
    """One sentence, the curve as a table, and what to read it with."""
    method, work = found.method, answer.workload
    parts = [
        Paragraph(
            f"Requests of {work.input_len:,} + {work.output_len:,} tokens: the method's point, mns "
            f"{method.max_num_seqs:,}, gives {method.output_tokens_per_s:,.0f} output tokens/s, "
            f"{found.standing}; mns {found.knee:,} gives 95 % of it, with a token every "
            f"{1e3 * found.at_knee.tpot_s:,.1f} ms instead of {1e3 * method.tpot_s:,.1f}.",
            "heading",
        )
    ]
    if found.target:
        parts.append(Paragraph(f"Within the time asked for a token: mns {found.target:,}."))
    parts.append(Paragraph(f"The point needs {found.budget_needed:,} tokens a step."))
    if bound:
        parts.append(
            Paragraph(
                f"By the data sheet at most {bound:,.0f} tokens/s there, a bound: reading and "
                "multiplying one after the other, and nothing else."
            )
        )
    step = -(-len(found.points) // SHOWN)
    shown = [p for p in found.points if not p.preempts][::-1][::step][::-1]
    rows = [
        (
            point.max_num_seqs,
            f"{point.running:,.1f}",
            f"{point.output_tokens_per_s:,.0f}",
            f"{point.low:,.0f} to {point.high:,.0f}",
            f"{1e3 * point.tpot_s:,.1f}",
            "simulated, preempts" if point.preempts else "not measured" * point.beyond_runs,
        )
        for point in (*shown, *(p for p in found.points if p.preempts))
    ]
    head = ("mns", "running", Cell("tokens/s", "estimated"), "+-10 %", "ms a token", "")
    return Summary(*parts, Table(head, rows)) + warnings(list(_cautions(answer, found, runs)))
