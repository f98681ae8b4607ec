"""Intervals that respect both sources of chance: which seeds were drawn and which items were tested."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Interval:
    """A two-sided interval whose each end has error rate `alpha`; `df` is Satterthwaite's."""

    estimate: float
    low: float
    high: float
    se: float
    df: float
    alpha: float


def seed_item_interval(
    differences: NDArray[np.float64], alpha: float, clusters: NDArray[np.int64] | None = None
) -> Interval:
    """Mean paired difference with `se² = s²_seed/S + s²_item/n`.

    `differences[s, i]` is (rule − baseline) on item i for seed s. An item's term is the variance of
    its difference averaged over seeds; with `clusters` (one column per way in which items can share a
    source, e.g. the two images of a digit sum) it is the cluster-robust one. With one seed the
    seed term is unknown and left out: the interval then speaks of items alone.
    """
    seeds = len(differences)
    estimate = float(differences.mean())
    item_var, item_df = _item_variance(differences.mean(axis=0), clusters)
    seed_var = float(differences.mean(axis=1).var(ddof=1)) / seeds if seeds > 1 else 0.0
    se = float(np.sqrt(item_var + seed_var))
    if se == 0.0:
        return Interval(estimate, estimate, estimate, 0.0, float("inf"), alpha)
    spread = item_var**2 / item_df + (seed_var**2 / (seeds - 1) if seeds > 1 else 0.0)
    df = se**4 / spread
    reach = _as_everywhere(_t_quantile(1 - alpha, df) * se)
    return Interval(estimate, estimate - reach, estimate + reach, se, df, alpha)


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided tests: `p` is the larger of the two, the interval the one they decide by."""

    interval: Interval
    margin: float
    p: float

    @property
    def words(self) -> str:
        """`equivalent` or `different` where the whole interval says so; else the question is `open`."""
        if self.p < self.interval.alpha:
            return "equivalent"
        apart = self.interval.low > self.margin or self.interval.high < -self.margin
        return "different" if apart else "open"


def paired_tost(
    differences: NDArray[np.float64],
    margin: float,
    alpha: float = 0.05,
    clusters: NDArray[np.int64] | None = None,
) -> Equivalence:
    """Is the mean paired difference within ±margin? `differences` and `clusters` as in the interval above.

    One row is Schuirmann's (1987) test on its entries: `paired_tost(by_seed[None], …)` speaks of the seeds
    alone.
    """
    found = seed_item_interval(differences, alpha, clusters)
    gap = margin - abs(found.estimate)
    if found.se == 0.0:
        return Equivalence(found, margin, 0.0 if gap > 0 else 1.0)
    return Equivalence(found, margin, _t_share(-gap / found.se, found.df))


def _item_variance(
    item_means: NDArray[np.float64], clusters: NDArray[np.int64] | None
) -> tuple[float, float]:
    """Variance of the mean over items, and its degrees of freedom.

    Two clustering columns are *dyadic*: items i, j covary if they share any source, on either side.
    Summing `(Σ_{i∋c} r_i)²` over sources c counts a pair once per shared source, so pairs with both
    sources in common are subtracted once (Aronow, Samii and Assenova 2015).
    """
    n = len(item_means)
    residual = item_means - item_means.mean()
    if clusters is None:
        return float(residual @ residual) / (n - 1) / n, n - 1
    sources = clusters.reshape(n, -1)
    assert sources.shape[1] <= 2, "an item has at most two sources"
    count = int(sources.max()) + 1
    total = np.zeros(count)
    for column in range(sources.shape[1]):
        repeated = (sources[:, :column] == sources[:, column : column + 1]).any(axis=1)
        np.add.at(total, sources[~repeated, column], residual[~repeated])
    meat = float(total @ total)
    if sources.shape[1] == 2:
        low, high = sources.min(axis=1), sources.max(axis=1)
        _, group = np.unique(low * count + high, return_inverse=True)
        both = np.bincount(group[low != high], residual[low != high])
        meat -= float(both @ both)
    used = len(np.unique(sources))
    iid = float(residual @ residual) / (n - 1) / n
    robust = meat / n**2 * used / (used - 1)
    return max(robust, iid), used - 1


def _as_everywhere(value: float) -> float:
    """Twelve digits: a sum's last ones are those of the order in which a processor's vectors add it up."""
    return float(f"{value:.12g}")


def _t_quantile(probability: float, df: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def _t_share(t: float, df: float) -> float:
    """The share of Student's distribution below t."""
    from scipy.special import stdtr

    return float(stdtr(df, t))
