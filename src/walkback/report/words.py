"""How states, outcomes and reasons are put into words for a reader."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from walkback.core.numerals import MISSING as MISSING
from walkback.core.numerals import cosine as cosine
from walkback.core.numerals import count as count
from walkback.core.numerals import limit as limit
from walkback.core.numerals import number as number
from walkback.core.numerals import percent as percent
from walkback.core.numerals import points as points
from walkback.core.numerals import share as share
from walkback.core.quantities import gap as gap
from walkback.core.verdict import Outcome, Reason, Verdict


@dataclass(frozen=True)
class Tone:
    """How an outcome is shown: a style name, a sign, and words that stand without colour."""

    name: str
    sign: str
    words: str


_TONES = {
    Outcome.PASS: Tone("pass", "✓", "No reason found to walk the claim back"),
    Outcome.FAIL: Tone("fail", "✗", "The claim is walked back"),
    Outcome.INCOMPLETE: Tone("open", "?", "Not decided: evidence is missing"),
    Outcome.INCONCLUSIVE: Tone("open", "?", "Not decided: the evidence leaves it open"),
}
_BASELINE = Tone("base", "=", "Baseline: blocks that are not trained")


def tone_of(verdict: Verdict) -> Tone:
    return _BASELINE if is_baseline(verdict) else _TONES.get(verdict.outcome, _TONES[Outcome.INCOMPLETE])


def is_baseline(verdict: Verdict) -> bool:
    return verdict.verdict == "BASELINE"


def badge(verdict: Verdict) -> str:
    return "baseline, no verdict" if is_baseline(verdict) else verdict.verdict


def text(value: Any) -> str:
    return MISSING if value is None or value == "" else str(value)


def spread(mean: str, deviation: str) -> str:
    """`mean ± deviation`; one seed has no deviation and shows none."""
    return mean if deviation == MISSING else f"{mean} ± {deviation}"


def cosines(mean: float | None, deviation: float | None) -> str:
    """`mean ± deviation` of cosines and the like; a deviation has no sign."""
    return spread(cosine(mean), cosine(deviation).lstrip("+"))


def gaps(found: Sequence[str]) -> str:
    """What stands where a number is missing, and in how many seeds: `not a number in 1 of 3 seeds`."""
    told = Counter(filter(None, found)).items()
    return ", ".join(
        word if n == len(found) else f"{word} in {n} of {len(found)} seeds" for word, n in told
    )


def lost(reason: Reason) -> str:
    """How many seeds have no number for a detector, and why: `1 not a number`."""
    told = Counter(filter(None, reason.detail.get("gaps", ()))).items()
    return ", ".join(f"{n} {word}" for word, n in told)


def raw(reason: Reason) -> float | None:
    """The value of a detector; NaN where there is none because what was measured is not a number."""
    measured = "not a number" in reason.detail.get("gaps", ())
    return math.nan if reason.value is None and measured else reason.value


def plural(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def listed(things: Sequence[str]) -> str:
    """`a, b and c`; `none` of nothing."""
    *others, last = things or ["none"]
    return f"{', '.join(others)} and {last}" if others else last


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean over seeds; None if any seed has none, so that a gap is seen, and NaN if any is not a number."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def median_of(values: Sequence[float | None]) -> float | None:
    """The median seed's; None if any seed has none, NaN if any is not a number."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return math.nan if any(map(math.isnan, known)) else median(known)


def sd_of(values: Sequence[float | None]) -> float | None:
    """Standard deviation over seeds (n − 1); None for one seed or with a gap."""
    known = [value for value in values if value is not None]
    complete = len(known) == len(values) and len(known) > 1
    return stdev(known) if complete and all(map(math.isfinite, known)) else None


def fires(reason: Reason) -> str:
    """Open: it was measured, and its interval holds the threshold."""
    unknown = {"open": "open", "early": "too early"}.get(reason.status, "not known")
    return {True: "fires", False: "does not fire", None: unknown}[reason.fires]


def firing(first: int | None, stays: int | None, known: int) -> str:
    """`8`; `3 (8)` if it fires to the end from 8 on; `3 (does not stay)`; `never` in `known` epochs."""
    if first is None:
        return "never" if known else "not known"
    return f"{first}" if stays == first else f"{first} ({'does not stay' if stays is None else stays})"


def survives(step: Any) -> str:
    return {True: "stands", False: "walked back", None: "not known"}[step["survives"]]


def run_state(status: Any, epochs: int | None) -> str:
    """How far a run came, in words."""
    state, epoch = status.get("state"), status.get("epoch")
    if state == "diverged":
        reason = status.get("reason")
        return f"diverged in epoch {epoch}" + (f": {reason}" if reason else "")
    if state == "running":
        return f"still running (epoch {epoch} of {epochs})" if epochs else f"still running (epoch {epoch})"
    return {"finished": "finished", "captured": "captured model"}.get(state, "state not recorded")


def why(verdict: Verdict) -> str:
    """One sentence: which detectors fired and with what values, or what is missing."""
    if is_baseline(verdict):
        return " ".join(verdict.notes)
    firing = [reason for reason in verdict.reasons if reason.fires]
    unknown = [reason for reason in verdict.reasons if reason.fires is None]
    quiet = [reason for reason in verdict.reasons if reason.fires is False]
    parts = []
    if firing:
        decided = verdict.outcome is Outcome.FAIL
        start = "Fires: " if decided else "Fires, but does not decide alone: "
        parts.append(start + "; ".join(map(_brief, firing)) + ".")
    if unknown:
        parts.append("Not known: " + "; ".join(map(_unknown, unknown)) + ".")
    if quiet and verdict.outcome is not Outcome.FAIL:
        parts.append("Does not fire: " + "; ".join(map(_brief, quiet)) + ".")
    return " ".join(parts)


def _brief(reason: Reason) -> str:
    if reason.value is None:
        return f"{reason.check}, on {reason.seeds} seeds; {lost(reason)}"
    if reason.check == "D1":
        return f"D1, the largest growth of one block is {_over_seeds(reason)}"
    if reason.check == "D2":
        return f"D2, the reference gradient measures {_over_seeds(reason)}"
    told = (
        f"{reason.check}, trained blocks gain {points(reason.value)} pp over frozen ones "
        f"(required {points(reason.threshold)} pp)"
    )
    return told + (", but not under every stem" if reason.status == "stem-dependent" else "")


def _over_seeds(reason: Reason) -> str:
    """The value and its limit; of several seeds it is the median's, and those that fire are counted."""
    fired, _, seeds = reason.seeds.partition("/")
    whose = " in the median seed" if seeds not in ("", "1") else ""
    votes = f", fires on {fired} of {seeds} seeds" if whose and fired != "0" else ""
    return f"{number(reason.value)}{whose} (limit {limit(reason.threshold)}{votes})"


def _unknown(reason: Reason) -> str:
    if reason.status == "early":
        return f"{reason.check}, {points(reason.value)} pp so far, while it still trains"
    if reason.status == "open" and reason.interval is not None:
        low, high = map(points, reason.interval)
        return f"{reason.check}, the gain lies between {low} and {high} pp"
    return f"{reason.check} ({reason.detail.get('how') or gaps(reason.detail.get('gaps', ()))})"
