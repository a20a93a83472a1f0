"""Which launch lies in which branch of the law, found from the readings and what is known beside.

With the branches settled the law is linear:

    y = a1 + K1*B       + s*C + g*n(C) - TM*dU        in the model run's branch
    y = a2 + K2*S + k*B + s*C + g*n(C) - TM*dU        in the sampler run's, S = min(C, B)

k, s, g (of each of the n sizes that CUDA graphs are captured for), TM, and what few requests take
beside K2 where the sampler sorts, are known beforehand with an error, which enters the fit as one
more reading each.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from .known import Known
from .least_squares import least_squares
from .readings import Readings
from .units import UNKNOWN, is_known

SIGNIFICANT = 2.5  # two readings one printed unit apart give a slope of 2.45 standard errors
EXPECTED = 2  # degrees of freedom that the law's scatter on other servers counts for
PLAUSIBLE = 4.0  # how much worse than the best a split may score, as a chi squared
MOST_SPLITS = 3  # that are kept beside the best
SAMPLED = 256  # launches, from which on 96 of them find the branches
MANY = 16  # different ratios of requests to tokens, from which on their quartiles are starts enough
UNUSUAL = 8.0  # what leaving the largest budget out costs, or a k out of the ordinary


@dataclass(frozen=True)
class Split:
    """The law fitted to one assignment of the launches to branches.

    ``sampler`` is a mask over the readings, ``predicted`` the fitted reading of each. ``params``
    holds every parameter that has a value, ``fitted`` names those that the launches move: ``gain``
    (p, n) and ``known_gain`` (p, m) map the readings, and what is known beforehand with the errors
    ``known_errors`` (m,), to them. Where a branch does not move along its axis it has no slope, and
    its intercept is its level. ``assumed``: a slope that rests on a1 = a2. ``left_out``: the
    reading that is off the line.
    """

    sampler: np.ndarray
    params: dict[str, float]
    fitted: tuple[str, ...]
    gain: np.ndarray
    known_gain: np.ndarray
    known_errors: np.ndarray
    predicted: np.ndarray
    higher: np.ndarray
    chi2: float
    dof: int
    score: float
    assumed: str | None = None
    left_out: int | None = None


def fit_branches(readings: Readings, known: Known) -> list[Split]:
    """The most probable split, then those that explain the launches as simply and about as well."""
    splits = _splits(readings, known)
    few = len(readings.y) <= SAMPLED
    if few and known.k.s:  # other than the usual k, where the launches show it
        free = _splits(readings, replace(known, k=UNKNOWN))
        splits += [replace(split, score=split.score + UNUSUAL) for split in free]
    splits += _without_largest_budget(readings, known) if few else []
    splits.sort(key=lambda split: split.score)
    best: dict[bytes, Split] = {}
    for split in splits:
        simple = len(split.fitted) <= len(splits[0].fitted)
        if simple and split.score <= splits[0].score + PLAUSIBLE:
            best.setdefault(split.sampler.tobytes(), split)
    return [*best.values()][: MOST_SPLITS + 1]


def _splits(readings: Readings, known: Known) -> list[Split]:
    """Each assignment that is met on the way from the starts to a stable one, with its fit."""
    sample = readings
    if len(readings.y) > SAMPLED:
        order = np.argsort(readings.requests / readings.tokens)
        sample = readings.subset(order[np.linspace(0, len(order) - 1, 96).astype(int)])
    splits: dict[bytes, Split] = {}
    for start in _starts(sample):
        _settle(sample, start, known, splits)
    if sample is not readings and splits:
        best = min(splits.values(), key=lambda split: split.score)
        runs = _runs(readings, best.params, sample, best.sampler)
        start, splits = runs[1] > runs[0], {}
        _settle(readings, start, known, splits)
    return [*splits.values()]


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


def _settle(readings: Readings, sampler: np.ndarray, known: Known, splits: dict) -> None:
    """Assign, fit, reassign until stable; ``splits``: what was fitted so far, by its mask."""
    while sampler.tobytes() not in splits:
        split = _fit(readings, sampler, known)
        if split is None:
            return
        splits[sampler.tobytes()] = split
        sampler = split.higher


def _without_largest_budget(readings: Readings, known: Known) -> list[Split]:
    """The splits where the model run takes another workspace at the largest budget."""
    largest = np.flatnonzero(readings.tokens == readings.tokens.max())
    if len(largest) != 1 or len(readings.y) < 4:
        return []
    at, one = int(largest[0]), readings.subset(largest)
    rest = readings.subset(np.delete(np.arange(len(readings.y)), largest))
    found = []
    for split in _splits(rest, known):
        if split.dof < 1 or "k1" not in split.params or split.assumed == "k1":
            continue
        runs = _runs(one, split.params, rest, split.sampler)
        expected = float((np.maximum(*runs) + _shared(one, split.params))[0])
        if readings.y[at] > expected + 3 * readings.sigma[at]:
            longer = replace(
                split,
                sampler=np.insert(split.sampler, at, False),
                higher=np.insert(split.higher, at, False),
                predicted=np.insert(split.predicted, at, expected),
                gain=np.insert(split.gain, at, 0.0, axis=1),
            )
            found.append(replace(longer, score=split.score + UNUSUAL, left_out=at))
    return found


def _fit(readings: Readings, sampler: np.ndarray, known: Known) -> Split | None:
    """The split's linear fit; None where no law that grows with B and C gives these readings."""
    n, y = len(readings.y), readings.y.copy()
    columns: dict[str, np.ndarray] = {}
    flat = []
    for which, axis, intercept, slope in (
        (~sampler, readings.tokens, "a1", "k1"),
        (sampler, readings.requests, "a2", "k2"),
    ):
        if which.any():
            columns[intercept], columns[slope] = which.astype(float), axis * which
            if not np.ptp(axis[which]) > 0:
                flat.append(slope)
    assumed = None
    if len(flat) == 1 and {"a1", "a2"} <= columns.keys() and math.isfinite(known.intercepts):
        assumed = flat[0]
    else:
        columns = {name: column for name, column in columns.items() if name not in flat}
    params, before = {}, {}
    for name, column in (
        ("k", readings.tokens * sampler),
        ("few", readings.bent * sampler),
        ("s", readings.seqs),
        ("graph", readings.sizes),
        ("total_memory", -readings.moved),
    ):
        value = getattr(known, name)
        params[name] = value.n if is_known(value) else 0.0
        if is_known(value) and not value.s:
            y -= value.n * column if value.n else 0.0
        elif column.any():
            columns[name] = column
            if is_known(value):
                before[name] = value
    names = list(columns)
    rows = [np.array([float(name == each) for each in names]) for name in before]
    gap = np.array([{"a1": 1.0, "a2": -1.0}.get(name, 0.0) for name in names])
    values, errors = ([getattr(v, part) for v in before.values()] for part in ("n", "s"))
    if assumed:
        rows.append(gap)
        values, errors = [*values, 0.0], [*errors, known.intercepts]
    sigma, printed = readings.weighted
    design = np.vstack([np.column_stack(list(columns.values())), *rows])
    target = np.concatenate([y, values])
    try:
        fit = least_squares(design, target, np.concatenate([sigma, errors]))
    except np.linalg.LinAlgError:
        return None
    params |= dict(zip(names, map(float, fit.params), strict=True))
    gap_error = math.sqrt(gap @ fit.covariance @ gap)
    error = dict(zip(names, np.sqrt(np.diag(fit.covariance)), strict=True))
    if any(params.get(name, 0) < -SIGNIFICANT * error.get(name, 0) for name in ("k1", "k2", "k")):
        return None  # memory does not fall with more tokens or requests
    if {"k1", "k2"} <= params.keys() and params["k"] >= params["k1"]:
        return None  # a hidden state is a part of what the model run holds for a token
    runs = _runs(readings, params, readings, sampler)
    predicted = np.maximum(*runs) + _shared(readings, params)
    off = readings.y - predicted
    chi2 = float(np.sum((off / sigma) ** 2))
    known_off = float(np.sum(((target - design @ fit.params)[n:] / errors) ** 2)) if errors else 0.0
    free = len(names) - len(errors)
    spread = float(np.sum((off / printed) ** 2)) / readings.distinct
    score = readings.distinct * math.log1p(spread) + known_off  # whatever the law's own scatter
    score += 2 * (len(names) - len(before))  # a slope that is assumed is no less free
    return Split(
        sampler,
        params,
        tuple(names),
        fit.gain[:, :n],
        fit.gain[:, n:],
        np.array(errors),
        predicted,
        runs[1] > runs[0],
        chi2,
        readings.distinct - free,
        score + _improbable(params, known, gap_error, readings, sampler),
        assumed,
    )


