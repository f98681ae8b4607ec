"""Does the metric still go with the target once both are predicted from the confounders, out of fold?

Five learners predict metric and target from the raw confounders; the product of the two residuals is
tested against zero (the generalised covariance measure, Shah and Peters 2020, arXiv:1804.07203). A linear
control alone passes a confounder that acts along a curve; no single flexible learner fits every shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Fit = Callable[[Array], Array]  # one column's training values → its predictions on the test rows
Learner = Callable[[Array, Array], Fit]  # the confounders of training and test rows → how to fit a column
FOLDS = 5
FURTHEST = 1.0  # quartile ranges beyond what it has seen that a learner is asked for
KERNEL_ROWS = 1500  # beyond this kernel learners see a random part of the training rows


@dataclass(frozen=True)
class LearnerTest:
    """One learner's answer. `eligible`: its error out of fold is within one standard error of the best.
    `left`: the share of the metric's variance that it does not predict."""

    learner: str
    r: float
    z: float
    p: float
    error: float
    eligible: bool
    left: float = math.nan


@dataclass(frozen=True)
class FitTask:
    """A metric and a target, what both are predicted from, and the fold of every row."""

    metric: Array
    target: Array
    confounders: Array
    folds: NDArray[np.int64]
    clusters: NDArray[np.int64] | None = None

    @property
    def shared(self) -> tuple[bytes, ...]:
        """Tasks that agree in this differ in the metric alone."""
        codes = b"" if self.clusters is None else self.clusters.tobytes()
        return self.target.tobytes(), self.confounders.tobytes(), self.folds.tobytes(), codes


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


