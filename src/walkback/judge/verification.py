"""Verification: the verdicts on several tracks, counted so that nothing drops out of the denominator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from walkback.core.verdict import Outcome, Reason, Verdict, worst

_WORDS = {
    "passed": Outcome.PASS,
    "failed": Outcome.FAIL,
    "inconclusive": Outcome.INCONCLUSIVE,
    "skipped": Outcome.SKIPPED,
    "error": Outcome.ERROR,
}


@dataclass(frozen=True)
class Verification:
    """Tracks in the order they were asked for; each verdict's evidence says which track it is about."""

    verdicts: Sequence[Verdict]
    seed: int
    mode: str
    kept: int = 0  # passes through an experiment that were found finished, and not run again
    traces: Mapping[str, str] = field(default_factory=dict)  # of passes that raised, for whoever mends them

    @property
    def outcome(self) -> Outcome:
        return worst(verdict.outcome for verdict in self.verdicts)

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(verdict.outcome for verdict in self.verdicts)
        return {**{word: found[outcome] for word, outcome in _WORDS.items()}, "total": len(self.verdicts)}

    @property
    def average_score(self) -> float | None:
        """Over all tracks but those that were skipped; an error counts as 0."""
        scores = [verdict.evidence["score"] for verdict in self.verdicts]
        known = [score for score in scores if score is not None]
        return fmean(known) if known else None

    @property
    def seconds(self) -> float:
        return sum(verdict.evidence["seconds"] for verdict in self.verdicts)

    def __getitem__(self, track: int | str) -> Verdict:
        return next(v for v in self.verdicts if str(v.evidence["id"]) == str(track))

    def to_dict(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "counts": self.counts,
            "average_score": self.average_score,
            "seed": self.seed,
            "mode": self.mode,
            "kept": self.kept,
            "tracks": [track_answer(verdict) for verdict in self.verdicts],
        }


def track_answer(verdict: Verdict) -> dict[str, Any]:
    """The documented keys first; the table and the words of the track after them."""
    evidence = dict(verdict.evidence)
    first = {key: evidence.pop(key) for key in ("id", "name", "score", "seconds", "peak_mb", "level")}
    return {
        "id": first["id"],
        "name": first["name"],
        "outcome": verdict.outcome,
        "verdict": verdict.verdict,
        "score": first["score"],
        "seconds": first["seconds"],
        "peak_mb": first["peak_mb"],
        "claim": verdict.claim,
        "sentence": " ".join(verdict.notes),
        "gates": [_check_answer(reason) for reason in of_kind(verdict, "gate")],
        "decisions": [_check_answer(reason) for reason in of_kind(verdict, "decision")],
        "controls": [_control_answer(reason) for reason in of_kind(verdict, "control")],
        "evidence": first["level"],
        "details": evidence,
    }


def of_kind(verdict: Verdict, kind: str) -> list[Reason]:
    """The reasons of one kind: `gate` (identity gates too), `decision` or `control` (positive ones too)."""
    return [reason for reason in verdict.reasons if reason.check.endswith(kind)]


def _check_answer(reason: Reason) -> dict[str, Any]:
    return {
        "name": reason.name,
        "kind": reason.check,
        "passed": reason.fires is False,
        "value": reason.value,
        "interval": reason.interval,
        "at_least": reason.detail.get("at_least"),
        "at_most": reason.detail.get("at_most"),
        "status": reason.status,
        "sentence": reason.sentence,
    }


def _control_answer(reason: Reason) -> dict[str, Any]:
    """`passed` is whether the *track* is right about it: a sabotage caught, a positive control seen."""
    return {
        "name": reason.name,
        "kind": reason.check,
        "passed": reason.fires is False,
        "caught_by": reason.detail.get("caught_by"),
        "value": reason.value,
        "sentence": reason.sentence,
    }
