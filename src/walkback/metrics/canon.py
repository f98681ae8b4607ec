"""The canon: the established ways to ask whether a metric orders runs, each as a short function of arrays.

`direction` is part of the claim: +1 if a larger metric should go with a larger target, −1 if with a smaller
one. Values are given in the claim's sense, so a positive τ is support and a negative one speaks against it.
What cannot be computed is NaN with a reason, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from walkback.core.errors import BadInput
from walkback.metrics.compat import ranks

Array = NDArray[np.float64]
BINS = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50)


@dataclass(frozen=True)
class Score:
    """One number of the canon; `of` counts what it is an average over; `reason` says why it is NaN."""

    value: float
    of: int
    reason: str = ""


def kendall_tau(metric: Array, target: Array, *, direction: int) -> Score:
    """Kendall's τ-b in the claim's direction."""
    from scipy.stats import kendalltau

    reason = unusable(metric, target)
    if reason:
        return Score(math.nan, len(metric), reason)
    return Score(_sign(direction) * float(kendalltau(metric, target).statistic), len(metric))


@dataclass(frozen=True)
class Granulated:
    """τ along each hyper-parameter with all others fixed, and ψ, the mean over them."""

    psi: float
    axes: tuple[Score, ...]
    reason: str = ""


def granulated_tau(metric: Array, target: Array, axes: Array, *, direction: int) -> Granulated:
    """Granulated Kendall coefficient (Jiang et al. 2020, eq. 5–6): ψ_i is the mean over slices of τ.

    A slice holds the runs that agree in every column of `axes` but the i-th; τ is the mean of sign
    products over its pairs, as in the paper. A slice where metric or target does not vary has no order and
    is left out; an axis without a slice is NaN, and so is ψ when no axis has one.
    """
    axes = np.asarray(axes).reshape(len(metric), -1)
    scores = tuple(_along(metric, target, axes, i, _sign(direction)) for i in range(axes.shape[1]))
    found = [s.value for s in scores if not math.isnan(s.value)]
    reason = "" if found else "No two runs differ in one hyper-parameter alone."
    return Granulated(float(np.mean(found)) if found else math.nan, scores, reason)


def _along(metric: Array, target: Array, axes: Array, axis: int, sign: int) -> Score:
    taus = []
    for rows in _slices(np.delete(axes, axis, axis=1)):
        varied = axes[rows, axis][:, None] != axes[rows, axis]
        product = _signs(metric[rows]) * _signs(target[rows])
        usable = len(np.unique(metric[rows])) > 1 and len(np.unique(target[rows])) > 1
        if usable and varied.any():
            taus.append(sign * float(product[varied].mean()))
    reason = "" if taus else "No slice varies in this hyper-parameter alone with metric and target varying."
    return Score(float(np.mean(taus)) if taus else math.nan, len(taus), reason)


@dataclass(frozen=True)
class ConditionalInformation:
    """Normalised conditional mutual information per number of bins, its floor, and the value if stable."""

    value: float
    bins: tuple[int, ...]
    values: tuple[float, ...]
    floors: tuple[float, ...]
    reason: str = ""


def conditional_information(
    metric: Array,
    target: Array,
    confounder: Array,
    *,
    rng: np.random.Generator,
    bins: Sequence[int] = BINS,
    shuffles: int = 10,
    tolerance: float = 0.25,
    negligible: float = 0.01,
) -> ConditionalInformation:
    """I(V_m; V_t | U) / H(V_t | U) over pairs of runs (Jiang et al. 2020, eq. 7–10), U the pair's bins.

    V are the signs of the pair's differences. Inside a wide bin the confounder still varies and is
    mistaken for the metric; in a narrow one few runs make chance look like information. So the floor, the
    mean over shuffles of the metric inside bins, is subtracted, and the value is reported only if over
    all `bins` it moves by at most `tolerance` of its largest or by `negligible`. Information has no sign.
    """
    reason = unusable(metric, target, confounder)
    if reason:
        return ConditionalInformation(math.nan, tuple(bins), (), (), reason)
    at = [_binned(metric, target, confounder, b, shuffles, rng) for b in bins]
    values, floors = tuple(a[0] for a in at), tuple(a[1] for a in at)
    excess = np.subtract(values, floors)
    spread, largest = float(np.ptp(excess)), float(np.abs(excess).max())
    if not math.isfinite(spread):
        return ConditionalInformation(
            math.nan, tuple(bins), values, floors, "The bins fix the target's order."
        )
    if spread > max(tolerance * largest, negligible):
        low, high = float(excess.min()), float(excess.max())
        reason = f"It depends on the binning: {low:.3f} to {high:.3f} over {min(bins)} to {max(bins)} bins."
        return ConditionalInformation(math.nan, tuple(bins), values, floors, reason)
    return ConditionalInformation(float(np.median(excess)), tuple(bins), values, floors)


def _binned(
    metric: Array, target: Array, confounder: Array, bins: int, shuffles: int, rng: np.random.Generator
) -> tuple[float, float]:
    n = len(metric)
    place = np.minimum(((ranks(confounder) - 0.5) / n * bins).astype(np.int64), bins - 1)
    pairs = ~np.eye(n, dtype=bool)
    cell = ((place[:, None] * bins + place) * 9 + 3 * (_signs(target) + 1))[pairs]
    value = _information(cell + (_signs(metric) + 1)[pairs], bins)
    by_bin = np.argsort(place, kind="stable")
    floors = []
    for _ in range(shuffles):
        mixed = np.empty_like(metric)
        mixed[by_bin] = metric[np.argsort(place + rng.random(n))]
        floors.append(_information(cell + (_signs(mixed) + 1)[pairs], bins))
    return value, float(np.mean(floors)) if floors else 0.0


def _information(codes: NDArray[np.int64], bins: int) -> float:
    """I / H from one code per pair: nine combinations of signs in each of bins² cells."""
    table = np.bincount(codes, minlength=bins * bins * 9).reshape(-1, 3, 3) / len(
        codes
    )  # cell, target, metric
    cell, of_target, of_metric = table.sum((1, 2)), table.sum(2), table.sum(1)
    entropy = _plogp(cell) - _plogp(of_target)
    information = _plogp(table) + _plogp(cell) - _plogp(of_target) - _plogp(of_metric)
    return information / entropy if entropy > 1e-12 else math.nan


def _plogp(p: Array) -> float:
    from scipy.special import xlogy

    return float(xlogy(p, p).sum())


@dataclass(frozen=True)
class SignError:
    """Share of wrongly ordered pairs: the worst environment, the 90th percentile, the mean over all."""

    robust: float
    ninetieth: float
    mean: float
    environments: int
    worst: str = ""
    reason: str = ""


def robust_sign_error(
    metric: Array,
    target: Array,
    axes: Array,
    *,
    direction: int,
    noise: float = 0.0,
    least_pairs: int = 1,
    names: Sequence[str] | None = None,
) -> SignError:
    """max over environments of ½·mean[1 − sgn Δmetric · sgn Δtarget] (Dziugaite et al. 2020).

    An environment is two settings that differ in one hyper-parameter; its pairs are all pairs of
    their runs. Pairs whose targets differ by `noise` or less do not count (ours: the paper weighs them
    by a Hoeffding bound), nor environments with fewer than `least_pairs` left.
    """
    axes = np.asarray(axes).reshape(len(metric), -1)
    names = [f"axis {i}" for i in range(axes.shape[1])] if names is None else names
    settings, place = np.unique(axes, axis=0, return_inverse=True)
    runs = [np.flatnonzero(place.ravel() == s) for s in range(len(settings))]
    errors, labels = [], []
    for first, second, axis in _neighbours(settings):
        step = target[runs[second]][:, None] - target[runs[first]]
        known = np.abs(step) > noise
        if known.sum() >= max(least_pairs, 1):
            move = metric[runs[second]][:, None] - metric[runs[first]]
            agree = _sign(direction) * np.sign(move[known]) * np.sign(step[known])
            errors.append(float((1 - agree).mean() / 2))
            labels.append(f"{names[axis]}: {settings[first, axis]} → {settings[second, axis]}")
    if not errors:
        nothing = "No two settings differ in one hyper-parameter alone by more than noise."
        return SignError(math.nan, math.nan, math.nan, 0, reason=nothing)
    worst = int(np.argmax(errors))
    high = float(np.quantile(errors, 0.9))
    return SignError(errors[worst], high, float(np.mean(errors)), len(errors), labels[worst])


def _neighbours(settings: Array) -> list[tuple[int, int, int]]:
    """Pairs of settings that differ in one column, and the column."""
    found = []
    for axis in range(settings.shape[1]):
        for rows in _slices(np.delete(settings, axis, axis=1)):
            found += [(a, b, axis) for a, b in combinations(rows.tolist(), 2)]
    return found


@dataclass(frozen=True)
class Increment:
    """Out-of-fold R² of the target without and with the metric; `se` is over folds: rough if few."""

    without: float
    with_metric: float
    delta: float
    se: float
    folds: int
    reason: str = ""


def incremental_r2(
    metric: Array,
    target: Array,
    controls: Array,
    *,
    groups: ArrayLike,
    rng: np.random.Generator,
    folds: int = 5,
) -> Increment:
    """ΔR² = R²[controls, metric] − R²[controls], least squares, whole groups held out.

    Columns become their place among the training rows (a rank that looks at no test row). R² is
    1 − Σ(y − ŷ)² / Σ(y − ȳ_train)² over all held-out rows, and may be negative.
    """
    _, codes = np.unique(np.asarray(groups), return_inverse=True)
    count, n = int(codes.max()) + 1, len(target)
    reason = unusable(metric, target) or (f"{count} groups make no {folds} folds." if count < folds else "")
    if reason:
        return Increment(math.nan, math.nan, math.nan, math.nan, 0, reason)
    fold = (rng.permutation(count) % folds)[codes]
    table = np.column_stack([np.asarray(controls, float).reshape(n, -1), metric])
    sums = np.array([_held_out(table, target, fold == f) for f in range(folds)])
    base, full, whole = (float(s) for s in sums.sum(axis=0))
    if not whole > 0:
        return Increment(math.nan, math.nan, math.nan, math.nan, 0, "The target does not vary over folds.")
    delta = (base - full) / whole
    off = sums[:, 0] - sums[:, 1] - delta * sums[:, 2]  # δ is a ratio of sums over folds: its linear error
    se = math.sqrt(folds / (folds - 1) * float(off @ off)) / whole
    return Increment(1 - base / whole, 1 - full / whole, delta, se, folds)


def _held_out(table: Array, target: Array, test: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Squared errors on the test rows: without the last column, with it, and of the training mean."""
    placed = np.column_stack([_placed(c[~test], c) for c in table.T])
    errors = []
    for columns in (placed[:, :-1], placed):
        design = np.column_stack([np.ones(len(target)), columns])
        fit, *_ = np.linalg.lstsq(design[~test], target[~test], rcond=None)
        errors.append(float(((target - design @ fit)[test] ** 2).sum()))
    return errors[0], errors[1], float(((target[test] - target[~test].mean()) ** 2).sum())


