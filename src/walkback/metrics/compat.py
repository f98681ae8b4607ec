"""The compatibility statistics: rank partial correlation and its classes, as published tables use them.

They are always computed, whatever the verdict: they are what other people's numbers are compared with. A
class says nothing about p, n or clusters, and a monotone copy of the baseline can earn any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EFFECT, WASHOUT = 0.20, 0.10
FLAT = 1e-10  # residual variance / variance at or below which a column is a function of the controls


@dataclass(frozen=True)
class Partial:
    """Raw and partial rank correlation; `k` counts the control columns that are linearly independent."""

    raw: float
    raw_p: float
    partial: float
    p: float
    n: int
    k: int

    @property
    def kind(self) -> str:
        return classify(self.raw, self.partial)


def ranks(values: Array) -> Array:
    """Average ranks, 1 … n, down each column."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(values, axis=0), dtype=np.float64)


def partial_spearman(metric: Array, target: Array, controls: Array | None = None) -> Partial:
    """Correlation of rank residuals after least squares on [1, controls]; t with n − 2 − k degrees.

    `controls` are columns that are ready: ranks of numbers, zeros and ones of categories (`design`). Where
    they leave nothing of metric or target, what is left is rounding, and its correlation is NaN.
    """
    n = len(metric)
    x, y = ranks(np.asarray(metric, float)), ranks(np.asarray(target, float))
    given = np.empty((n, 0)) if controls is None else np.asarray(controls, float).reshape(n, -1)
    matrix = np.column_stack([np.ones(n), given])
    k = int(np.linalg.matrix_rank(matrix)) - 1
    raw = correlation(x, y)
    whole = np.column_stack([x, y])
    left = residuals(matrix, whole)
    unknown = n - 2 - k <= 0 or bool(nothing_left(left, whole).any())
    found = math.nan if unknown else correlation(left[:, 0], left[:, 1])
    return Partial(raw, p_value(raw, n - 2), found, p_value(found, n - 2 - k), n, k)


def residuals(matrix: Array, values: Array) -> Array:
    """What least squares on the columns of `matrix` leaves of `values`."""
    coefficients, *_ = np.linalg.lstsq(matrix, values, rcond=None)
    return values - matrix @ coefficients


def nothing_left(left: Array, whole: Array) -> NDArray[np.bool_]:
    """Per column: whether the residual is mere rounding (a constant, or a function of the controls)."""
    around = ((whole - whole.mean(axis=0)) ** 2).sum(axis=0)
    return np.asarray((left**2).sum(axis=0) <= FLAT * np.maximum(around, FLAT * (whole**2).sum(axis=0)))


def correlation(x: Array, y: Array) -> float:
    """Pearson's; NaN where a side does not vary."""
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return float(np.clip(x @ y / scale, -1, 1)) if scale > 0 else math.nan


def p_value(r: float, dof: int) -> float:
    """Two-sided p of a correlation with `dof` degrees of freedom."""
    from scipy.stats import t

    if math.isnan(r) or dof < 1:
        return math.nan
    if abs(r) >= 1:
        return 0.0
    return float(2 * t.sf(abs(r) * math.sqrt(dof / (1 - r * r)), dof))


def classify(raw: float, partial: float) -> str:
    """The published class names, in the published order."""
    if math.isnan(raw) or math.isnan(partial):
        return "insufficient-data"
    if abs(raw) >= EFFECT and abs(partial) < WASHOUT:
        return "washout"
    if raw <= -EFFECT and partial >= EFFECT:
        return "sign-inversion"
    if raw >= EFFECT and partial <= -EFFECT:
        return "reverse-inversion"
    if abs(raw) < EFFECT and abs(partial) >= EFFECT:
        return "hidden-after-control"
    if raw * partial > 0 and abs(partial) >= EFFECT:
        return "survives"
    return "weak-or-mixed"
