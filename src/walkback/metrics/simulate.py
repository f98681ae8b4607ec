"""The audit audited: known truths on this very design, and how often it finds what is there or is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome
from walkback.metrics.admissible import Claim, admit, confounder_matrix
from walkback.metrics.audit import MetricAudit
from walkback.metrics.crossfit import LEARNERS, normal_scores

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Rate:
    """How many of `runs` simulated tables were called INDEPENDENT, with a 95 % interval (Wilson)."""

    effect: float
    found: int
    runs: int

    @property
    def share(self) -> float:
        return self.found / self.runs if self.runs else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        from scipy.stats import binomtest

        low, high = binomtest(self.found, self.runs).proportion_ci(method="wilson")
        return float(low), float(high)

    @property
    def sentence(self) -> str:
        low, high = self.interval
        truth = f"a true partial correlation of {self.effect:g}" if self.effect else "nothing there"
        return (
            f"With {truth}, {self.found} of {self.runs} simulated tables of this design were called "
            f"INDEPENDENT (95 % interval {100 * low:.0f} to {100 * high:.0f} %)."
        )

    def to_dict(self) -> dict[str, object]:
        return {
            "effect": self.effect,
            "found": self.found,
            "runs": self.runs,
            "share": self.share,
            "interval": list(self.interval),
        }


@dataclass(frozen=True)
class Truth:
    """What the confounders of a real table make of metric and target, and how the rest is clustered.

    With a twin the loss itself is known in the simulation: it is the mean of the two readings, metric and
    target follow it, and every table reads it twice anew.
    """

    frame: pd.DataFrame
    claim: Claim
    loss: Array | None  # [rows]
    misread: float  # sd of one reading's error
    signal: Array  # [rows, (metric, target)], normal scores predicted from the confounders
    noise: Array  # sd of the rest of each
    clusters: NDArray[np.int64] | None
    within: float  # share of the rest that rows of a cluster have in common

    @classmethod
    def of(cls, frame: pd.DataFrame, claim: Claim) -> Truth:
        admitted = admit(frame, claim)
        if admitted.refusals:
            raise BadInput(f"These rows carry no audit to simulate. {admitted.refusals[0]}")
        rows, loss, misread = admitted.frame, None, 0.0
        if claim.twin is not None and claim.baseline is not None:
            first, second = (rows[name].to_numpy(float) for name in (claim.baseline, claim.twin))
            loss, misread = (first + second) / 2, float((first - second).std() / math.sqrt(2))
            rows = _with(rows, {claim.baseline: loss})
        both = normal_scores(rows[[claim.metric, claim.target]].to_numpy(float))
        confounders = confounder_matrix(rows, claim.confounders)
        signal = 0 * both
        if confounders.shape[1]:
            fit = LEARNERS["spline"](confounders, confounders)
            signal = np.column_stack([fit(np.ascontiguousarray(column)) for column in both.T])
        rest = both - signal
        clusters = None
        if claim.cluster is not None:
            clusters = np.unique(rows[claim.cluster].astype(str), return_inverse=True)[1].astype(np.int64)
        within = 0.0 if clusters is None else float(np.mean([_icc(column, clusters) for column in rest.T]))
        return cls(rows, claim, loss, misread, signal, rest.std(axis=0), clusters, within)

    def draw(self, effect: float, rng: np.random.Generator) -> pd.DataFrame:
        """The same design with a metric and a target whose true partial correlation is `effect`."""
        n = len(self.frame)
        shared = [[1.0, effect], [effect, 1.0]]
        rest = rng.multivariate_normal([0, 0], shared, n)
        if self.clusters is not None:
            common = rng.multivariate_normal([0, 0], shared, int(self.clusters.max()) + 1)[self.clusters]
            rest = math.sqrt(self.within) * common + math.sqrt(1 - self.within) * rest
        drawn = self.signal + self.noise * rest
        columns = {self.claim.metric: drawn[:, 0], self.claim.target: drawn[:, 1]}
        if self.loss is not None and self.claim.baseline and self.claim.twin:
            readings = self.loss[:, None] + self.misread * rng.normal(size=(n, 2))
            columns |= {self.claim.baseline: readings[:, 0], self.claim.twin: readings[:, 1]}
        return _with(self.frame, columns)


def _with(frame: pd.DataFrame, columns: dict[str, Array]) -> pd.DataFrame:
    """A copy with these columns, whatever they are called: `assign` has a parameter named self."""
    copy = frame.copy()
    for name, values in columns.items():
        copy[name] = values
    return copy


def simulate(
    frame: pd.DataFrame,
    claim: Claim,
    *,
    effect: float = 0.4,
    runs: int = 100,
    delta: float = 0.2,
    alpha: float = 0.05,
    seed: int = 0,
    on_progress: Progress = lambda what, done, total: None,
) -> dict[str, Rate]:
    """`false_positive` at a true partial correlation of 0, `power` at `effect` in the claimed direction."""
    if not abs(effect) < 1:
        raise BadInput(f"The true partial correlation lies between -1 and 1, not at {effect}.")
    if seed < 0:
        raise BadInput(f"A seed is not negative, as {seed} is.")
    truth, found = Truth.of(frame, claim), {}
    claimed = -abs(effect) if claim.direction == "negative" else effect
    for index, (name, size) in enumerate((("false_positive", 0.0), ("power", claimed))):
        hits = 0
        for run in range(runs):
            table = truth.draw(size, np.random.default_rng([seed, index, run]))
            verdict = MetricAudit(
                table,
                claim.metric,
                claim.target,
                claim.baseline,
                claim.controls,
                twin=claim.twin,
                cluster=claim.cluster,
                direction=claim.direction,
                delta=delta,
                alpha=alpha,
                seed=run,
            ).run()
            hits += verdict.outcome is Outcome.INDEPENDENT
            on_progress("simulated tables", index * runs + run + 1, 2 * runs)
        found[name] = Rate(size, hits, runs)
    return found


def _icc(values: Array, clusters: NDArray[np.int64]) -> float:
    """Intraclass correlation by analysis of variance, never below zero."""
    sizes = np.bincount(clusters)
    means = np.bincount(clusters, values) / sizes
    groups, n = len(sizes), len(values)
    if groups < 2 or n == groups:
        return 0.0
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (groups - 1)
    inside = float(((values - means[clusters]) ** 2).sum()) / (n - groups)
    size = (n - float((sizes**2).sum()) / n) / (groups - 1)
    total = between + (size - 1) * inside
    return float(np.clip((between - inside) / total, 0, 0.99)) if total > 0 else 0.0
