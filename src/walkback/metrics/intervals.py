"""Intervals of rank correlations when rows come in clusters: whole clusters are drawn again.

An interval asks how the whole statistic would vary over new runs, and ranks are part of the statistic: a
draw is ranked like the table itself. With sorted columns that costs a running sum and no sort.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from walkback.metrics.clusters import FEWEST, MANY, Array, Counts, cluster_codes, columns_of
from walkback.metrics.compat import FLAT

NOWHERE = (math.nan, math.nan)
CHUNK_CELLS = 400_000  # rank cells held at once: about the size of a cache


@dataclass(frozen=True)
class ClusterInterval:
    """Bootstrap intervals of raw and partial rank correlation; `undefined` counts draws without a value."""

    clusters: int
    raw: float
    partial: float
    raw_percentile: tuple[float, float]
    percentile: tuple[float, float]
    bca: tuple[float, float]
    draws: int
    undefined: int
    reason: str


def cluster_bootstrap(
    metric: Array,
    target: Array,
    controls: Array | None = None,
    *,
    clusters: ArrayLike,
    rng: np.random.Generator,
    draws: int = 2000,
    level: float = 0.95,
) -> ClusterInterval:
    """Whole clusters are drawn with replacement, and every draw is ranked anew.

    BCa (Efron 1987) needs the skewness of one-cluster-left-out values, which fewer than 20 clusters do
    not tell: it is NaN below. So is everything below six.
    """
    codes = cluster_codes(clusters, len(metric))
    count = int(codes.max()) + 1
    columns = np.asarray(metric, float)[:, None]
    whole = rank_correlations(columns, target, controls, np.ones((1, len(codes))))
    raw, part = float(whole[0][0, 0]), float(whole[1][0, 0])
    refuse = partial(ClusterInterval, count, raw, part, NOWHERE, NOWHERE, NOWHERE)
    if count < FEWEST:
        return refuse(0, 0, f"{count} clusters carry no interval: at least {FEWEST} are needed.")
    if math.isnan(part):
        return refuse(0, 0, "Metric or target is constant or a function of the controls.")
    counts = draw_counts(count, draws, rng)
    raws, parts = (d[:, 0] for d in rank_correlations(columns, target, controls, counts, codes))
    kept = parts[np.isfinite(parts)]
    undefined = draws - len(kept)
    if undefined > 0.05 * draws:
        return refuse(draws, undefined, f"{undefined} of {draws} draws have no value.")
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    bca, reason = NOWHERE, f"BCa needs {MANY} clusters, not {count}."
    if count >= MANY:
        without_one = 1 - np.eye(count, dtype=np.int64)
        _, jackknife = rank_correlations(columns, target, controls, without_one, codes)
        bca, reason = bca_interval(part, kept, jackknife[:, 0], tails)
    raw_ends, ends = _pair(np.nanquantile(raws, tails)), _pair(np.quantile(kept, tails))
    return ClusterInterval(count, raw, part, raw_ends, ends, bca, draws, undefined, reason)


def bca_interval(
    estimate: float, draws: Array, jackknife: Array, tails: Array
) -> tuple[tuple[float, float], str]:
    """Bias-corrected and accelerated quantiles, or NaN and why."""
    from scipy.special import ndtr, ndtri

    below = float((draws < estimate).mean() + (draws == estimate).mean() / 2)
    centred = np.nanmean(jackknife) - jackknife
    spread = float((centred**2).sum())
    if not (0 < below < 1) or not np.isfinite(spread) or spread == 0.0:
        return NOWHERE, "The draws do not surround the estimate: BCa is undefined."
    bias, skew = float(ndtri(below)), float((centred**3).sum()) / (6 * spread**1.5)
    shifted = bias + ndtri(tails)
    return _pair(np.quantile(draws, ndtr(bias + shifted / (1 - skew * shifted)))), ""


def rank_correlations(
    metrics: Array, target: Array, controls: Array | None, counts: NDArray, codes: Counts | None = None
) -> tuple[Array, Array]:
    """Raw and partial rank correlation of every metric column in every draw, each of shape [draw, metric].

    Row i counts `counts[draw, codes[i]]` times (`counts[draw, i]` without codes). A draw's ranks are
    running sums of those counts along each column's fixed order, ties averaged; they equal the ranks of
    the drawn rows written out. Controls are ranked too: that only rescales a column of zeros and ones.
    """
    order = [
        _Order.of(c) for c in (*columns_of(controls, len(target)), target, *np.asarray(metrics, float).T)
    ]
    given, rows = len(order) - 1 - metrics.shape[1], len(target)
    step = max(1, CHUNK_CELLS // (rows * len(order)))
    parts = []
    for start in range(0, len(counts), step):
        weights = np.asarray(counts[start : start + step], dtype=np.float64)
        weights = weights if codes is None else weights[:, codes]
        parts.append(_correlate(_rank_cells(order, weights), weights, given))
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


@dataclass(frozen=True)
class _Order:
    """Where a column's rows stand when sorted, and where each row's ties begin and end."""

    rows: Counts
    first: Counts
    last: Counts | None

    @classmethod
    def of(cls, column: Array) -> _Order:
        rows = np.argsort(column, kind="stable")
        ordered = np.asarray(column)[rows]
        first = np.searchsorted(ordered, column, side="left")
        last = np.searchsorted(ordered, column, side="right")
        return cls(rows, first, None if (last == first + 1).all() else last)


def _rank_cells(order: list[_Order], weights: Array) -> Array:
    """Ranks minus their mean over the draw's size, [draw, column, row]."""
    size, rows = weights.shape
    across = np.ascontiguousarray(weights.T)  # draws side by side: gathers move whole lines
    cells = np.empty((size, len(order), rows))
    running = np.zeros((rows + 1, size))
    total = weights.sum(axis=1)
    for index, column in enumerate(order):
        np.cumsum(across[column.rows], axis=0, out=running[1:])
        if column.last is None:
            middle = ((running[1:] + running[:-1]) / total - 1)[column.first]
        else:
            middle = (running[column.first] + running[column.last]) / total - 1
        cells[:, index] = middle.T
    return cells