def fold_rows(
    n: int, rng: np.random.Generator, clusters: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """A random fold for every row; rows of one cluster stay together."""
    unit = np.arange(n) if clusters is None else clusters
    count = int(unit.max()) + 1
    place = np.empty(count, dtype=np.int64)
    place[rng.permutation(count)] = np.arange(count) % min(FOLDS, count)
    return place[unit]


def cross_fit(task: FitTask) -> CrossFit:
    return cross_fit_all([task])[0]


def cross_fit_all(tasks: Sequence[FitTask]) -> list[CrossFit]:
    """Normal scores of metrics and target on the raw confounders, by every learner, on the same folds.

    The tasks differ in the metric alone: the target is fitted once, and what a learner makes of the
    confounders serves all. Each column is fitted by itself: its bits do not depend on the others.
    """
    first = tasks[0]
    columns = normal_scores(np.column_stack([*(task.metric for task in tasks), first.target]))
    left = {name: columns - found for name, found in _predict(columns, first).items()}
    return [
        _compare(
            {name: all_left[:, [index, -1]] for name, all_left in left.items()},
            float(columns[:, index].var()),
            first.clusters,
        )
        for index in range(len(tasks))
    ]


def _predict(columns: Array, task: FitTask) -> dict[str, Array]:
    x = task.confounders
    learners = {name: learner for name, learner in LEARNERS.items() if _applies(name, x.shape[1])}
    predicted = {name: np.zeros_like(columns) for name in learners}
    for fold in range(int(task.folds.max()) + 1):
        train, test = np.flatnonzero(task.folds != fold), np.flatnonzero(task.folds == fold)
        asked = np.clip(x[test], x[train].min(axis=0) - FURTHEST, x[train].max(axis=0) + FURTHEST)
        for name, learner in learners.items():
            fit = learner(x[train], asked)
            for index, values in enumerate(columns[train].T):
                predicted[name][test, index] = fit(np.ascontiguousarray(values))
    return predicted


def _applies(name: str, columns: int) -> bool:
    """Whether a learner has anything to learn from. With no confounder all of them are one, the mean."""
    return name == "linear" or columns >= (2 if name in NEEDS_SEVERAL else 1)


def _compare(residuals: dict[str, Array], variance: float, clusters: NDArray[np.int64] | None) -> CrossFit:
    """`variance` is that of the metric before anything was predicted."""
    errors = {name: (left**2).sum(axis=1) for name, left in residuals.items()}
    best = min(errors, key=lambda name: float(errors[name].mean()))
    tests = tuple(
        _test(name, left, errors[name], errors[best], variance, clusters)
        for name, left in residuals.items()
    )
    return CrossFit(tests, residuals)


def _test(
    name: str,
    left: Array,
    error: Array,
    best: Array,
    variance: float,
    clusters: NDArray[np.int64] | None,
) -> LearnerTest:
    worse = error - best
    margin = float(worse.std(ddof=1)) / math.sqrt(len(worse))
    z, p = covariance_test(left[:, 0] * left[:, 1], clusters)
    scale = math.sqrt(float((left**2).sum(axis=0).prod()))
    r = float((left[:, 0] * left[:, 1]).sum()) / scale if scale > 0 else math.nan
    share = float((left[:, 0] ** 2).mean()) / variance if variance > 0 else math.nan
    return LearnerTest(name, r, z, p, float(error.mean()), float(worse.mean()) <= margin, share)


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


def _linear(x: Array, new: Array) -> Fit:
    matrix, asked = (np.column_stack([np.ones(len(rows)), rows]) for rows in (x, new))
    return lambda y: asked @ np.linalg.lstsq(matrix, y, rcond=None)[0]


def _spline(x: Array, new: Array) -> Fit:
    """An additive cubic spline in every confounder, and a step for each level of one that has six or fewer,
    shrunk by its own validation."""
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import SplineTransformer

    numeric = [i for i in range(x.shape[1]) if len(np.unique(x[:, i])) > 6]
    knots = int(np.clip(len(x) // 12, 4, 12))
    basis = SplineTransformer(n_knots=knots, knots="quantile", extrapolation="linear", include_bias=False)
    steps = [(i, level) for i in range(x.shape[1]) if i not in numeric for level in np.unique(x[:, i])[1:]]
    seen, asked = (
        np.column_stack([*(rows[:, [i]] == level for i, level in steps), np.empty((len(rows), 0))])
        for rows in (x, new)
    )
    if not numeric:
        return _linear(seen, asked)
    seen = np.column_stack([basis.fit_transform(x[:, numeric]), seen])
    asked = np.column_stack([basis.transform(new[:, numeric]), asked])
    return lambda y: np.asarray(RidgeCV(alphas=np.logspace(-4, 2, 7)).fit(seen, y).predict(asked))


def _kernel_ridge(x: Array, new: Array) -> Fit:
    """Gaussian kernels of the confounders' normal scores, in four widths. A grid of 10⁻⁵ … 10⁻¹ would
    otherwise be one point and an outlier."""
    x, new, some = _few_enough(x, new)
    squares, asked = _distances(x, x), _distances(new, x)
    apart = squares[squares > 1e-12 * squares.max()]  # a row is not quite at 0 from itself, by rounding
    typical = float(np.median(apart)) if len(apart) else 1.0
    widths = [width * typical for width in (0.01, 0.1, 0.5, 2.0)]
    return _ridge([(np.exp(-squares / width), np.exp(-asked / width)) for width in widths], some)


def _products(x: Array, new: Array) -> Fit:
    """Smooth effects of every confounder and products of them, of any order, by kernels
    `Π_j (1 + s k_j)`, in three sizes s (smoothing-spline ANOVA, Wahba et al. 1995).

    A Gaussian kernel must learn a product of three confounders place by place; this one has it as a
    single function. Fitted twice, the second time to what the first left: what shrinkage takes from metric
    and target alike would look like news (Newey, Hsieh and Robins 2004, on twicing).
    """
    x, new, some = _few_enough(x, new)
    sizes = [size / x.shape[1] for size in (0.3, 1.2, 4.8)]
    pairs = [(np.ones((len(x), len(x))), np.ones((len(new), len(x)))) for _ in sizes]
    for column, wanted in zip(x.T, new.T, strict=True):
        own, asked = _along(column, column), _along(wanted, column)
        for size, (kernel, far) in zip(sizes, pairs, strict=True):
            kernel *= 1 + size * own
            far *= 1 + size * asked
    return _ridge(pairs, some, twice=True)


def _few_enough(x: Array, new: Array) -> tuple[Array, Array, NDArray[np.int64]]:
    """Normal scores of the rows that kernels are made of and of those asked for; which rows these are."""
    some = np.arange(len(x))
    if len(x) > KERNEL_ROWS:
        some = np.random.default_rng(0).choice(len(x), KERNEL_ROWS, replace=False)
    return _places(x, x)[some], _places(new, x), some


def _along(column: Array, known: Array) -> Array:
    """The kernel of one confounder: straight in its ranks and in its normal scores, and a little curved.

    The curve is the cubic spline's, `B2(u)B2(v)/4 − B4(|u − v|)/24` with Bernoulli polynomials of ranks in
    0…1. Each part is scaled to a mean of about one on the diagonal.
    """
    from scipy.special import ndtr

    u, v = ndtr(column)[:, None], ndtr(known)[None]
    gap = np.abs(u - v)
    second = (u**2 - u + 1 / 6) * (v**2 - v + 1 / 6)
    fourth = gap**4 - 2 * gap**3 + gap**2 - 1 / 30
    ranks, curve = 12 * (u - 0.5) * (v - 0.5), 360 * (second / 4 - fourth / 24)
    return 0.45 * ranks + 0.45 * column[:, None] * known[None] + 0.1 * curve


def _ridge(kernels: Sequence[tuple[Array, Array]], some: NDArray[np.int64], *, twice: bool = False) -> Fit:
    """Kernel ridge: which kernel and how much shrinkage by leave-one-out, in closed form.

    A kernel is given among the rows seen and from those asked for to them. `twice` fits what was left
    again, with what one fit chose: shrinkage then takes λ²/(v + λ)² of a direction of size v instead of
    λ/(v + λ).
    """
    from scipy.linalg import eigh

    shrinkages = np.array([[1e-3, 1e-2, 1e-1, 1.0, 10.0]])
    prepared = []
    for kernel, asked in kernels:
        # "evr": numpy's divide and conquer does not always converge on kernels that are this smooth
        values, vectors = eigh(kernel, driver="evr")
        inverse = 1 / (np.maximum(values, 0)[:, None] + shrinkages)
        used = inverse * (1 + shrinkages * inverse) if twice else inverse
        prepared.append((vectors, inverse, vectors**2 @ inverse, used, asked))

    def fit(y: Array) -> Array:
        y = y[some]
        mean = y.mean()
        best, found = math.inf, np.zeros(len(kernels[0][1]))
        for vectors, inverse, diagonal, used, asked in prepared:
            along = (vectors.T @ (y - mean))[:, None]
            left_out = ((vectors @ (inverse * along) / diagonal) ** 2).mean(axis=0)
            if left_out.min() < best:
                chosen = used[:, [int(left_out.argmin())]]
                best, found = left_out.min(), asked @ (vectors @ (chosen * along))[:, 0]
        return found + mean

    return fit


def _places(rows: Array, among: Array) -> Array:
    """Normal scores by where values lie among those of each column; equal values share a place."""
    from scipy.special import ndtri

    columns, least = [], 0.5 / len(among)
    for column, known in zip(rows.T, np.sort(among, axis=0).T, strict=True):
        below, upto = np.searchsorted(known, column, "left"), np.searchsorted(known, column, "right")
        columns.append(ndtri(np.clip((below + upto) / 2 / len(known), least, 1 - least)))
    return np.column_stack(columns)


def _distances(a: Array, b: Array) -> Array:
    return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T, 0)


def _trees(x: Array, new: Array) -> Fit:
    from sklearn.ensemble import RandomForestRegressor

    leaf = max(5, len(x) // 40)

    def fit(y: Array) -> Array:
        forest = RandomForestRegressor(60, min_samples_leaf=leaf, random_state=0, n_jobs=1)
        return np.asarray(forest.fit(x, y).predict(new))

    return fit


LEARNERS: dict[str, Learner] = {
    "linear": _linear,
    "spline": _spline,
    "kernel ridge": _kernel_ridge,
    "products": _products,
    "trees": _trees,
}
NEEDS_SEVERAL = ("products",)  # one column has none
