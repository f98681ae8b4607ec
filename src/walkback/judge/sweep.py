"""Sweep: how far can a threshold move before a verdict changes, and how well does it tell rules apart?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from walkback.judge.assemble import gather
from walkback.judge.naming import names_of, run_names
from walkback.judge.replay import History, ask, histories
from walkback.judge.select import select_rates
from walkback.judge.thresholds import Thresholds
from walkback.store import Bundle

# Growth and validity span decades; the depth margin is in points of accuracy.
GRID: Mapping[str, Sequence[float]] = {
    "growth": (5, 10, 20, 30, 50, 100, 200, 500, 1000),
    "validity": (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4),
    "depth_gain": (0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1),
}
CHECKS = {"growth": "D1", "validity": "D2", "compat": "D2", "depth_gain": "D3"}


def sweep(
    bundles: Sequence[Bundle], *, logic: str = "artifact", grid: Mapping[str, Sequence[float]] | None = None
) -> list[dict[str, Any]]:
    """One threshold at a time, the others at their default: the verdict on every rule at each value,
    and how often its detector fires over seeds and epochs."""
    grid = grid or ({**GRID, "compat": GRID["validity"]} if logic == "paper" else GRID)
    cases, runs = gather(bundles), histories(bundles)
    names, run_of = names_of([case.judge(logic=logic) for case in cases]), run_names(select_rates(bundles))
    rows: list[dict[str, Any]] = []
    for name, values in grid.items():
        if logic == "paper" and name == "validity":
            continue
        for value in values:
            thresholds = replace(Thresholds(), **{name: float(value)})
            rates = firing_rates(runs, CHECKS[name], logic, thresholds)
            for rule, case in zip(names, cases, strict=True):
                item = case.judge(logic=logic, thresholds=thresholds)
                if item.role == "baseline":
                    continue
                fired, known = rates.get(run_of[case.bundles[0].path], (0, 0))
                rows.append(
                    {
                        "threshold": name,
                        "value": float(value),
                        "default": value == getattr(Thresholds(), name),
                        "rule": rule,
                        "verdict": item.verdict.verdict,
                        "outcome": item.verdict.outcome.value,
                        "fired": fired,
                        "known": known,
                    }
                )
    return rows


def firing_rates(
    runs: Sequence[History], check: str, logic: str, thresholds: Thresholds
) -> dict[str, tuple[int, int]]:
    """Per rule: at how many (seed, epoch) the detector fires, out of those where it is known."""
    rates: dict[str, tuple[int, int]] = {}
    for run, baseline in (moment for history in runs for moment in history):
        fired, known = rates.get(run.label, (0, 0))
        said = ask(check, run, baseline, logic, thresholds).fires
        rates[run.label] = (fired + bool(said), known + (said is not None))
    return rates
