"""`walkback replay | sweep | ablate | multiverse`: questions to stored measurements, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walkback.cli.output import Json, Logic, emit_json, stdout_console

if TYPE_CHECKING:
    from walkback.store import Bundle

EXAMPLES = {
    name: f"Example: walkback {name} demo/runs" for name in ("replay", "sweep", "ablate", "multiverse")
}
StoreArgument = Annotated[Path, typer.Argument(help="Store of bundles.")]


def replay(store: StoreArgument, logic: Logic = "artifact", json: Json = False) -> int:
    """When each detector first fires, per rule and seed; in brackets, from when on it fires to the end."""
    from walkback.judge.replay import first_firing, histories
    from walkback.judge.replay import replay as replayed
    from walkback.report import words

    bundles, unmeasured = _started(store)
    rows = first_firing(replayed(histories(bundles), logic=logic))
    runs: dict[Any, dict[str, Any]] = {}
    for row in rows:
        named = {key: row[key] for key in ("rule", "seed", "epochs")}
        run = runs.setdefault(tuple(named.values()), named)
        run[row["detector"]] = words.firing(row["first"], row["stays_from"], row["known_epochs"])
    _show({"logic": logic, "first_firing": rows}, list(runs.values()), unmeasured, json)
    return 0


def sweep(store: StoreArgument, logic: Logic = "artifact", json: Json = False) -> int:
    """How far each threshold can move before a verdict changes."""
    from walkback.judge.sweep import sweep as swept

    bundles, unmeasured = _started(store)
    rows = swept(bundles, logic=logic)
    shown = [
        {
            "threshold": row["threshold"],
            "value": f"{row['value']:g}" + (" *" if row["default"] else ""),
            "rule": row["rule"],
            "verdict": row["verdict"],
            "epochs it fires": f"{row['fired']}/{row['known']}",
        }
        for row in rows
    ]
    _show({"logic": logic, "sweep": rows}, shown, unmeasured, json)
    return 0


def ablate(store: StoreArgument, logic: Logic = "artifact", json: Json = False) -> int:
    """Which verdict smaller bodies of evidence would have given."""
    from walkback.judge.ablate import ablate as ablated

    bundles, unmeasured = _started(store)
    rows = ablated(bundles, logic=logic)
    _show({"logic": logic, "ablation": rows}, rows, unmeasured, json)
    return 0


def multiverse(store: StoreArgument, json: Json = False) -> int:
    """In how many defensible specifications each verdict holds, and which choice turns it."""
    from walkback.judge.multiverse import multiverse as over_choices

    bundles, unmeasured = _started(store)
    rows = over_choices(bundles)
    shown = [
        {
            "rule": row["rule"],
            "default": row["default"],
            "holds in": f"{100 * row['share']:.0f} % of {row['specifications']}",
            "most sensitive to": _most_sensitive(row["flips"]),
        }
        for row in rows
    ]
    _show({"multiverse": rows}, shown, unmeasured, json)
    return 0


def _most_sensitive(flips: dict[str, float]) -> str:
    name = max(flips, key=lambda key: flips[key])
    return f"{name} ({100 * flips[name]:.0f} %)" if flips[name] else "nothing"


def _started(path: Path) -> tuple[list[Bundle], list[str]]:
    """The runs to judge, and the names of those that show nothing yet."""
    from walkback.core.errors import BadInput
    from walkback.judge.assemble import unmeasured_names, with_measured
    from walkback.store import Store

    found = Store.existing(path).bundles()
    bundles = with_measured(found)
    if not bundles:
        raise BadInput(f"The store {path} holds no measured runs.", "Train some: walkback train --help.")
    return bundles, unmeasured_names(found)


def _show(
    answer: dict[str, Any], rows: Sequence[dict[str, Any]], unmeasured: Sequence[str], json: bool
) -> None:
    if json:
        emit_json({**answer, "not_measured_yet": unmeasured})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in rows[0] if rows else ("nothing to judge",):
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        # A captured model has no seed.
        table.add_row(*(Text("—" if cell is None else str(cell)) for cell in row.values()))
    console = stdout_console()
    console.print(table)
    for name in unmeasured:
        console.print(f"Not measured yet: {name}", soft_wrap=True)