def _placed(known: Array, values: Array) -> Array:
    ordered = np.sort(known)
    low, high = (np.searchsorted(ordered, values, side=s) for s in ("left", "right"))
    return np.asarray((low + high) / (2 * len(known)))


@dataclass(frozen=True)
class Regret:
    """Target lost by trusting a column's first run, in the target's unit; `as_good` is the share of runs
    that are no better than the metric's pick."""

    metric: float
    baseline: float
    random: float
    as_good: float
    reason: str = ""


def selection_regret(
    metric: Array,
    target: Array,
    baseline: Array | None = None,
    *,
    direction: int,
    baseline_direction: int = -1,
    target_sign: int = 1,
) -> Regret:
    """best target − target of the run ranked first; ties share the pick; `random` picks any run.

    `target_sign` is +1 if a larger target is better (accuracy), −1 if a smaller one is (loss);
    directions are those of metric and baseline with the target, so a loss against accuracy is −1.
    """
    good = _sign(target_sign) * np.asarray(target, float)
    reason = unusable(metric, target)
    if reason:
        return Regret(math.nan, math.nan, math.nan, math.nan, reason)
    best = float(good.max())
    picked = _pick(metric, good, _sign(direction) * target_sign)
    other = math.nan
    if baseline is not None and not unusable(baseline):
        other = best - float(_pick(baseline, good, _sign(baseline_direction) * target_sign).mean())
    as_good = float(np.mean([(good <= g).mean() for g in picked]))
    return Regret(best - float(picked.mean()), other, best - float(good.mean()), as_good)


