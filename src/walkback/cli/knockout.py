"""`walkback knockout`: what each block of a stored net is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from walkback.cli.output import Json, emit_json, stdout_console

EXAMPLE = "Example: walkback knockout runs/resmlp-dfa-*"


def knockout(
    bundles: Annotated[list[Path], typer.Argument(help="Finished bundles.")],
    epoch: Annotated[int | None, typer.Option("--epoch", help="Checkpoint; default: the last.")] = None,
    json: Json = False,
) -> int:
    """Rewind one block at a time to its initial weights, and see what it costs."""
    from walkback.run.knockout import knock_out
    from walkback.store import Bundle

    found = [{"bundle": str(path), **knock_out(Bundle.open(path), epoch)} for path in bundles]
    if json:
        emit_json({"knockouts": found})
        return 0
    console = stdout_console()
    for row in found:
        reached = "not a number" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f} %"
        console.print(f"{row['bundle']}: {reached} on {row['items']} items", soft_wrap=True)
        for block in row["blocks"]:
            lost = "not a number" if block["worth"] is None else f"{100 * block['worth']:+.1f} pp lost"
            console.print(f"  block {block['layer']} rewound: {lost}")
    return 0
