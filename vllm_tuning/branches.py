"""Which launch lies in which branch of the law, found from the readings alone."""

from dataclasses import dataclass

import numpy as np

from .least_squares import LeastSquares, least_squares, scatter

SIGNIFICANT = 2.5  # two readings one printed unit apart give a slope of 2.45 standard errors
MANY = 16  # different ratios of requests to tokens, from which on their quartiles are starts enough


@dataclass(frozen=True)
class Readings:
    """What a fit sees: B, C, and y = P up to a constant, with standard errors and printed units."""

    tokens: np.ndarray
    seqs: np.ndarray
    y: np.ndarray
    sigma: np.ndarray
    units: np.ndarray

    @property
    def requests(self) -> np.ndarray:
        return np.minimum(self.seqs, self.tokens)

    def subset(self, which) -> "Readings":
        parts = (self.tokens, self.seqs, self.y, self.sigma, self.units)
        return Readings(*(part[which] for part in parts))

    def scaled(self, scale: float) -> "Readings":
        """The same with another unit of y: ``scale`` new ones are one old."""
        values = (scale * part for part in (self.y, self.sigma, self.units))
        return Readings(self.tokens, self.seqs, *values)


@dataclass(frozen=True)
class _Branch:
    """One branch fitted to its own launches; a slope it cannot know is NaN and left flat.

    Such a branch is known from ``level_from`` on: the smallest axis and budget of its launches.
    """

    fit: LeastSquares
    names: tuple[str, ...]
    slope: float
    k: float
    intercept: float
    level_from: tuple[float, float]

    @property
    def slope_known(self) -> bool:
        return np.isfinite(self.slope)

    @property
    def slope_error(self) -> float:
        return float(np.sqrt(self.fit.covariance[1, 1])) if self.slope_known else np.nan


def _fit_branch(axis, tokens, y, sigma, k, free, is_sampler) -> _Branch | None:
    """Fit y = intercept + slope*axis (+ k*tokens); ``free``: k is fitted where that is possible."""
    if not len(y):
        return None
    ones = np.ones(len(y))
    varies = np.ptp(axis) > 0
    columns = [ones, axis] if varies else [ones]
    names = (("a2", "k2") if is_sampler else ("a1", "k1")) if varies else ("level",)
    fit = None
    if free and is_sampler and len(y) > len(columns):
        try:
            fit = least_squares(np.column_stack([*columns, tokens]), y, sigma)
            names, k = (*names, "k"), fit.params[-1]
        except np.linalg.LinAlgError:
            pass
    if fit is None:
        fit = least_squares(np.column_stack(columns), y - k * tokens if is_sampler else y, sigma)
    return _Branch(
        fit,
        names,
        fit.params[1] if varies else np.nan,
        k,
        fit.params[0],
        (axis.min(), tokens.min()),
    )


@dataclass(frozen=True)
class BranchFit:
    """The launches of each branch and the parameters that they identify.

    ``sampler`` is a mask over the readings; ``predicted`` is the fitted reading of each launch.
    """

    sampler: np.ndarray
    model_branch: _Branch | None
    sampler_branch: _Branch | None
    predicted: np.ndarray
    chi2: float
    k_fitted: bool

    @property
    def size(self) -> int:
        return sum(len(b.fit.params) for b in (self.model_branch, self.sampler_branch) if b)

    @property
    def dof(self) -> int:
        return len(self.sampler) - self.size

    @property
    def both_slopes(self) -> bool:
        return all(
            b is not None and b.slope_known for b in (self.model_branch, self.sampler_branch)
        )


def _predict(branch: _Branch | None, readings: Readings, is_sampler: bool) -> np.ndarray:
    """The branch at every launch; a branch known at one level only bounds the launches above it."""
    axis = readings.requests if is_sampler else readings.tokens
    if branch is None:
        return np.full(len(axis), -np.inf)
    tilt = branch.k * readings.tokens if is_sampler else 0.0
    if branch.slope_known:
        return branch.intercept + branch.slope * axis + tilt
    least_axis, least_tokens = branch.level_from
    reached = (axis >= least_axis) & (readings.tokens >= least_tokens)
    return np.where(reached, branch.intercept + tilt, -np.inf)


def _evaluate(readings: Readings, sampler: np.ndarray, k: float, free: bool) -> BranchFit:
    """Fit both branches for one assignment; chi2 is that of the maximum of the two."""
    parts = []
    for which, is_sampler in ((~sampler, False), (sampler, True)):
        axis = readings.requests if is_sampler else readings.tokens
        parts.append(
            _fit_branch(
                axis[which],
                readings.tokens[which],
                readings.y[which],
                readings.sigma[which],
                k,
                free,
                is_sampler,
            )
        )
    model, samp = parts
    predicted = np.maximum(_predict(model, readings, False), _predict(samp, readings, True))
    chi2 = float(np.sum(((readings.y - predicted) / readings.sigma) ** 2))
    if any(b and b.slope_known and b.slope < -SIGNIFICANT * b.slope_error for b in parts):
        chi2 = np.inf  # memory does not fall with more tokens or requests
    k_fitted = samp is not None and "k" in samp.names
    if samp and k_fitted and model and model.slope_known and not samp.k < model.slope:
        chi2 = np.inf  # a hidden state is a part of what the model run holds for a token
    return BranchFit(sampler, model, samp, predicted, chi2, k_fitted)