def _pick(column: Array, good: Array, sign: int) -> Array:
    """The targets of the runs that share first place."""
    return good[sign * column == (sign * column).max()]


def unusable(*columns: Array) -> str:
    """Why these columns carry no order, or nothing."""
    lengths = {len(c) for c in columns}
    if len(lengths) > 1:
        raise BadInput(f"Columns have {sorted(lengths)} rows: give one value per run in each.")
    if min(lengths) < 3:
        return f"{min(lengths)} runs are too few."
    if not all(np.isfinite(c).all() for c in columns):
        return "There are missing or infinite values."
    if any((c == c[0]).all() for c in columns):
        return "A column is constant."
    return ""


def _sign(direction: int) -> int:
    if direction not in (1, -1):
        raise BadInput(f"The direction is {direction}: state +1 (larger with larger) or −1.")
    return direction


def _signs(values: Array) -> NDArray[np.int64]:
    return np.sign(values[:, None] - values).astype(np.int64)


def _slices(others: Array) -> list[NDArray[np.int64]]:
    """Rows that agree in all columns, two or more at a time."""
    if others.shape[1] == 0:
        return [np.arange(len(others))] if len(others) > 1 else []
    _, place, size = np.unique(others, axis=0, return_inverse=True, return_counts=True)
    place = place.ravel()
    return [np.flatnonzero(place == s) for s in np.flatnonzero(size > 1)]
