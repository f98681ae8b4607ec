"""`walkback doctor`: versions, threads, instruction set, and whether runs repeat to the bit here."""

from __future__ import annotations

from typing import Annotated

import typer

from walkback.cli.output import Json, emit_json, stdout_console

EXAMPLE = "Example: walkback doctor"


def doctor(
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or mps.")] = "cpu", json: Json = False
) -> int:
    """Look at this machine, and train the same short run twice."""
    from walkback.cli.session import check_device
    from walkback.run.doctor import examine

    check_device(device)
    found = examine(device)
    if json:
        emit_json(found)
        return 0 if found["reproducible"] else 1
    console = stdout_console()
    for name, value in {**found.pop("environment"), **found}.items():
        console.print(f"{name.replace('_', ' ')}: {value}", soft_wrap=True)
    words = "give the same bytes" if found["reproducible"] else "DIFFER: numbers from here will not repeat"
    console.print(f"Two trainings of one spec, each in its own process, {words}.", soft_wrap=True)
    return 0 if found["reproducible"] else 1
