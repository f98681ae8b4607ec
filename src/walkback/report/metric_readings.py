"""What a report reads out of the verdict of a metric audit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from walkback.core.verdict import Outcome, Verdict
from walkback.metrics.admissible import Claim
from walkback.metrics.fisher import RANK_FACTOR

Interval = tuple[float, float]


def intervals_of(verdict: Verdict) -> tuple[Interval | None, Interval | None]:
    """Of the raw and the partial correlation: the bootstrap's if it was run, else Fisher's on ranks.

    Fisher's are the 1 − 2α intervals of the two one-sided tests, so that PROXY is an interval inside ±δ.
    """
    evidence = verdict.evidence
    drawn = evidence.get("bootstrap")
    if drawn:
        return _finite(drawn["raw_percentile"]), _finite(drawn["bca"]) or _finite(drawn["percentile"])
    same = evidence.get("equivalence")
    if not same or same["reason"]:
        return None, None
    clusters = evidence["tests"]["clusters"]
    units = evidence["n"] if clusters is None else clusters["clusters"]
    reach = _fisher_reach(same)
    if reach is None or units < 4:
        return None, None
    raw_reach = RANK_FACTOR * _normal_quantile(1 - alpha_of(verdict)) / math.sqrt(units - 3)
    return _around(evidence["raw"], raw_reach), _around(same["r"], reach)


def learners_of(verdict: Verdict) -> Sequence[Mapping[str, Any]]:
    if verdict.outcome is Outcome.REFUSED:
        return ()
    return (verdict.evidence.get("tests") or {}).get("learners") or ()


def standard_error(test: Mapping[str, Any]) -> float | None:
    """r and z share their numerator, so that the standard error of r is r/z."""
    r, z = test["r"], test["z"]
    return None if is_gap(r) or is_gap(z) or z == 0 else abs(r / z)


def alpha_of(verdict: Verdict) -> float:
    """The level that the tests were held against."""
    return next(reason.threshold for reason in verdict.reasons if reason.check == "ranks")


def claim_of(verdict: Verdict) -> Claim:
    shown = {name: verdict.evidence[name] for name in Claim.__dataclass_fields__}
    return Claim(**{**shown, "controls": tuple(shown["controls"])})


def is_exact(verdict: Verdict) -> bool:
    """A function of a control: what the controls leave is rounding, and no number of it is shown."""
    return any(reason.check == "exact" for reason in verdict.reasons)


def is_gap(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def _finite(interval: Sequence[float]) -> Interval | None:
    low, high = interval
    return None if is_gap(low) or is_gap(high) else (low, high)


def _fisher_reach(same: Mapping[str, Any]) -> float | None:
    """How far the interval reaches on Fisher's scale: up to the smallest δ that these rows would carry."""
    r, widest = abs(same["r"]), same["smallest_delta"]
    return math.atanh(widest) - math.atanh(r) if r < 1 and widest < 1 else None


def _around(r: float, reach: float) -> Interval | None:
    if is_gap(r) or abs(r) >= 1:
        return None
    return math.tanh(math.atanh(r) - reach), math.tanh(math.atanh(r) + reach)


def _normal_quantile(share: float) -> float:
    return NormalDist().inv_cdf(share)
