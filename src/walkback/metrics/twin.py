"""A noisy baseline hides less than it should: the control by a second, independent reading of it.

With one reading `b = ℓ + noise`, controlling for b leaves part of ℓ in metric and target alike, and a
second noisy reading of the loss looks like news. With two readings the slope on ℓ is found by using each
as the instrument of the other, and the two residuals carry noises that are independent.

That slope is a straight one, the same in all rows, and the other controls act along lines too. What bends
with ℓ or with a control in metric and target alike, or follows ℓ with another slope where a control is
another, is left in both, and with noisy readings no learner can take it out: it is looked for, and where it
is found the test cannot speak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from walkback.metrics.compat import correlation, nothing_left, residuals
from walkback.metrics.crossfit import covariance_test, normal_scores

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TwinTest:
    """`reliability`: the correlation of the two readings, given the other controls. `curvature`: p of the
    less clear of two bends, that of the metric and that of the target with what the readings share.
    `unevenness`: the same for what differs with the other controls, the clearest of all shapes that were
    looked for, with `uneven` the names of what takes part in it; None where no shape could be looked for.

    `r` is a covariance over what is left of two variances once the noise of the readings is taken out of
    each. These are estimates: where `r` comes out beyond ±1 it is NaN, and `z` and `p`, which need the
    covariance alone, stand. Where nothing of a variance is left there is nothing to test.
    """

    r: float
    z: float
    p: float
    reliability: float
    curvature: float
    unevenness: float | None = None
    uneven: tuple[str, ...] = ()


def twin_test(
    metric: Array,
    target: Array,
    first: Array,
    second: Array,
    controls: Array,
    clusters: NDArray[np.int64] | None = None,
    names: Sequence[str] = (),
) -> TwinTest:
    """Errors-in-variables partial covariance of metric and target given what both readings share.

    `names` are those of the baseline and of each column of `controls`.
    """
    scores = normal_scores(np.column_stack([metric, target, first, second]))
    matrix = np.column_stack([np.ones(len(scores)), controls])
    m, t, a, b = (residuals(matrix, column) for column in scores.T)
    shared = float(a @ b)
    reliability = correlation(a, b)
    untested = TwinTest(math.nan, math.nan, math.nan, reliability, math.nan)
    if shared <= 0:
        return untested

    def products(one: Array, other: Array) -> Array:
        return (m - (m @ other) / shared * one) * (t - (t @ one) / shared * other)

    sizes = [_true_variance(column, a, b) for column in (m, t)]
    if np.min(sizes) <= 0:
        return untested
    found = (products(a, b) + products(b, a)) / 2
    z, p = covariance_test(found, clusters)
    r = float(found.mean()) / math.sqrt(sizes[0] * sizes[1])
    left = m - (m @ b) / shared * a, t - (t @ a) / shared * b
    line = np.column_stack([np.ones(len(a)), a + b])
    bends = [_bend(left, [residuals(line, shape)] * 2, clusters) for shape in (a * b, a * b * (a + b))]
    uneven = _unevenness(left, (b, a), controls, names, clusters)
    return TwinTest(r if abs(r) <= 1 else math.nan, z, p, reliability, float(np.min(bends)), *uneven)


def _bend(left: Sequence[Array], curves: Sequence[Array], clusters: NDArray[np.int64] | None) -> float:
    """p of the less clear covariance of the two residuals, each with its own curve.

    Along the readings both have one, made of their product, its line removed: it has no noise squared in
    it, so that a straight effect shows no bend.
    """
    return float(np.max([covariance_test(e * c, clusters)[1] for e, c in zip(left, curves, strict=True)]))


def _unevenness(
    left: Sequence[Array],
    readings: Sequence[Array],
    controls: Array,
    names: Sequence[str],
    clusters: NDArray[np.int64] | None,
) -> tuple[float | None, tuple[str, ...]]:
    """Bends in which the other controls take part: the least p times the number of shapes, and which it is.

    With q the normal scores of the controls, the shapes are `b·q_j` (the loss acts with another slope) and,
    corrected apart, `q_j` and `q_i·q_j` (controls act along curves or together), each less its line on
    [1, controls, b]. The residual `m − slope·a` holds the noise of a: its shape is made of b, and that of
    the target's `t − slope·b` of a. Effects along lines leave neither residual a covariance with any shape.
    """
    places = normal_scores(controls)
    alone = [[j] for j in range(places.shape[1])]
    pairs = [list(pair) for pair in combinations_with_replacement(range(places.shape[1]), 2)]
    curves = [places[:, of].prod(axis=1) for of in (*alone, *pairs)]
    families = (
        ([[0, j + 1] for (j,) in alone], [places * reading[:, None] for reading in readings]),
        ([[j + 1 for j in of] for of in (*alone, *pairs)], [np.reshape(curves, (-1, len(places))).T] * 2),
    )
    lines = [np.column_stack([np.ones(len(places)), controls, reading]) for reading in readings]
    found = []
    for parts, shapes in families:
        bent = [residuals(line, shape) for line, shape in zip(lines, shapes, strict=True)]
        dead = [nothing_left(each, shape) for each, shape in zip(bent, shapes, strict=True)]
        tried = np.flatnonzero(~np.any(dead, axis=0))  # that of a category by itself is straight
        p = [_bend(left, [each[:, index] for each in bent], clusters) for index in tried]
        found += [(each * len(tried), parts[index]) for each, index in zip(p, tried, strict=True)]
    if not found:
        return None, ()
    least, which = found[int(np.argmin([p for p, _ in found]))]  # NaN, if one of them is
    return float(np.minimum(least, 1)), tuple(dict.fromkeys(names[part] for part in which if names))


def _true_variance(column: Array, a: Array, b: Array) -> float:
    """Variance of a column given ℓ, noise of the readings taken out."""
    return float(column @ column - (column @ a) * (column @ b) / (a @ b)) / len(column)
