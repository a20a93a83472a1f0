"""One launch at the recommended flags: what was predicted against what the server printed."""

from dataclasses import dataclass
from pathlib import Path

from uncertainties import UFloat, ufloat

from ..launch import Launch, column
from ..optimum import Optimum
from ..pool import Pool, expected_at
from ..reading import locate, read_launches
from ..readings import rounding
from ..units import GIB, exact, is_known
from .folder import VERIFY

TWO_SIDED_95 = 1.959963984540054  # quantile of the normal distribution
POOL = "KV cache"
NEAR = 0.01  # of the recommended flags
GRANULES = 4096  # bytes, standard error: torch rounds each tensor up to 512, which no law follows
FAR = 0.01  # of the pool: beyond it the launch belongs into the fit


@dataclass(frozen=True)
class Check:
    """One figure, predicted with its standard error and measured with that of its rounding."""

    name: str
    unit: str
    predicted: UFloat
    measured: UFloat

    @property
    def difference(self) -> UFloat:
        """Measured less predicted."""
        return self.measured - self.predicted

    @property
    def within(self) -> bool:
        """Whether 95 % error bars hold the difference."""
        return abs(self.difference.n) <= TWO_SIDED_95 * self.difference.s

    def to_dict(self) -> dict:
        return {
            "name": self.name,
            "unit": self.unit,
            "predicted": self.predicted.n,
            "predicted_stderr": self.predicted.s,
            "measured": self.measured.n,
            "measured_stderr": self.measured.s,
            "within": self.within,
        }


@dataclass(frozen=True)
class Verification:
    """The check launch beside its prediction. ``requests``: full ones that its pool really holds;
    ``reason``: why there is nothing to compare."""

    launch: Launch
    checks: tuple[Check, ...]
    requests: float | None = None
    reason: str | None = None

    @property
    def holds(self) -> bool | None:
        """Whether max_num_seqs full requests fit the measured pool; None where it is not known."""
        return None if self.requests is None else self.requests >= (self.launch.max_num_seqs or 0)

    @property
    def verdict(self) -> str:
        """A sentence for the reader."""
        if not self.checks:
            return f"Not verified: {self.reason}."
        if self.launch.status == "failed":
            reason = str(self.launch.error).rstrip(".")
            return f"It did not come up: {reason}. Its figures until then: {self._agreement}"
        if self.holds is None:
            return self._agreement
        return (
            f"{self._agreement} The measured pool holds {self.requests:,.1f} full requests, so "
            f"{self.launch.max_num_seqs:,} at once "
            + ("never preempt." if self.holds else "can preempt: too many.")
        )

    @property
    def _agreement(self) -> str:
        pools = {check.unit: check.predicted.n for check in self.checks if check.name == POOL}
        outside = {
            abs(check.difference.n) / pools.get(check.unit, check.predicted.n): check
            for check in self.checks
            if not check.within
        }
        if not outside:
            return "As predicted: every figure is within its error bars."
        share, worst = max(outside.items())
        how = (
            f"{worst.name} differs by {worst.difference.n:+,.4g} {worst.unit}, "
            f"{share:.2%} of the pool"
        )
        if share <= FAR:
            return f"Close, but outside of the error bars: {how}."
        return f"Not as predicted: {how}. Add this launch to the others and ask again."

    def to_dict(self) -> dict:
        """JSON of ``measure --verify``: GiB and tokens."""
        return {
            "max_num_seqs": self.launch.max_num_seqs,
            "max_num_batched_tokens": self.launch.max_num_batched_tokens,
            "status": self.launch.status,
            "error": self.launch.error,
            "checks": [check.to_dict() for check in self.checks],
            "concurrency": self.requests,
            "holds": self.holds,
            "verdict": self.verdict,
        }


def verify_launch(optimum: Optimum, launch: Launch) -> Verification:
    """Compare a launch, at whatever flags, with what the others predict for it.

    Pool and peak in GiB, the KV cache in tokens; those that the launch prints and the model knows.
    """
    model, flags = optimum.model, (launch.max_num_seqs or 1, launch.max_num_batched_tokens or 1)
    if optimum.max_num_seqs is None:
        return Verification(launch, (), reason=f"the others predict nothing, {optimum.reason}")
    found = expected_at(model, *flags)
    pool = ufloat(found.kv_cache, found.kv_cache_stderr)
    peak = model.left_over - model.graph_bytes(flags[0]) - model.s * flags[0] - pool
    checks = []
    for name, predicted, attribute in (
        (POOL, pool, "kv_cache"),
        ("peak activation", peak, "peak_activation"),
    ):
        measured = getattr(launch, attribute)
        if measured is not None and is_known(predicted):
            everyone = [*(fitted.launch for fitted in model.launches), launch]
            error = rounding(column(everyone, attribute))[-1]
            predicted += ufloat(0, GRANULES)
            checks.append(Check(name, "GiB", predicted / GIB, ufloat(measured, error) / GIB))
    sized = Pool(model, optimum.workload, 1)
    if launch.kv_cache_tokens and (tokens := sized.whole_tokens(*flags)):
        predicted = ufloat(tokens, sized.stderr(*flags))
        checks.append(Check(POOL, "tokens", predicted, exact(launch.kv_cache_tokens)))
    reason = launch.error or "the launch printed neither its pool nor its peak"
    return Verification(launch, tuple(checks), _requests(optimum, launch), reason)


def _requests(optimum: Optimum, launch: Launch) -> float | None:
    """Full requests in the measured pool, less the block that vLLM keeps."""
    model, workload = optimum.model, optimum.workload
    if launch.kv_cache_tokens and not model.hybrid:
        blocks = launch.kv_cache_tokens / model.block_size - 1
        return blocks / model.request_blocks(workload.length)
    request = model.request_bytes(workload.length, launch.max_num_batched_tokens or 1)
    if launch.kv_cache and is_known(request):
        return launch.kv_cache / request.n
    return None


def verified(sources, optimum: Optimum) -> Verification | None:
    """The check launch in the verify.csv beside the launches, within 1 % of the recommended flags.

    None where there is none, as for other lengths than it was made for.
    """
    best = optimum.recommended
    beside = Path("-") if str(sources[0]) == "-" else locate(sources[0]).with_name(VERIFY)
    if best is None or not beside.is_file():
        return None
    flags = best.max_num_seqs, best.max_num_batched_tokens
    for launch in reversed(read_launches(beside)):
        made = launch.max_num_seqs or 0, launch.max_num_batched_tokens or 0
        if all(abs(a - b) <= NEAR * b for a, b in zip(made, flags, strict=True)):
            return verify_launch(optimum, launch)
    return None