def _starts(readings: Readings) -> list[np.ndarray]:
    """Masks of the sampler's branch to start from: by ratio, by requests and by tokens.

    Where the branches meet, K2*S = (K1 - k)*B + constant, so that each is a half plane.
    """
    tokens, requests = readings.tokens, readings.requests
    ratio = requests / tokens
    masks = [np.zeros(len(tokens), bool), np.ones(len(tokens), bool)]
    if len(np.unique(ratio)) > MANY:
        quartiles = np.quantile(ratio, (0.25, 0.5, 0.75), method="nearest")
        masks += [ratio >= edge for edge in quartiles]
    else:
        axes = (ratio, requests, -tokens)
        masks += [values >= edge for values in axes for edge in np.unique(values)]
    return list({mask.tobytes(): mask for mask in masks}.values())


def _settle(
    readings: Readings, sampler: np.ndarray, k: float, free: bool, known: dict
) -> BranchFit:
    """Assign, fit, reassign until stable; the best on the way. ``known``: the fits so far."""
    seen: dict[tuple, BranchFit] = {}
    while (key := (sampler.tobytes(), free)) not in seen and len(seen) < 30:
        if key not in known:
            known[key] = _evaluate(readings, sampler, k, free)
        current = seen[key] = known[key]
        sampler = _predict(current.sampler_branch, readings, True) > _predict(
            current.model_branch, readings, False
        )
    return min(seen.values(), key=lambda fit: fit.chi2)


def _choose(readings: Readings, candidates: list[BranchFit]) -> BranchFit:
    """The fewest parameters that explain every reading within its printed unit; else the best fit.

    Without tokens and requests both runs need about nothing, so intercepts far apart come last.

    One branch alone is preferred over one with a stray launch in the other unless that launch is
    off by more than 1 % of the whole range: a bend needs evidence.
    """
    n = len(readings.y)
    spread = np.ptp(readings.y)

    def explains(fit, slack=0.0):
        off = np.abs(readings.y - fit.predicted)
        return np.isfinite(fit.chi2) and np.all(
            off <= np.maximum(readings.units * (1 + 1e-6), slack)
        )

    def cost(fit):
        """Parameters, dearer for a free k: it can tilt one plane through both branches."""
        return fit.size + fit.k_fitted * (1 if fit.model_branch else 2)

    def rank(fit):
        offset = (
            abs(fit.model_branch.intercept - fit.sampler_branch.intercept)
            if fit.both_slopes
            else 0.0
        )
        return (offset > 0.2 * spread, cost(fit), not fit.both_slopes, max(fit.chi2, n), offset)

    adequate = [fit for fit in candidates if explains(fit)]
    best = (
        min(adequate, key=rank)
        if adequate
        else min(candidates, key=lambda fit: (fit.chi2 / max(n - cost(fit), 0.5), cost(fit)))
    )
    if not best.both_slopes:
        alone = [
            fit
            for fit in candidates
            if not (fit.model_branch and fit.sampler_branch)
            and cost(fit) < cost(best)
            and explains(fit, 0.01 * spread)
        ]
        best = min([*alone, *([] if alone else [best])], key=lambda fit: fit.chi2)
    return best


def fit_branches(readings: Readings, k: float | None = None) -> BranchFit:
    """Fit the two-branch law; k is fitted where the launches identify it, else held.

    k: bytes of one hidden state where known (0 is assumed otherwise), in the unit of y per token.
    """
    sample = readings
    if len(readings.y) > 256:
        order = np.argsort(readings.requests / readings.tokens)
        sample = readings.subset(order[np.linspace(0, len(order) - 1, 96).astype(int)])
    held = 0.0 if k is None else k
    known: dict[tuple, BranchFit] = {}
    starts = _starts(sample)
    candidates = [_settle(sample, start, held, False, known) for start in starts]
    if sample is not readings:
        starts = [_choose(sample, candidates).sampler]
    candidates += [_settle(sample, start, held, True, known) for start in starts]
    best = _choose(sample, candidates)
    if sample is not readings:
        start = _predict(best.sampler_branch, readings, True) > _predict(
            best.model_branch, readings, False
        )
        best = _settle(readings, start, held, best.k_fitted, {})
    return _settle_k(readings, best, held)


def _settle_k(readings: Readings, best: BranchFit, held: float) -> BranchFit:
    """With the branches settled: fit k, keep it where it is known, else hold it."""
    free = best if best.k_fitted else _evaluate(readings, best.sampler, held, True)
    if free.sampler_branch and free.k_fitted and np.isfinite(free.chi2):
        variance = free.sampler_branch.fit.covariance[-1, -1]
        error = np.sqrt(variance * scatter(free.chi2, free.dof))
        k1 = free.model_branch.slope if free.model_branch else np.nan
        known = free.sampler_branch.k > SIGNIFICANT * error or error < 0.05 * k1
        if known and free.chi2 <= best.chi2 * (1 + 1e-9) + len(readings.y):
            return free
    fixed = _evaluate(readings, best.sampler, held, False) if best.k_fitted else best
    return fixed if np.isfinite(fixed.chi2) else best
