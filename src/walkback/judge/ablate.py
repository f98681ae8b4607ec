"""Ablate: which verdict would each smaller body of evidence have given? The use of every diagnostic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from walkback.core.verdict import Verdict
from walkback.judge.assemble import Judged, judge_bundles
from walkback.judge.evidence import Evidence
from walkback.judge.naming import names_of
from walkback.judge.thresholds import Thresholds
from walkback.store import Bundle

EVIDENCE = ("accuracy", "accuracy + Γ", "+ D1", "+ D2", "+ D3", "full")


def ablate(
    bundles: Sequence[Bundle], *, logic: str = "artifact", thresholds: Thresholds | None = None
) -> list[dict[str, Any]]:
    """One row per rule, one decision per body of evidence: `trustworthy`, `walked back` or `not known`.

    The status quo (ours) trusts a rule whose accuracy is above chance and whose Γ is positive, each in most
    seeds; without a Γ that is not known. Each diagnostic is then added to it alone; `full` is the protocol.
    """
    judged = judge_bundles(bundles, logic=logic, thresholds=thresholds)
    judged = [item for item in judged if item.role != "baseline"]
    return [{"rule": name, **decisions(item)} for name, item in zip(names_of(judged), judged, strict=True)]


def decisions(item: Judged) -> dict[str, str]:
    """What each body of evidence decides about one rule."""
    above_chance = _most(_above_chance(run) for run in item.runs)
    gammas = [run.number("alignment.gamma_mean@1") for run in item.runs]
    aligned = _most(None if gamma is None else gamma > 0 for gamma in gammas)
    status_quo = _both(above_chance, aligned)
    fires = {reason.check: reason.fires for reason in item.verdict.reasons}
    decided = {
        "accuracy": above_chance,
        "accuracy + Γ": status_quo,
        **{f"+ {check}": _both(status_quo, _not(fires[check])) for check in ("D1", "D2", "D3")},
        "full": _full(item.verdict),
    }
    return {name: _words(decided[name]) for name in EVIDENCE}


def _above_chance(run: Evidence) -> bool | None:
    return run.accuracy > 1 / run.classes if run.accuracy is not None and run.classes else None


def _full(verdict: Verdict) -> bool | None:
    return {"PASS": True, "FAIL": False}.get(verdict.outcome.value)


def _most(states: Any) -> bool | None:
    """True if most seeds say so; None if any is unknown and could turn it."""
    said = list(states)
    yes, unknown = said.count(True), said.count(None)
    if yes * 2 > len(said):
        return True
    return None if (yes + unknown) * 2 > len(said) else False


def _both(one: bool | None, other: bool | None) -> bool | None:
    if False in (one, other):
        return False
    return None if None in (one, other) else True


def _not(state: bool | None) -> bool | None:
    return None if state is None else not state


def _words(trusted: bool | None) -> str:
    return {True: "trustworthy", False: "walked back", None: "not known"}[trusted]