def _shared(readings: Readings, params) -> np.ndarray:
    """What both branches have in common: the runner's state, graphs, and the ceiling TM*U."""
    state = params["s"] * readings.seqs + params["graph"] * readings.sizes
    return state - params["total_memory"] * readings.moved


def _runs(readings: Readings, params, fitted: Readings, sampler: np.ndarray):
    """Both runs at each reading; one known at one level only bounds the flags above its own."""
    runs = []
    for which, axis, own, intercept, slope, tilt in (
        (~sampler, readings.tokens, fitted.tokens, "a1", "k1", 0.0),
        (sampler, readings.requests, fitted.requests, "a2", "k2", params["k"]),
    ):
        if intercept not in params:
            runs.append(np.full(len(axis), -np.inf))
            continue
        run = params[intercept] + params.get(slope, 0.0) * axis + tilt * readings.tokens
        if intercept == "a2":
            run = run + params["few"] * readings.bent
        if slope not in params:
            least = own[which].min(), fitted.tokens[which].min()
            run = np.where((axis >= least[0]) & (readings.tokens >= least[1]), run, -np.inf)
        runs.append(run)
    return runs


def _improbable(params, known: Known, error: float, readings: Readings, sampler) -> float:
    """How far the slopes are from those of the shapes, and a1 from a2, as a chi squared.

    error: standard error of a1 - a2.
    Where a slope is missing, how far the launches are from the branch that the shapes put them in.
    """
    if not {"k1", "k2"} <= params.keys():
        if not math.isfinite(known.intercepts):
            return 0.0
        above = np.log(readings.requests / readings.tokens) + known.ratio[0]
        return float(max(0.0, *np.where(sampler, -above, above)) / known.ratio[1]) ** 2
    off = 0.0
    if math.isfinite(known.intercepts):
        apart = (params["a1"] - params["a2"]) / math.hypot(known.intercepts, error)
        off += min(UNUSUAL * math.log1p(apart**2 / UNUSUAL), 3 * UNUSUAL)  # launches can show it
        slope = max(params["k2"] / (params["k1"] - params["k"]), 1e-9)
        off += ((math.log(slope) - known.ratio[0]) / known.ratio[1]) ** 2
    if known.k2:
        off += ((math.log(max(params["k2"], 1.0)) - known.k2[0]) / known.k2[1]) ** 2
    return off
