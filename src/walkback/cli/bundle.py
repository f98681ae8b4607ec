"""`walkback bundle`: verify, export and import single runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from walkback.cli.output import Json, StoreOption, emit_json, say

EXAMPLE = "Example: walkback bundle verify runs/*"
app = typer.Typer(help="Verify, export and import bundles.", epilog=EXAMPLE, no_args_is_help=True)


@app.command(epilog=EXAMPLE)
def verify(
    bundles: Annotated[list[Path], typer.Argument(help="Bundles, or zip files of them.")],
    json: Json = False,
) -> int:
    """Check every member of each bundle against its hash, also after one that is damaged."""
    from walkback.core.errors import CorruptBundle, WalkbackError

    checked: list[dict[str, Any]] = []
    damaged: list[str] = []
    for path in bundles:
        try:
            checked.append({"bundle": str(path), "members": _verified(path)})
        except WalkbackError as error:
            if len(bundles) == 1:
                raise
            damaged.append(f"{path}: {error.message}")
    if not json:
        for row in checked:
            typer.echo(f"{row['bundle']}: {row['members']} members, all as written")
    if damaged:
        raise CorruptBundle(
            f"{len(damaged)} of {len(bundles)} bundles cannot be trusted. {' '.join(damaged)}"
        )
    if json:
        emit_json({"verified": checked})
    return 0


def _verified(path: Path) -> int:
    """How many members are as they were written; a zip is unpacked for that, and left as it is."""
    from tempfile import TemporaryDirectory

    from walkback.store import Bundle
    from walkback.store.bundle import import_zip

    if not path.is_file():
        return Bundle.open(path).verify()
    with TemporaryDirectory() as scratch:
        return import_zip(path, Path(scratch)).verify()


@app.command(epilog="Example: walkback bundle export runs/resmlp-dfa-s42-1a2b3c4d5e6f --out dfa.zip")
def export(
    bundle: Annotated[Path, typer.Argument(help="Bundle to pack.")],
    out: Annotated[Path | None, typer.Option("--out", help="Zip file; default: the bundle's name.")] = None,
    light: Annotated[
        bool, typer.Option("--light", help="Without weights: it can be judged, not measured again.")
    ] = False,
    json: Json = False,
) -> int:
    """Pack one bundle into a zip file; the same bundle gives the same bytes."""
    from walkback.store import Bundle

    target = out or Path(f"{bundle.resolve().name}.zip")
    Bundle.open(bundle).export(target, light=light)
    if json:
        emit_json({"file": str(target)})
    else:
        typer.echo(str(target))
    return 0


@app.command("import", epilog="Example: walkback bundle import dfa.zip --store runs")
def import_(
    archives: Annotated[list[Path], typer.Argument(help="Zip files made by export.")],
    store: StoreOption = "runs",
    json: Json = False,
) -> int:
    """Unpack bundles into a store, after checking their names and hashes; what it has already stays."""
    from walkback.store.bundle import import_zip

    bundles = [import_zip(archive, Path(store)) for archive in archives]
    if json:
        emit_json({"imported": [{"bundle": str(bundle.path), "id": bundle.id} for bundle in bundles]})
    else:
        say("All members are as they were written.")
        for bundle in bundles:
            typer.echo(str(bundle.path))
    return 0
