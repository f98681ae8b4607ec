"""From what a person asks for to the list of runs, every default written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from walkback.core.errors import BadInput
from walkback.core.spec import Call, RunSpec, Value
from walkback.data import datasets
from walkback.nets import nets
from walkback.rules import resolve_rule
from walkback.train.schedule import schedules

HOLDOUT = 0.1  # of the training rows, the same for every rule and seed


class Identified(Protocol):
    """A data set, as far as the name of a run goes."""

    @property
    def identity(self) -> str: ...


class Known(NamedTuple):
    """A data set that is not here, known by its hash: enough to find its runs, not to train them."""

    identity: str


def plan_runs(
    *,
    net: str,
    rules: Sequence[str],
    seeds: Sequence[int],
    data: str,
    dataset: Identified,
    net_options: Mapping[str, Value] | None = None,
    lr_grid: Sequence[float] | None = None,
    **recipe: Any,
) -> list[RunSpec]:
    """One spec per seed and rule, seeds outermost: a stopped study has whole seeds rather than rules."""
    if not rules or not seeds:
        raise BadInput("Name at least one rule and one seed.")
    call = Call.parse(net)
    full_net = Call(call.name, {**call.params, **(net_options or {})}).with_defaults(
        nets[call.name].defaults,  # type: ignore[attr-defined]
        "net",
    )
    full_data = Call.parse(data)
    for kind, given in (("net", call), ("data set", full_data)):
        if given.plus:
            raise BadInput(f"Nothing can be added to a {kind}: +{given.plus[0]}.", "Rules take additions.")
    full_data = full_data.with_defaults(datasets[full_data.name].defaults, "data set")
    full_rules = [resolve_rule(rule) for rule in rules]
    if "schedule" in recipe:
        schedules[recipe["schedule"]]
    return [
        RunSpec(full_net, rule, full_data, dataset.identity, seed, **{**recipe, **rate})
        for seed in dict.fromkeys(seeds)
        for rule in dict.fromkeys(full_rules)
        for rate in _rates(lr_grid)
    ]


def _rates(lr_grid: Sequence[float] | None) -> list[dict[str, Any]]:
    """One recipe per rate of the grid, each with the grid written down and rows held out to choose on."""
    if not lr_grid:
        return [{}]
    declared = ",".join(f"{rate:g}" for rate in sorted(set(lr_grid)))
    return [{"lr": rate, "lr_grid": declared, "holdout": HOLDOUT} for rate in sorted(set(lr_grid))]
