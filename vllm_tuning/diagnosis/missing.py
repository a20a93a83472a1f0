"""What the launches cannot tell: the reason, and the next launch that would tell it.

``model`` is a MemoryModel throughout.
"""

from dataclasses import dataclass

from ..branches import SIGNIFICANT
from ..launch import Notice, serve_flags
from ..units import GIB, is_known

_AXIS = {"k1": "max_num_batched_tokens", "k2": "max_num_seqs"}


GROUP_1 = "group 1: the sampler run, which tells K2"


GROUP_2 = "group 2: the model run, which tells K1"


@dataclass(frozen=True)
class NextLaunch:
    """A launch that would tell what is not known yet."""

    max_num_seqs: int
    max_num_batched_tokens: int
    why: str

    @property
    def flags(self) -> str:
        return serve_flags(self.max_num_seqs, self.max_num_batched_tokens)


def within_rounding(model) -> dict[str, str]:
    """Slopes that the rounding of the readings could explain alone, with the sentence."""
    return {
        slope: f"the readings differ by no more than their rounding, so the slope with {axis} "
        f"is not known ({value.n:,.0f} +- {value.s:,.0f} bytes)"
        for slope, axis in _AXIS.items()
        if is_known(value := getattr(model, slope)) and value.n < SIGNIFICANT * value.s
    }


def missing_reasons(model) -> dict[str, str]:
    """Why each parameter that is NaN is not identified."""
    reasons = {}
    for slope, intercept in (("k1", "a1"), ("k2", "a2")):
        if not is_known(getattr(model, slope)):
            reasons[slope] = _missing_slope(model, slope)
            reasons[intercept] = f"{slope.upper()} is not known"
        elif not is_known(getattr(model, intercept)):
            reasons[intercept] = (
                "what weights and the driver leave over is not known: needs "
                "peak_activation_gib beside kv_cache_gib, or total_memory_gib, "
                "gpu_memory_utilization, model_weights_gib and non_torch_gib"
            )
    return reasons


def _missing_slope(model, slope: str) -> str:
    axis = _AXIS[slope]
    branch = "model" if slope == "k1" else "sampler"
    other = "sampler" if slope == "k1" else "model"
    mine = [f.launch for f in model.launches if f.branch == branch]
    flags = {(f.launch.max_num_seqs, f.launch.max_num_batched_tokens) for f in model.launches}
    if len(flags) == 1 and len(model.launches) > 1:
        return "all launches have the same max_num_seqs and max_num_batched_tokens"
    if len(flags) == 1:
        return "one launch gives no slope"
    if slope == "k2" and not any(f.launch.max_num_seqs for f in model.launches):
        return "max_num_seqs is not given for any launch"
    if not mine:
        return (
            f"no launch is in the {branch}'s branch: in all of them the {other} run sets the "
            "peak"
            + (
                f", which does not move with {axis} beyond its rounding"
                if len({getattr(f.launch, axis) for f in model.launches}) > 1
                else ""
            )
        )
    values = {
        min(l.max_num_seqs, l.max_num_batched_tokens) if slope == "k2" else l.max_num_batched_tokens
        for l in mine
    }
    return (
        f"the {branch}'s branch holds launches at one {axis} only "
        f"({', '.join(f'{value:,}' for value in sorted(values))})"
    )


def poor_fit(model):
    """A notice where a launch is off the law by more than rounding explains."""
    worst = max(model.launches, key=lambda fitted: abs(fitted.residual))
    peaks = (
        [f.kv_cache for f in model.launches if f.kv_cache is not None]
        or [f.peak_activation for f in model.launches if f.peak_activation is not None]
        or [0.0]
    )
    if abs(worst.residual) > max(3 * model.unit, 0.01 * (max(peaks) - min(peaks))):
        yield Notice(
            "poor_fit",
            f"{worst.launch.where}: off the law by "
            f"{worst.residual / GIB:+.3f} GiB, more than rounding explains. The sampler of "
            "some releases is steeper for few requests: launch the first group at "
            "max_num_seqs >= 128, on an idle GPU.",
        )


def repeats_differ(model):
    """A notice where launches with equal flags read further apart than rounding explains."""
    seen = {}
    for fitted in model.launches:
        flags = fitted.launch.max_num_seqs, fitted.launch.max_num_batched_tokens
        first = seen.setdefault(flags, fitted)
        apart = abs(fitted.residual - first.residual)
        if apart > 3 * model.unit:
            unknown = " max_num_seqs is not given: does it differ?" * (flags[0] is None)
            yield Notice(
                "repeats_differ",
                f"{fitted.launch.where}: equal flags as {first.launch.where}, but "
                f"{apart / GIB:.2f} GiB apart.{unknown} So much varies from start to start, "
                "or something else was changed, or another process was on the GPU.",
            )


def next_launches(model, tried=()) -> list[NextLaunch]:
    """The launches that would identify what is missing: group 1 moves C, group 2 moves B.

    tried: (mns, mnbt) that were launched to no avail, such as those that failed.
    """
    seen = {*tried} | {
        (f.launch.max_num_seqs, f.launch.max_num_batched_tokens) for f in model.launches
    }
    group = {
        branch: [f.launch for f in model.launches if f.branch == branch]
        for branch in ("model", "sampler")
    }
    wanted = []
    if not is_known(model.k2):
        tokens = min((l.max_num_batched_tokens for l in group["sampler"]), default=1024)
        seqs = sorted({min(l.max_num_seqs or 1, tokens) for l in group["sampler"]})
        if not seqs:
            pairs = [(256, tokens), (1024, tokens)]
        else:
            steps = [seqs[0] // 2] * (seqs[0] >= 256) + [4 * seqs[-1], 2 * seqs[-1], 8 * seqs[-1]]
            pairs = [pair for step in steps if (pair := (step, max(tokens, step))) not in seen][:1]
        wanted += [(*pair, GROUP_1) for pair in pairs]
    if not is_known(model.k1):
        sure = [l for l in group["model"] if 64 * (l.max_num_seqs or 1) <= l.max_num_batched_tokens]
        tokens = max((l.max_num_batched_tokens for l in sure), default=None)
        seqs = min([16, *(l.max_num_seqs or 16 for l in sure)])
        if not sure:
            budgets = [4096, 16384]
        else:
            steps = (4 * tokens, tokens // 4) if tokens <= 8192 else (tokens // 4, 2 * tokens)
            budgets = [budget for budget in steps if (seqs, budget) not in seen][:1]
        wanted += [(seqs, b, GROUP_2) for b in budgets]
    return [NextLaunch(*launch) for launch in wanted if launch[:2] not in seen]
