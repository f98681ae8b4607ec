"""The temporal curve: a metric read at epoch t against the loss read at the same epoch.

A metric that is measured early may say more than the loss does then, and nothing that the later loss does
not. The curve shows where along training that is; it is a look, not a test, and has no verdict.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from walkback.core.errors import BadInput
from walkback.metrics.admissible import Claim, admit, exact_source
from walkback.metrics.clusters import orthonormal
from walkback.metrics.compat import Array, nothing_left, partial_spearman, ranks
from walkback.metrics.fisher import rank_interval
from walkback.metrics.ledger import design

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

LEVEL = 0.95
ALIKE = 1e-12  # a rank correlation this near to ±1 is the same order, or its reverse


@dataclass(frozen=True)
class Moment:
    """Rank correlations at one epoch, given the controls; NaN, with a reason, where rows do not allow them.

    `low` and `high` are the ends of the 95 % interval of `metric_given_baseline`, for independent rows.
    """

    epoch: int
    n: int
    dropped: int
    metric: float = math.nan
    baseline: float = math.nan
    together: float = math.nan
    metric_given_baseline: float = math.nan
    low: float = math.nan
    high: float = math.nan
    baseline_given_metric: float = math.nan
    reason: str = ""


def temporal_curve(
    frame: pd.DataFrame, metric: str, target: str, baseline: str, controls: Sequence[str] = ()
) -> list[Moment]:
    """Metric and baseline against the target, raw and each given the other, at every epoch both have.

    Columns are named `<stem>_ep<t>`, for instance `sam_sharpness_ep5` and `val_loss_ep5`.
    """
    stems = {stem: _epochs(frame, stem) for stem in (metric, baseline)}
    for stem, epochs in stems.items():
        if not epochs:
            raise BadInput(f"There is no column {stem}_ep<t>, as {stem}_ep5 would be: nothing to follow.")
    both = sorted(stems[metric].keys() & stems[baseline].keys())
    if not both:
        told = [f"{stem} at {', '.join(map(str, sorted(epochs)))}" for stem, epochs in stems.items()]
        raise BadInput(f"No epoch has both: {' and '.join(told)}.")
    return [
        _moment(frame, epoch, Claim(stems[metric][epoch], target, stems[baseline][epoch], tuple(controls)))
        for epoch in both
    ]


def _epochs(frame: pd.DataFrame, stem: str) -> dict[int, str]:
    """The columns of a stem by their epochs; `_ep05` is epoch 5."""
    found: dict[int, str] = {}
    for name in map(str, frame.columns):
        match = re.fullmatch(re.escape(stem) + r"_ep(\d+)", name)
        if match and int(match[1]) in found:
            raise BadInput(f"{found[int(match[1])]} and {name} are columns of one epoch.")
        if match:
            found[int(match[1])] = name
    return found


def _moment(frame: pd.DataFrame, epoch: int, claim: Claim) -> Moment:
    assert claim.baseline is not None
    admitted = admit(frame, claim)
    rows = admitted.frame
    if admitted.refusals:
        return Moment(epoch, len(rows), admitted.dropped, reason=admitted.refusals[0])
    source = exact_source(rows, claim)
    if source not in (None, claim.baseline):
        reason = f"{claim.metric} is a function of {source}, to rounding."
        return Moment(epoch, len(rows), admitted.dropped, reason=reason)
    ours, theirs, wanted = (
        rows[name].to_numpy(float) for name in (claim.metric, claim.baseline, claim.target)
    )
    given, instead = design(rows, claim.confounders), design(rows, (claim.metric, *claim.controls))
    beyond, behind = partial_spearman(ours, wanted, given), partial_spearman(theirs, wanted, instead)
    together = partial_spearman(ours, theirs).raw
    reason = ""
    if 1 - abs(together) < ALIKE:
        reason = "Metric and baseline order the runs alike: neither can be given the other."
    elif _used_up(ours, wanted, given) or _used_up(theirs, wanted, instead):
        reason = "What is given leaves nothing of the target, the metric or the baseline, to rounding."
    if reason:
        return Moment(epoch, len(rows), admitted.dropped, beyond.raw, behind.raw, together, reason=reason)
    low, high = rank_interval(beyond.partial, beyond.n, beyond.k, level=LEVEL)
    return Moment(
        epoch,
        len(rows),
        admitted.dropped,
        beyond.raw,
        behind.raw,
        together,
        beyond.partial,
        low,
        high,
        behind.partial,
    )


def _used_up(column: Array, target: Array, given: Array) -> bool:
    """Whether the ranks of either are a linear function of what is given: what is left is rounding."""
    whole, basis = ranks(np.column_stack([column, target])), orthonormal(given, len(target))
    return bool(nothing_left(whole - basis @ (basis.T @ whole), whole).any())


def sentence_of(moments: Sequence[Moment]) -> str:
    """Where the metric says most beyond the baseline, and what that is worth."""
    known = [moment for moment in moments if not math.isnan(moment.metric_given_baseline)]
    if not known:
        return "At no epoch can the metric be compared with the baseline."
    most = max(known, key=lambda moment: abs(moment.metric_given_baseline))
    apart = sum(not moment.low <= 0 <= moment.high for moment in known)
    return (
        f"The metric says most beyond the baseline of its own epoch at epoch {most.epoch}: "
        f"{most.metric_given_baseline:+.3f}. At {apart} of {len(known)} epochs the interval leaves out 0; "
        "rows count as independent, and nothing is corrected for the epochs looked at. "
        "For a verdict, audit the columns of an epoch that was chosen beforehand."
    )
