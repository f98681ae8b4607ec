"""Ablate: which verdict would each smaller body of evidence have given? The use of every diagnostic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from walkback.core.verdict import Verdict
from walkback.judge.assemble import Judged, judge_bundles
from walkback.judge.chain import status_quo
from walkback.judge.naming import names_of
from walkback.judge.three_valued import every
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
    above_chance, claim = status_quo(item.runs)
    fires = {reason.check: reason.fires for reason in item.verdict.reasons}
    decided = {
        "accuracy": above_chance,
        "accuracy + Γ": claim,
        **{f"+ {check}": every((claim, _not(fires[check]))) for check in ("D1", "D2", "D3")},
        "full": _full(item.verdict),
    }
    return {name: _words(decided[name]) for name in EVIDENCE}


def _full(verdict: Verdict) -> bool | None:
    return {"PASS": True, "FAIL": False}.get(verdict.outcome.value)


def _not(state: bool | None) -> bool | None:
    return None if state is None else not state


def _words(trusted: bool | None) -> str:
    return {True: "trustworthy", False: "walked back", None: "not known"}[trusted]
