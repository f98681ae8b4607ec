"""Many metrics and groups at once: adjusted p values from draws that all of them share.

322 tests at .05 find sixteen effects where there are none. Benjamini–Hochberg bounds the share of
false finds; max-T bounds the chance of a single one, and loses little when metrics are correlated, because
every draw keeps their correlation: rows, ranks and signs are drawn once for the whole battery.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from walkback.metrics.clusters import (
    FEWEST,
    WildModel,
    cluster_codes,
    orthonormal,
    random_signs,
)
from walkback.metrics.compat import nothing_left, ranks

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
AT_ONCE = 4_000_000  # shuffled rows that are held at once, over draws


@dataclass(frozen=True)
class Battery:
    """Partial rank correlations of metrics in groups, all of shape [group, metric].

    `p` is for one test alone, `p_bh` and `p_max` for all of them together. A NaN test is not counted.
    """

    partial: Array
    statistic: Array
    p: Array
    p_bh: Array
    p_max: Array
    draws: int
    method: str
    reason: str = ""


def benjamini_hochberg(p: ArrayLike) -> Array:
    """Adjusted p: min over j ≥ i of p_(j)·m/j (Benjamini and Hochberg 1995); NaN stays NaN, uncounted."""
    given = np.asarray(p, dtype=np.float64)
    adjusted = np.full(given.shape, np.nan)
    sound = np.isfinite(given)
    values = given[sound]
    order = np.argsort(values)[::-1]
    scaled = values[order] * len(values) / np.arange(len(values), 0, -1)
    back = np.empty_like(values)
    back[order] = np.minimum(np.minimum.accumulate(scaled), 1.0)
    adjusted[sound] = back
    return adjusted


def max_t(observed: Array, null: Array) -> Array:
    """Step-down max-T adjusted p (Westfall and Young 1993, algorithm 2.8) from null draws [draw, test].

    The largest |T| is compared with the maximum over all tests, the next with the maximum over those
    that remain, and p never falls along the way.
    """
    adjusted = np.full(observed.shape, np.nan)
    order = np.argsort(-np.abs(observed))[: int((~np.isnan(observed)).sum())]  # NaN sorts last
    if not len(order):
        return adjusted
    far = _reach(null[:, order])
    remaining = np.maximum.accumulate(far[:, ::-1], axis=1)[:, ::-1]
    p = _tail(np.abs(observed[order]), remaining)
    adjusted[order] = np.maximum.accumulate(p)
    return adjusted


def permutation_battery(
    metrics: Array,
    target: Array,
    controls: Array | None = None,
    *,
    rng: np.random.Generator,
    draws: int = 10_000,
    clusters: ArrayLike | None = None,
    groups: Sequence[Mask] | None = None,
) -> Battery:
    """Tests from shared null draws of the target's rank residuals.

    Independent rows: residuals of rank(target) on the controls are permuted (Freedman and Lane 1983), only
    among rows that belong to the same groups. Clustered rows: they change sign by cluster, and T is the
    jackknife t of `cluster_test`.
    """
    rows = len(target)
    masks = _masks(groups, rows)
    if clusters is None:
        cells = np.unique(np.stack(masks, axis=1), axis=0, return_inverse=True)[1].ravel()
        at_once = max(1, AT_ONCE // rows)
        parts = [
            [_permuted(metrics, target, controls, mask, takes) for mask in masks]
            for takes in (
                _shuffles(cells, min(at_once, draws - done), rng) for done in range(0, draws, at_once)
            )
        ]
        tests = [
            (*same[0][:2], np.concatenate([null for _, _, null in same]))
            for same in zip(*parts, strict=True)
        ]
        return _assemble(tests, "permutation")
    codes = cluster_codes(clusters, rows)
    signs = random_signs(int(codes.max()) + 1, draws, rng)
    return _assemble([_flipped(metrics, target, controls, m, codes, signs) for m in masks], "cluster signs")


Test = tuple[Array, Array, Array]  # partial r, statistic, null statistics


def _shuffles(cells: NDArray[np.int64], draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which row each row is given, draw by draw: one of its own cell."""
    orders = np.argsort(cells + rng.random((draws, len(cells))), axis=1)  # sorted by cell, random within
    takes = np.empty_like(orders)
    takes[:, np.argsort(cells, kind="stable")] = orders
    return takes


