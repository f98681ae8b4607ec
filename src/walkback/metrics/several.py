"""Several metrics audited together: each has its verdict, and p values for having asked them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from walkback.core.errors import BadInput
from walkback.core.verdict import Verdict
from walkback.metrics.audit import MetricAudit
from walkback.metrics.crossfit import CrossFit, FitTask, cross_fit_all
from walkback.metrics.ledger import design, in_one_order
from walkback.metrics.multiple import Battery, Mask, permutation_battery
from walkback.metrics.simulate import Progress, Rate, simulate

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 9999
Adjusted = dict[str, float | None]


@dataclass(frozen=True)
class Audits:
    """Verdicts by metric. `adjusted`: p alone, after Benjamini–Hochberg, and by max-T, per metric;
    `by_group`: the same over all metrics and groups. Where asked for, `canon`: what others measure, and
    `rates`: how often the audit errs on this design."""

    verdicts: dict[str, Verdict]
    adjusted: dict[str, Adjusted]
    canon: dict[str, dict[str, Any]]
    rates: dict[str, dict[str, Rate]] = field(default_factory=dict)
    by_group: dict[str, dict[str, Adjusted]] = field(default_factory=dict)


def audit_all(
    frame: pd.DataFrame,
    metrics: Sequence[str],
    target: str,
    baseline: str | None = None,
    controls: Sequence[str] = (),
    *,
    twin: str | None = None,
    cluster: str | None = None,
    group: str | None = None,
    direction: str | None = None,
    delta: float = 0.2,
    alpha: float = 0.05,
    seed: int = 0,
    canon: bool = False,
    simulated: int = 0,
    on_progress: Progress = lambda what, done, total: None,
) -> Audits:
    """One `MetricAudit` per metric; corrections over all of them, from permutations that they share.

    `simulated` tables per truth tell how often the audit itself errs on this design; 0 leaves that out.
    """
    if not metrics:
        raise BadInput("Name at least one metric.")
    audits = {
        name: MetricAudit(
            frame,
            name,
            target,
            baseline,
            _without(controls, name, metrics),
            twin=twin,
            cluster=cluster,
            group=group,
            direction=direction,
            delta=delta,
            alpha=alpha,
            seed=seed,
        )
        for name in metrics
    }
    fitted = _fit_together(audits)
    verdicts = {name: audit.run(fitted.get(name)) for name, audit in audits.items()}
    tested = [name for name, verdict in verdicts.items() if verdict.evidence.get("tests")]
    confounders = list(dict.fromkeys([*([baseline] if baseline else []), *controls]))
    adjusted, by_group = _corrections(frame, [audits[name] for name in tested], confounders, group)
    others = {name: audit.canon() for name, audit in audits.items()} if canon else {}
    rates = {
        name: simulate(
            frame,
            audits[name].claim,
            runs=simulated,
            delta=delta,
            alpha=alpha,
            on_progress=on_progress,
        )
        for name in (tested if simulated else ())
    }
    return Audits(verdicts, adjusted, others, rates, by_group)


def _fit_together(audits: Mapping[str, MetricAudit]) -> dict[str, CrossFit]:
    """What learners find for each metric; metrics that share all else are given to them together."""
    alike: dict[tuple[bytes, ...], dict[str, FitTask]] = {}
    for name, audit in audits.items():
        task = audit.fit_task()
        if task is not None:
            alike.setdefault(task.shared, {})[name] = task
    return {
        name: found
        for tasks in alike.values()
        for name, found in zip(tasks, cross_fit_all(list(tasks.values())), strict=True)
    }


def _without(controls: Sequence[str], metric: str, metrics: Sequence[str]) -> list[str]:
    """A battery may hold a column that is also a control: for that metric it is not. A metric that is
    asked for alone stays among its own controls, and is told to be one of them."""
    return [name for name in controls if name != metric or len(metrics) == 1]


def _corrections(
    frame: pd.DataFrame, tested: Sequence[MetricAudit], confounders: Sequence[str], group: str | None
) -> tuple[dict[str, Adjusted], dict[str, dict[str, Adjusted]]]:
    """Over the metrics, and over metrics × groups: on the rows that count for all tested metrics."""
    audits = [audit for audit in tested if audit.claim.metric not in confounders]
    if not audits:
        return {}, {}
    target, cluster, seed = audits[0].claim.target, audits[0].claim.cluster, audits[0].seed
    metrics, least = [audit.claim.metric for audit in audits], len(confounders) + 10
    shared = frame.iloc[sorted(set.intersection(*(set(audit.admitted.rows) for audit in audits)))]
    rows = in_one_order(shared, [target, *confounders])
    rows = rows if len(rows) >= least else rows[:0]
    whole = _adjust(rows, metrics, target, confounders, cluster, {"": np.ones(len(rows), dtype=bool)}, seed)
    adjusted = {name: found[""] for name, found in whole.items()}
    if group is None:
        return adjusted, {}
    rows = rows[rows[group].notna()]
    rows = rows if len(rows) >= least else rows[:0]
    values = [value for value, _ in rows.groupby(group, sort=True)]
    masks = {f"{group}={value}": (rows[group] == value).to_numpy() for value in values}
    others = [name for name in confounders if name != group]
    return adjusted, _adjust(rows, metrics, target, others, cluster, masks, seed)


def _adjust(
    rows: pd.DataFrame,
    metrics: Sequence[str],
    target: str,
    confounders: Sequence[str],
    cluster: str | None,
    groups: Mapping[str, Mask],
    seed: int,
) -> dict[str, dict[str, Adjusted]]:
    """By metric and group; a single test needs no correction, and rows that are too few allow none."""
    if rows.empty or len(metrics) * len(groups) < 2:
        return {}
    found: Battery = permutation_battery(
        rows[list(metrics)].to_numpy(float),
        rows[target].to_numpy(float),
        design(rows, confounders),
        rng=np.random.default_rng(seed),
        draws=DRAWS,
        clusters=None if cluster is None else rows[cluster].astype(str).to_numpy(),
        groups=list(groups.values()),
    )
    return {
        name: {
            label: {
                "p": float(found.p[place, index]),
                "bh": float(found.p_bh[place, index]),
                "max_t": float(found.p_max[place, index]),
                "n": int(mask.sum()),
            }
            for place, (label, mask) in enumerate(groups.items())
        }
        for index, name in enumerate(metrics)
    }
