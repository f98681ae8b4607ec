"""A noisy baseline hides less than it should: the control by a second, independent reading of it.

With one reading `b = ℓ + noise`, controlling for b leaves part of ℓ in metric and target alike, and a
second noisy reading of the loss looks like news. With two readings the slope on ℓ is found by using each
as the instrument of the other, and the two residuals carry noises that are independent.

That slope is a straight one. What bends with ℓ in metric and target alike is left in both, and with noisy
readings no learner can take it out: it is looked for, and where it is found the test cannot speak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from walkback.metrics.compat import correlation, residuals
from walkback.metrics.crossfit import covariance_test, normal_scores

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TwinTest:
    """`reliability`: the correlation of the two readings, given the other controls. `curvature`: p of the
    less clear of two bends, that of the metric and that of the target with what the readings share.

    `r` is a covariance over what is left of two variances once the noise of the readings is taken out of
    each. These are estimates: where `r` comes out beyond ±1 it is NaN, and `z` and `p`, which need the
    covariance alone, stand. Where nothing of a variance is left there is nothing to test.
    """

    r: float
    z: float
    p: float
    reliability: float
    curvature: float


def twin_test(
    metric: Array,
    target: Array,
    first: Array,
    second: Array,
    controls: Array,
    clusters: NDArray[np.int64] | None = None,
) -> TwinTest:
    """Errors-in-variables partial covariance of metric and target given what both readings share."""
    scores = normal_scores(np.column_stack([metric, target, first, second]))
    matrix = np.column_stack([np.ones(len(scores)), controls])
    m, t, a, b = (residuals(matrix, column) for column in scores.T)
    shared = float(a @ b)
    reliability = correlation(a, b)
    if shared <= 0:
        return TwinTest(math.nan, math.nan, math.nan, reliability, math.nan)

    def products(one: Array, other: Array) -> Array:
        return (m - (m @ other) / shared * one) * (t - (t @ one) / shared * other)

    sizes = [_true_variance(column, a, b) for column in (m, t)]
    if min(sizes) <= 0:
        return TwinTest(math.nan, math.nan, math.nan, reliability, math.nan)
    found = (products(a, b) + products(b, a)) / 2
    z, p = covariance_test(found, clusters)
    r = float(found.mean()) / math.sqrt(sizes[0] * sizes[1])
    left = m - (m @ b) / shared * a, t - (t @ a) / shared * b
    bends = [_bend(left, shape, a + b, clusters) for shape in (a * b, a * b * (a + b))]
    return TwinTest(r if abs(r) <= 1 else math.nan, z, p, reliability, min(bends))


def _bend(
    left: tuple[Array, Array], shape: Array, line: Array, clusters: NDArray[np.int64] | None
) -> float:
    """p of the less clear covariance of the two residuals with a shape of the readings, its line removed.

    A product of both readings has no noise squared in it, so that a straight effect shows no bend.
    """
    curve = residuals(np.column_stack([np.ones(len(line)), line]), shape)
    return max(covariance_test(each * curve, clusters)[1] for each in left)


def _true_variance(column: Array, a: Array, b: Array) -> float:
    """Variance of a column given ℓ, noise of the readings taken out."""
    return float(column @ column - (column @ a) * (column @ b) / (a @ b)) / len(column)
