"""Several metrics audited together: each has its verdict, and p values for having asked them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from walkback.core.errors import BadInput
from walkback.core.verdict import Verdict
from walkback.metrics.audit import MetricAudit
from walkback.metrics.ledger import design, is_number
from walkback.metrics.multiple import Battery, permutation_battery
from walkback.metrics.simulate import Progress, Rate, simulate

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 9999


@dataclass(frozen=True)
class Audits:
    """Verdicts by metric. `adjusted`: p alone, after Benjamini–Hochberg, and by max-T, per metric;
    `canon`: what others measure, and `rates`: how often the audit errs on this design, where asked for."""

    verdicts: dict[str, Verdict]
    adjusted: dict[str, dict[str, float | None]]
    canon: dict[str, dict[str, Any]]
    rates: dict[str, dict[str, Rate]] = field(default_factory=dict)


def audit_all(
    frame: pd.DataFrame,
    metrics: Sequence[str],
    target: str,
    baseline: str | None = None,
    controls: Sequence[str] = (),
    *,
    canon: bool = False,
    simulated: int = 0,
    on_progress: Progress = lambda what, done, total: None,
    **options: Any,
) -> Audits:
    """One `MetricAudit` per metric; corrections over all of them, from permutations that they share.

    `simulated` tables per truth tell how often the audit itself errs on this design; 0 leaves that out.
    """
    if not metrics:
        raise BadInput("Name at least one metric.")
    audits = {
        name: MetricAudit(frame, name, target, baseline, _without(controls, name), **options)
        for name in metrics
    }
    verdicts = {name: audit.run() for name, audit in audits.items()}
    tested = [name for name, verdict in verdicts.items() if verdict.evidence.get("tests")]
    confounders = list(dict.fromkeys([*([baseline] if baseline else []), *controls]))
    adjusted = _adjust(frame, tested, target, confounders, options.get("cluster"))
    others = {name: audit.canon() for name, audit in audits.items()} if canon else {}
    rates = {
        name: simulate(frame, audits[name].claim, runs=simulated, on_progress=on_progress)
        for name in (tested if simulated else ())
    }
    return Audits(verdicts, adjusted, others, rates)


def _without(controls: Sequence[str], metric: str) -> list[str]:
    """A battery may hold a column that is also a control: for that metric it is not."""
    return [name for name in controls if name != metric]


def _adjust(
    frame: pd.DataFrame,
    metrics: Sequence[str],
    target: str,
    confounders: Sequence[str],
    cluster: str | None,
) -> dict[str, dict[str, float | None]]:
    """On the rows that all tested metrics have; fewer than two metrics need no correction."""
    metrics = [name for name in metrics if name not in confounders]
    if len(metrics) < 2:
        return {}
    columns = [*dict.fromkeys([*metrics, target, *confounders, *([cluster] if cluster else [])])]
    rows = frame[columns].dropna()
    rows = rows[np.isfinite(rows[[c for c in columns if is_number(rows[c])]].to_numpy(float)).all(axis=1)]
    if len(rows) < len(confounders) + 10:
        return {}
    found: Battery = permutation_battery(
        rows[list(metrics)].to_numpy(float),
        rows[target].to_numpy(float),
        design(rows, confounders),
        rng=np.random.default_rng(0),
        draws=DRAWS,
        clusters=None if cluster is None else rows[cluster].astype(str).to_numpy(),
    )
    return {
        name: {
            "p": float(found.p[0, i]),
            "bh": float(found.p_bh[0, i]),
            "max_t": float(found.p_max[0, i]),
            "n": len(rows),
        }
        for i, name in enumerate(metrics)
    }
