"""Which learning rate speaks for a rule: the best of its declared grid on the validation split.

A rule and its baseline may like different rates. With `--lr-grid` both are trained on the same grid, and
each is represented by the rate with the highest mean validation accuracy over seeds; the test split is
never looked at. Runs without a grid stand for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from walkback.core.canonical import canonical_json
from walkback.store import Bundle


def select_rates(bundles: Sequence[Bundle]) -> list[Bundle]:
    """The runs that count: all without a grid, and of each grid those at the chosen rate."""
    passed_over = _passed_over(bundles)
    return [bundle for bundle in bundles if bundle.path not in passed_over]


def rate_note(bundle: Bundle, bundles: Sequence[Bundle]) -> tuple[str, ...]:
    """How a rate was chosen among all the bundles there are, in a sentence; nothing without a grid."""
    if not bundle.spec.get("lr_grid"):
        return ()
    mates = [other for other in bundles if _grid_key(other) == _grid_key(bundle)]
    tried, declared = {other.spec["lr"] for other in mates}, bundle.spec["lr_grid"].split(",")
    missing = "" if len(tried) == len(declared) else f" (only {len(tried)} of {len(declared)} were run)"
    own, chosen = bundle.spec["lr"], select_rates(mates)[0].spec["lr"]
    if own != chosen:
        return (
            f"Learning rate {own:g} is not the one that speaks for this rule: of {', '.join(declared)}"
            f"{missing} the validation split prefers {chosen:g}.",
        )
    return (
        f"Learning rate {own:g} was chosen on the validation split from {', '.join(declared)}{missing}.",
    )


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


def _validation(group: Sequence[Bundle]) -> tuple[int, float]:
    """More seeds first, then the mean accuracy; a run that diverged or was not measured counts as 0."""
    found = []
    for bundle in group:
        table = bundle.measurements()
        value = table.number("accuracy.validation@1", table.epochs[-1]) if table.epochs else None
        found.append(0.0 if value is None or bundle.status.get("state") == "diverged" else value)
    return len(found), fmean(found)
