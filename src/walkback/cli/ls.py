"""`walkback ls`: what there is, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walkback.cli.output import Json, emit_json, stdout_console
from walkback.core.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from walkback.rules import Rule

EXAMPLE = "Example: walkback ls rules"


def ls(
    noun: Annotated[
        str, typer.Argument(help="rules, nets, data, studies, tracks, quantities, thresholds or bundles.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="With rules: prove each on every net; exit code 1 if one fails.")
    ] = False,
    store: Annotated[
        str | None, typer.Option("--store", help="With bundles: the folder they lie in; default: runs.")
    ] = None,
    json: Json = False,
) -> int:
    """List rules, nets, data sets, studies, tracks, quantities, thresholds, or the bundles of a store."""
    if noun not in _LISTS:
        raise UnknownName(f"There is no list of {noun!r}.", f"Choose: {', '.join(_LISTS)}.")
    if check and noun != "rules":
        raise BadInput("--check is for rules.")
    if store is not None and noun != "bundles":
        raise BadInput(f"{noun} lie in no store: --store is for bundles.")
    rows = _checked_rules() if check else _LISTS[noun](store or "runs")
    failed = check and any(net["status"] == "fail" for row in rows for net in row["check"].values())
    if json:
        emit_json({noun: rows})
        return int(failed)
    if check:
        rows = [
            {"name": row["name"], **{net: found["status"] for net, found in row["check"].items()}}
            for row in rows
        ]
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in rows[0] if rows else ("nothing yet",):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    stdout_console().print(table)
    return int(failed)


def _rules(store: str) -> list[dict[str, Any]]:
    from walkback.core.spec import Call
    from walkback.rules import modifiers, resolve_addition, resolve_rule, rules

    rows = []
    for name in rules:
        try:
            rows.append(_rule_row(name, str(resolve_rule(name)), rules[name].role, rules[name]))
        except BadInput as error:  # one that cannot be loaded does not take the others away
            rows.append({"name": name, "written": "", "role": "—", "about": str(error), "citation": ""})
    for name in modifiers:
        written = f"R+{resolve_addition(Call(name))}"
        rows.append(_rule_row(f"+{name}", written, "addition", modifiers[name]))
    return rows


def _rule_row(name: str, written: str, role: str, rule: type[Rule]) -> dict[str, Any]:
    return {"name": name, "written": written, "role": role, "about": rule.about, "citation": rule.citation}


def _checked_rules() -> list[dict[str, Any]]:
    import torch

    from walkback.check import rule_rows

    torch.set_num_threads(1)  # its nets are so small that a second thread only waits for the first
    return rule_rows()


def _nets(store: str) -> list[dict[str, Any]]:
    from walkback.nets import nets

    def parameters(name: str) -> str:
        return ", ".join(f"{key}={value}" for key, value in nets[name].defaults.items())  # type: ignore[attr-defined]

    return [{"name": name, "parameters": _or_trouble(parameters, name)} for name in nets]


def _or_trouble(tell: Callable[[str], str], name: str) -> str:
    """What is told of an entry; one that cannot be loaded does not take the others away."""
    try:
        return tell(name)
    except BadInput as error:
        return str(error)


def _data(store: str) -> list[dict[str, Any]]:
    from walkback.data import datasets

    return [
        {"name": name, "about": _or_trouble(lambda name: datasets[name].about, name)} for name in datasets
    ]


def _studies(store: str) -> list[dict[str, Any]]:
    from walkback.run.plan import Known
    from walkback.studies import studies

    return [
        {
            "name": name,
            "runs": len(studies[name].runs({arm.data: Known("") for arm in studies[name].arms})),
            "data": ", ".join(sorted({arm.data for arm in studies[name].arms})),
            "question": studies[name].question,
        }
        for name in studies
    ]


def _tracks(store: str) -> list[dict[str, Any]]:
    from walkback.tracks import tracks
    from walkback.tracks.find import find_tracks, natural

    rows: list[dict[str, Any]] = []
    for name in sorted(tracks, key=natural):
        try:
            (track,) = find_tracks([name])
        except BadInput as error:
            rows.append({"id": name, "name": "—", "controls": "—", "claim": str(error)})
            continue
        told = {"name": track.name, "controls": len(track.all_controls), "claim": track.claim}
        rows.append({"id": track.id, **told})
    return rows


def _quantities(store: str) -> list[dict[str, Any]]:
    from walkback.core.quantities import QUANTITIES

    return [
        {"id": q.id, "per": "layer" if q.per_layer else "net", "meaning": q.meaning}
        for q in QUANTITIES.values()
    ]


def _thresholds(store: str) -> list[dict[str, Any]]:
    from walkback.judge.thresholds import Thresholds

    return [dict(row) for row in Thresholds.table()]


def _bundles(store: str) -> list[dict[str, Any]]:
    from walkback.store import Store

    return [
        {
            "name": b.path.name,
            "rule": b.card["rule"]["label"],
            "seed": b.spec.get("seed"),
            **{name: b.status.get(name) for name in ("epoch", "reason", "state")},
        }
        for b in Store.existing(store).bundles()
    ]


_LISTS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "rules": _rules,
    "nets": _nets,
    "data": _data,
    "studies": _studies,
    "tracks": _tracks,
    "quantities": _quantities,
    "thresholds": _thresholds,
    "bundles": _bundles,
}
