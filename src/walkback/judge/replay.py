"""Replay: when would each detector first have fired, epoch by epoch, rule by rule, seed by seed?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from walkback.core.verdict import Reason
from walkback.judge.assemble import by_rule_and_recipe, sibling_bundles
from walkback.judge.diagnostics import judge_depth, judge_reference, judge_scale
from walkback.judge.evidence import Evidence, evidence_by_epoch
from walkback.judge.naming import run_names
from walkback.judge.protocol import decide
from walkback.judge.select import open_rates, select_rates
from walkback.judge.thresholds import Thresholds
from walkback.store import Bundle


@dataclass(frozen=True)
class Moment:
    """One run at one epoch: what each detector said, and the verdict then. None: not known."""

    rule: str
    role: str
    seed: int | None
    epoch: int
    fires: dict[str, bool | None]
    verdict: str


History = list[tuple[Evidence, Evidence | None]]  # a run at each epoch, beside its baseline then


def histories(bundles: Sequence[Bundle]) -> list[History]:
    """Every run with the baseline of the same epoch, read once, and labelled so that nets and recipes of
    one rule are not taken for one another.

    Epoch 0 is left out: before training every net equals its frozen twin, and D3 would fire for all. A
    captured model's one epoch is called 0 too; it stays, beside its baseline's last.
    """
    bundles = [bundle for bundle in select_rates(bundles) if bundle.measurements().epochs]
    by_rule_and_recipe(bundles)  # a run that lies there twice would be counted twice
    names = run_names(bundles)
    siblings = sibling_bundles(bundles)
    rates = open_rates([*bundles, *(sibling for sibling in siblings if sibling is not None)])
    found = []
    for bundle, sibling in zip(bundles, siblings, strict=True):
        against = {} if sibling is None else _by_epoch(sibling, rates)
        last = against[max(against)] if against else None
        runs = [replace(run, label=names[bundle.path]) for run in _by_epoch(bundle, rates).values()]
        trained = [(run, against.get(run.epoch)) for run in runs if run.trained and run.epoch > 0]
        found.append(trained + [(run, last) for run in runs if not run.trained])
    return found


def _by_epoch(bundle: Bundle, rates: Mapping[Path, str]) -> dict[int, Evidence]:
    rate_open = rates.get(bundle.path, "")
    return {e: replace(run, rate_open=rate_open) for e, run in evidence_by_epoch(bundle).items()}


def replay(
    runs: Sequence[History], *, logic: str = "artifact", thresholds: Thresholds | None = None
) -> list[Moment]:
    """Every measured epoch of every run. One run has no interval over seeds: D3 decides by its point."""
    thresholds = thresholds or Thresholds()
    return [_moment(run, baseline, logic, thresholds) for history in runs for run, baseline in history]


def _moment(run: Evidence, baseline: Evidence | None, logic: str, thresholds: Thresholds) -> Moment:
    reasons = [ask(check, run, baseline, logic, thresholds) for check in DETECTORS]
    fires = {reason.check: reason.fires for reason in reasons}
    words = "BASELINE" if run.role == "baseline" else decide(reasons, logic)[1]
    return Moment(run.label, run.role, run.seed, run.epoch, fires, words)


DETECTORS = ("D1", "D2", "D3")


def ask(check: str, run: Evidence, baseline: Evidence | None, logic: str, thresholds: Thresholds) -> Reason:
    """One detector on one run at one epoch."""
    if check == "D1":
        return judge_scale([run], thresholds)
    if check == "D2":
        return judge_reference([run], thresholds, literal=logic == "paper")
    return judge_depth([run], [baseline], thresholds, intervals=False)


def first_firing(moments: Sequence[Moment]) -> list[dict[str, Any]]:
    """Per rule and seed: the first epoch at which each detector fires, and at which it stays.

    `first` is None if it never did; `stays_from` is the epoch from which it fires to the end, wherever it
    is known.
    """
    runs: dict[tuple[str, int | None], list[Moment]] = {}
    for moment in moments:
        if moment.role != "baseline":
            runs.setdefault((moment.rule, moment.seed), []).append(moment)
    rows: list[dict[str, Any]] = []
    for (rule, seed), history in sorted(runs.items(), key=lambda pair: (pair[0][0], pair[0][1] or 0)):
        history = sorted(history, key=lambda moment: moment.epoch)
        for check in DETECTORS:
            said = [(moment.epoch, moment.fires[check]) for moment in history]
            rows.append(
                {
                    "rule": rule,
                    "seed": seed,
                    "detector": check,
                    "first": next((epoch for epoch, fires in said if fires), None),
                    "stays_from": _stays_from(said),
                    "known_epochs": sum(fires is not None for _, fires in said),
                    "epochs": len(said),
                }
            )
    return rows


def _stays_from(said: Sequence[tuple[int, bool | None]]) -> int | None:
    start = None
    for epoch, fires in said:
        if fires is False:
            start = None
        elif fires and start is None:
            start = epoch
    return start
