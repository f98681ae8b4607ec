"""Does the metric still go with the target once both are predicted from the confounders, out of fold?

Four learners predict metric and target from the raw confounders; the product of the two residuals is
tested against zero (the generalised covariance measure, Shah and Peters 2020, arXiv:1804.07203). A linear
control alone passes a confounder that acts along a curve; no single flexible learner fits every shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Learner = Callable[[Array, Array, Array], Array]  # train x, train y [rows, columns], test x → predictions
FOLDS = 5
KERNEL_ROWS = 1500  # beyond this the kernel learner sees a random part of the training rows


@dataclass(frozen=True)
class LearnerTest:
    """One learner's answer. `eligible`: its error out of fold is within one standard error of the best."""

    learner: str
    r: float
    z: float
    p: float
    error: float
    eligible: bool


@dataclass(frozen=True)
class CrossFit:
    """Every learner's answer, and the residuals of each, for plots and further tests."""

    tests: tuple[LearnerTest, ...]
    residuals: dict[str, Array]  # learner → [rows, (metric, target)]

    @property
    def best(self) -> LearnerTest:
        return min(self.tests, key=lambda test: test.error)


def normal_scores(values: Array) -> Array:
    """Ranks brought to a normal shape: heavy tails count no more than their place."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    return ndtri((rankdata(values, axis=0) - 0.5) / len(values))


def cross_fit(
    metric: Array,
    target: Array,
    confounders: Array,
    rng: np.random.Generator,
    clusters: NDArray[np.int64] | None = None,
) -> CrossFit:
    """Normal scores of metric and target on the raw confounders, by every learner, on the same folds."""
    both = normal_scores(np.column_stack([metric, target]))
    n = len(both)
    learners = LEARNERS if confounders.shape[1] else {"linear": _linear}  # nothing to learn from
    predicted = {name: np.zeros_like(both) for name in learners}
    for train, test in _folds(n, rng, clusters):
        for name, learner in learners.items():
            predicted[name][test] = learner(confounders[train], both[train], confounders[test])
    residuals = {name: both - found for name, found in predicted.items()}
    errors = {name: (left**2).sum(axis=1) for name, left in residuals.items()}
    best = min(errors, key=lambda name: float(errors[name].mean()))
    tests = tuple(
        _test(name, left, errors[name], errors[best], clusters) for name, left in residuals.items()
    )
    return CrossFit(tests, residuals)


def _test(
    name: str, left: Array, error: Array, best: Array, clusters: NDArray[np.int64] | None
) -> LearnerTest:
    worse = error - best
    margin = float(worse.std(ddof=1)) / math.sqrt(len(worse))
    z, p = covariance_test(left[:, 0] * left[:, 1], clusters)
    scale = math.sqrt(float((left**2).sum(axis=0).prod()))
    r = float((left[:, 0] * left[:, 1]).sum()) / scale if scale > 0 else math.nan
    return LearnerTest(name, r, z, p, float(error.mean()), float(worse.mean()) <= margin)


def covariance_test(products: Array, clusters: NDArray[np.int64] | None = None) -> tuple[float, float]:
    """Whether the mean of the products is zero: z and p; sums over clusters where rows share one."""
    from scipy.stats import norm, t

    sums = products if clusters is None else np.bincount(clusters, products)
    spread = math.sqrt(float(((sums - sums.mean()) ** 2).sum()))
    if spread == 0:
        return math.nan, math.nan
    z = float(sums.sum()) / spread
    p = 2 * norm.sf(abs(z)) if clusters is None else 2 * t.sf(abs(z), len(sums) - 1)
    return z, float(p)


def _folds(
    n: int, rng: np.random.Generator, clusters: NDArray[np.int64] | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Random folds; rows of one cluster stay together."""
    unit = np.arange(n) if clusters is None else clusters
    count = int(unit.max()) + 1
    place = np.empty(count, dtype=np.int64)
    place[rng.permutation(count)] = np.arange(count) % min(FOLDS, count)
    fold = place[unit]
    for index in range(int(fold.max()) + 1):
        yield np.flatnonzero(fold != index), np.flatnonzero(fold == index)


def _linear(x: Array, y: Array, new: Array) -> Array:
    matrix = np.column_stack([np.ones(len(x)), x])
    coefficients = np.linalg.lstsq(matrix, y, rcond=None)[0]
    return np.column_stack([np.ones(len(new)), new]) @ coefficients


def _spline(x: Array, y: Array, new: Array) -> Array:
    """An additive cubic spline in every confounder that is not a category, shrunk by its own validation."""
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import SplineTransformer

    numeric = [i for i in range(x.shape[1]) if len(np.unique(x[:, i])) > 6]
    rest = [i for i in range(x.shape[1]) if i not in numeric]
    if not numeric:
        return _linear(x, y, new)
    knots = int(np.clip(len(x) // 12, 4, 12))
    basis = SplineTransformer(n_knots=knots, knots="quantile", extrapolation="linear", include_bias=False)
    seen = np.column_stack([basis.fit_transform(x[:, numeric]), x[:, rest]])
    asked = np.column_stack([basis.transform(new[:, numeric]), new[:, rest]])
    model = RidgeCV(alphas=np.logspace(-4, 2, 7), alpha_per_target=True).fit(seen, y)
    return np.asarray(model.predict(asked)).reshape(len(new), -1)


def _kernel_ridge(x: Array, y: Array, new: Array) -> Array:
    """Gaussian kernels; width and shrinkage by leave-one-out, per column, in closed form."""
    if len(x) > KERNEL_ROWS:
        some = np.random.default_rng(0).choice(len(x), KERNEL_ROWS, replace=False)
        x, y = x[some], y[some]
    mean = y.mean(axis=0)
    y = y - mean
    squares = _distances(x, x)
    typical = float(np.median(squares[squares > 0])) if (squares > 0).any() else 1.0
    best = np.full(y.shape[1], np.inf)
    found = np.zeros((len(new), y.shape[1]))
    asked = _distances(new, x)
    for width in (0.01, 0.1, 0.5, 2.0):
        values, vectors = np.linalg.eigh(np.exp(-squares / (width * typical)))
        projected = vectors.T @ y
        kernel = np.exp(-asked / (width * typical))
        for shrink in (1e-3, 1e-2, 1e-1, 1.0, 10.0):
            inverse = 1 / (np.maximum(values, 0) + shrink)
            dual = vectors @ (inverse[:, None] * projected)
            diagonal = (vectors**2) @ inverse
            loo = ((dual / diagonal[:, None]) ** 2).mean(axis=0)
            better = loo < best
            if better.any():
                best = np.where(better, loo, best)
                found[:, better] = kernel @ dual[:, better]
    return found + mean


def _distances(a: Array, b: Array) -> Array:
    return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T, 0)


def _trees(x: Array, y: Array, new: Array) -> Array:
    from sklearn.ensemble import RandomForestRegressor

    leaf = max(5, len(x) // 40)
    columns = []
    for column in y.T:
        forest = RandomForestRegressor(60, min_samples_leaf=leaf, random_state=0, n_jobs=1)
        columns.append(forest.fit(x, column).predict(new))
    return np.column_stack(columns)


LEARNERS: dict[str, Learner] = {
    "linear": _linear,
    "spline": _spline,
    "kernel ridge": _kernel_ridge,
    "trees": _trees,
}
