"""`walkback measure`: the full tier of stored runs, from their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from walkback.cli.options import whole_numbers
from walkback.cli.output import Json, emit_json, say

EXAMPLE = "Example: walkback measure runs/resmlp-dfa-* --epochs 1,4"


def measure(
    bundles: Annotated[list[Path], typer.Argument(help="Finished bundles.")],
    epochs: Annotated[
        str | None, typer.Option("--epochs", help="Checkpoints, as in 1,10; default: last.")
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=1, help="Draws of the null.")] = 199,
    json: Json = False,
) -> int:
    """Add nudging, perturbation correlation, parameter cosines and nulls to stored runs."""
    from walkback.run.full import measure_stored
    from walkback.store import Bundle

    wanted = None if epochs is None else whole_numbers("--epochs", epochs)
    done = []
    for path in bundles:
        bundle = Bundle.open(path)
        done.append({"bundle": str(path), "epochs": measure_stored(bundle, wanted, draws)})
        if not json:
            say(f"{path}: full tier at epoch {', '.join(map(str, done[-1]['epochs']))}")
    if json:
        emit_json({"measured": done})
    return 0
