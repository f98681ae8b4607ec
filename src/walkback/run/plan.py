"""From what a person asks for to the list of runs, every default written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from walkback.core.errors import BadInput
from walkback.core.spec import Call, RunSpec, Value
from walkback.data import Dataset, datasets
from walkback.nets import nets
from walkback.rules import resolve_rule
from walkback.train.schedule import schedules


def plan_runs(
    *,
    net: str,
    rules: Sequence[str],
    seeds: Sequence[int],
    data: str,
    dataset: Dataset,
    net_options: Mapping[str, Value] | None = None,
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
    full_data = full_data.with_defaults(datasets[full_data.name].defaults, "data set")
    full_rules = [resolve_rule(rule) for rule in rules]
    if "schedule" in recipe:
        schedules[recipe["schedule"]]
    return [
        RunSpec(full_net, rule, full_data, dataset.identity, seed, **recipe)
        for seed in dict.fromkeys(seeds)
        for rule in dict.fromkeys(full_rules)
    ]
