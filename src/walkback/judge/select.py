"""Which learning rate speaks for a rule: the best of its declared grid on the validation split.

A rule and its baseline may like different rates. With `--lr-grid` both are trained on the same grid, and
each is represented by the rate with the highest mean validation accuracy over seeds; the test split is
never looked at. Nothing is chosen before every declared rate of every seed has ended: until then one rate
stands in, and depth utility is not known. Runs without a grid stand for themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from walkback.core.canonical import canonical_json
from walkback.store import Bundle, Store


def select_rates(bundles: Sequence[Bundle]) -> list[Bundle]:
    """The runs that count: all without a grid, and of each grid those at the chosen rate."""
    passed_over = _passed_over(bundles)
    return [bundle for bundle in bundles if bundle.path not in passed_over]


def rate_note(bundle: Bundle, bundles: Sequence[Bundle]) -> tuple[str, ...]:
    """How a rate was chosen among all the bundles there are, in a sentence; nothing without a grid."""
    if not bundle.spec.get("lr_grid"):
        return ()
    own, declared = bundle.spec["lr"], ", ".join(bundle.spec["lr_grid"].split(","))
    if missing := open_grid(bundle, bundles):
        return (f"Learning rate {own:g} was not chosen from {declared} yet: {missing}.",)
    chosen = select_rates(_mates(bundle, bundles))[0].spec["lr"]
    if own != chosen:
        return (
            f"Learning rate {own:g} is not the one that speaks for this rule: of {declared} "
            f"the validation split prefers {chosen:g}.",
        )
    return (f"Learning rate {own:g} was chosen on the validation split from {declared}.",)


def open_grid(bundle: Bundle, bundles: Sequence[Bundle]) -> str:
    """Why a run's grid cannot choose yet, told in runs; nothing if it can, or there is none."""
    if not bundle.spec.get("lr_grid"):
        return ""
    mates = _mates(bundle, bundles)
    rates, seeds = set(bundle.spec["lr_grid"].split(",")), {mate.spec["seed"] for mate in mates}
    wanted, running = len(rates) * len(seeds), sum(not mate.finished for mate in mates)
    absent = wanted - len({(f"{mate.spec['lr']:g}", mate.spec["seed"]) for mate in mates})
    told = [f"{running} {'has' if running == 1 else 'have'} not ended"] * bool(running)
    told += [f"{absent} {'is' if absent == 1 else 'are'} not in this store"] * bool(absent)
    label = bundle.card["rule"]["label"]
    return f"of the {wanted} runs of {label}'s grid of learning rates {' and '.join(told)}" if told else ""


def open_rates(bundles: Sequence[Bundle]) -> dict[Path, str]:
    """Why the grid of each run cannot choose yet: among the runs named, and those that lie beside them."""
    grids = [bundle for bundle in bundles if bundle.spec.get("lr_grid")]
    stored = {path: Store(path).bundles() for path in {b.path.resolve().parent for b in grids}}
    return {b.path: open_grid(b, all_of(bundles, stored[b.path.resolve().parent])) for b in grids}


def all_of(given: Sequence[Bundle], stored: Sequence[Bundle]) -> list[Bundle]:
    """Those that were named, and those that lie beside them; each once."""
    return list({bundle.path.resolve(): bundle for bundle in (*stored, *given)}.values())


def _mates(bundle: Bundle, bundles: Sequence[Bundle]) -> list[Bundle]:
    return [other for other in bundles if _grid_key(other) == _grid_key(bundle)]


def _passed_over(bundles: Sequence[Bundle]) -> set[Any]:
    grids: dict[str, dict[float, list[Bundle]]] = {}
    for bundle in bundles:
        if bundle.spec.get("lr_grid"):
            grids.setdefault(_grid_key(bundle), {}).setdefault(bundle.spec["lr"], []).append(bundle)
    losers = set()
    for rates in grids.values():
        best = max(rates, key=lambda rate: (*_validation(rates[rate]), -rate))  # of equals the smallest
        losers |= {b.path for rate, group in rates.items() if rate != best for b in group}
    return losers


def _grid_key(bundle: Bundle) -> str:
    return canonical_json({k: v for k, v in bundle.spec.items() if k not in ("lr", "seed")})


def _validation(group: Sequence[Bundle]) -> tuple[int, int, float]:
    """More ended seeds first, then more seeds, then the mean accuracy.

    A run that diverged or was not measured has none, and its rate loses to any that has."""
    found = []
    for bundle in group:
        table = bundle.measurements()
        value = table.number("accuracy.validation@1", table.epochs[-1]) if table.epochs else None
        found.append(-math.inf if value is None or bundle.status.get("state") == "diverged" else value)
    return sum(bundle.finished for bundle in group), len(found), fmean(found)