def _correlate(cells: Array, weights: Array, given: int) -> tuple[Array, Array]:
    """Weighted products of the ranks, then the controls projected out by their normal equations."""
    weighted = cells * weights[:, None]
    square = np.einsum("bvi,bvi->bv", weighted, cells)
    cross = weighted[:, : given + 1] @ cells.transpose(0, 2, 1)
    xx, yy, xy = square[:, given + 1 :], square[:, given, None], cross[:, given, given + 1 :]
    raw = _ratio(xy, xx, yy, xx, yy)
    if not given:
        return raw, raw
    inverse = np.linalg.pinv(cross[:, :given, :given], rcond=1e-10, hermitian=True)
    on_x, on_y = cross[:, :given, given + 1 :], cross[:, :given, given, None]
    fit = inverse @ on_y
    left_xx = xx - np.einsum("bkm,bkm->bm", on_x, inverse @ on_x)
    left_yy = yy - np.einsum("bkm,bkm->bm", on_y, fit)
    return raw, _ratio(xy - np.einsum("bkm,bko->bm", on_x, fit), left_xx, left_yy, xx, yy)


def _ratio(xy: Array, xx: Array, yy: Array, whole_x: Array, whole_y: Array) -> Array:
    """Correlation, NaN where a side has nothing left."""
    sound = (xx > FLAT * whole_x) & (yy > FLAT * whole_y)
    scale = np.sqrt(np.where(sound, xx * yy, 1.0))
    return np.where(sound, np.clip(xy / scale, -1, 1), np.nan)


def draw_counts(count: int, draws: int, rng: np.random.Generator) -> Counts:
    """How often each of `count` clusters is drawn, [draw, cluster]; each row sums to `count`."""
    picks = rng.integers(0, count, (draws, count)) + np.arange(draws)[:, None] * count
    return np.bincount(picks.ravel(), minlength=draws * count).reshape(draws, count)


def _pair(values: Array) -> tuple[float, float]:
    return float(values[0]), float(values[1])