def _permuted(
    metrics: Array, target: Array, controls: Array | None, mask: Mask, takes: NDArray[np.int64]
) -> Test:
    inside = np.cumsum(mask) - 1
    basis = orthonormal(_ranked(controls, mask), int(mask.sum()))
    whole = ranks(np.column_stack([target[mask], metrics[mask]]))
    left = whole - basis @ (basis.T @ whole)
    dead = nothing_left(left, whole)
    y, x, free = left[:, 0], left[:, 1:], len(left) - 1 - basis.shape[1]
    sound = ~dead[1:] & (not dead[0] and free > 0)
    x = np.where(sound, x / np.where(sound, np.linalg.norm(x, axis=0), 1.0), np.nan)
    drawn = y[inside[takes[:, mask]]]
    length = np.sqrt(np.maximum((drawn**2).sum(axis=1) - ((drawn @ basis) ** 2).sum(axis=1), 1e-300))
    r, null = (x.T @ y) / max(math.sqrt(float(y @ y)), 1e-300), (drawn @ x) / length[:, None]
    return r, _student(r, free), _student(null, free)


def _flipped(
    metrics: Array,
    target: Array,
    controls: Array | None,
    mask: Mask,
    codes: NDArray[np.int64],
    signs: Array,
) -> Test:
    own, local = np.unique(codes[mask], return_inverse=True)
    r, statistic = np.full((2, metrics.shape[1]), np.nan)
    null = np.full((len(signs), metrics.shape[1]), np.nan)
    for column in range(metrics.shape[1] if len(own) >= FEWEST else 0):
        model = WildModel.of(metrics[mask, column], target[mask], _ranked(controls, mask), local)
        t = math.nan if model.trouble else float(model.statistics(model.y, np.ones((1, len(own))))[0])
        if not math.isnan(t):
            r[column], statistic[column] = float(model.x @ model.y) / float(np.linalg.norm(model.y)), t
            null[:, column] = model.statistics(model.y, signs[:, own])
    return r, statistic, null


def _assemble(tests: list[Test], method: str) -> Battery:
    partial, statistic = np.array([t[0] for t in tests]), np.array([t[1] for t in tests])
    null = np.stack([t[2] for t in tests], axis=1)
    flat, known = np.abs(statistic).ravel(), ~np.isnan(statistic).ravel()
    alone = np.where(known, _tail(flat, _reach(null.reshape(len(null), -1))), np.nan)
    shape = partial.shape
    return Battery(
        partial,
        statistic,
        alone.reshape(shape),
        benjamini_hochberg(alone).reshape(shape),
        max_t(statistic.ravel(), null.reshape(len(null), -1)).reshape(shape),
        len(null),
        method,
        "" if known.all() else f"{int((~known).sum())} tests have no statistic.",
    )


def _tail(observed: Array, null: Array) -> Array:
    """(1 + draws at least as far) / (1 + draws), per test."""
    return (1 + (null >= observed * (1 - 1e-9)).sum(axis=0)) / (1 + len(null))


def _reach(null: Array) -> Array:
    """|T| of null draws, infinite where a draw has none: what is not known counts as at least as far."""
    return np.where(np.isnan(null), np.inf, np.abs(null))


def _student(r: Array, free: int) -> Array:
    """t of a correlation, so that groups of different size can be compared."""
    return r * np.sqrt(max(free, 0) / np.maximum(1 - r**2, 1e-15))


def _masks(groups: Sequence[Mask] | None, rows: int) -> list[Mask]:
    return [np.ones(rows, dtype=bool)] if groups is None else [np.asarray(g, dtype=bool) for g in groups]


def _ranked(controls: Array | None, mask: Mask) -> Array | None:
    return None if controls is None else ranks(np.reshape(controls, (len(mask), -1))[mask])
