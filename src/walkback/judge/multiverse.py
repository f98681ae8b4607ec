"""The verdict multiverse: every defensible choice at once, and which choice turns the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from walkback.core.verdict import Outcome
from walkback.judge.assemble import Case, gather
from walkback.judge.naming import names_of
from walkback.judge.thresholds import Thresholds
from walkback.store import Bundle

# Each axis lists what a careful reviewer might have chosen; the first value is walkback's default.
CHOICES: dict[str, tuple[Any, ...]] = {
    "logic": ("artifact", "paper"),
    "growth": (50.0, 20.0, 100.0),
    "validity": (1e-7, 1e-8, 1e-6),
    "depth_gain": (0.02, 0.01, 0.03),
    "seed_share": (2 / 3, 0.5, 1.0),
    "alpha": (0.02, 0.05),
}


def multiverse(bundles: Sequence[Bundle]) -> list[dict[str, Any]]:
    """Per rule: how often the default outcome holds over all specifications, and what flips it."""
    cases = [case for case in gather(bundles) if case.runs[0].role != "baseline"]
    names = names_of([case.judge() for case in cases])
    return [_over_choices(name, case) for name, case in zip(names, cases, strict=True)]


def _over_choices(rule: str, case: Case) -> dict[str, Any]:
    names = list(CHOICES)
    outcomes = {
        values: _outcome(case, dict(zip(names, values, strict=True)))
        for values in product(*CHOICES.values())
    }
    default = outcomes[tuple(axis[0] for axis in CHOICES.values())]
    holding = sum(outcome is default for outcome in outcomes.values())
    return {
        "rule": rule,
        "default": default.value,
        "specifications": len(outcomes),
        "holds": holding,
        "share": holding / len(outcomes),
        "outcomes": {o.value: n for o, n in Counter(outcomes.values()).most_common()},
        "flips": _flips(names, outcomes),
    }


def _outcome(case: Case, chosen: dict[str, Any]) -> Outcome:
    logic = chosen.pop("logic")
    # Both readings of D2 move together: one axis, whichever of them the logic uses.
    thresholds = replace(Thresholds(), compat=chosen["validity"], **chosen)
    return case.judge(logic=logic, thresholds=thresholds).verdict.outcome


def _flips(names: Sequence[str], outcomes: dict[tuple[Any, ...], Outcome]) -> dict[str, float]:
    """Per choice: in what share of specifications moving it alone off the default turns the outcome."""
    shares = {}
    for place, name in enumerate(names):
        pairs = [
            (outcome, outcomes[(*values[:place], CHOICES[name][0], *values[place + 1 :])])
            for values, outcome in outcomes.items()
            if values[place] != CHOICES[name][0]
        ]
        shares[name] = sum(one is not other for one, other in pairs) / len(pairs)
    return shares
