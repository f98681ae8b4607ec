"""`walkback verify`: do claims hold, and do their sabotaged copies fail?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from walkback.cli.options import names
from walkback.cli.output import Json, check_out, counted, emit_json, say, stdout_console

if TYPE_CHECKING:
    from walkback.judge.verification import Verification

EXAMPLE = "Example: walkback verify --tracks 1,2,22 --out verification"


def verify(
    file: Annotated[
        Path | None, typer.Argument(help="A file of your own tracks; without it, walkback's own.")
    ] = None,
    tracks: Annotated[str | None, typer.Option("--tracks", help="Only these: 1,2,22.")] = None,
    full: Annotated[bool, typer.Option("--full", help="More seeds, longer training.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a report here; run again to go on.")
    ] = None,
    new: Annotated[str | None, typer.Option("--new", help="Write NAME.py, a track to start from.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of every draw, together with the track's id.")] = 0,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; default: one per core.")
    ] = None,
    json: Json = False,
) -> int:
    """Run verification tracks: each claim, then the same experiment with one thing broken at a time."""
    from walkback.cli.session import default_workers
    from walkback.core.errors import BadInput
    from walkback.tracks.verify import verify as run_tracks

    if new is not None:
        if tracks is not None or file is not None or full or out is not None:
            raise BadInput("--new writes a track and runs none.", "Give it alone.")
        return _write_new(new, json)
    check_out(out)
    wanted = names(tracks or "")
    if tracks is not None and not wanted:
        raise BadInput(f"--tracks {tracks!r} names no track.", "Write ids: --tracks 1,2,22.")
    with counted("tracks") as on_progress:
        found = run_tracks(
            *wanted,
            file=file,
            full=full,
            seed=seed,
            workers=workers or default_workers(),
            out=out,
            on_progress=on_progress,
        )
    page = _write_report(found, out)
    for label, trace in found.traces.items():
        say(f"{label}\n{trace}")
    if json:
        emit_json({**found.to_dict(), "report": None if page is None else str(page)})
    else:
        _show(found, page)
    return found.outcome.exit_code


def _write_new(name: str, json: bool) -> int:
    from walkback.tracks.skeleton import write_skeleton

    path = write_skeleton(name)
    if json:
        emit_json({"file": str(path)})
    else:
        stdout_console().print(f"{path} is written. Next: walkback verify {path}", soft_wrap=True)
    return 0


def _write_report(found: Verification, out: Path | None) -> Path | None:
    if out is None:
        return None
    from datetime import UTC, datetime

    from walkback.report.verification import write_verification

    return write_verification(found, out, datetime.now(UTC))


def _show(found: Verification, page: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    from walkback.report.terminal import STYLES
    from walkback.report.verification import TONES, duration

    console, table = stdout_console(), Table(box=None, pad_edge=False)
    for column in ("#", "track", "outcome", "score", "time", ""):
        justify: Literal["left", "right"] = "right" if column in ("score", "time") else "left"
        table.add_column(column, overflow="fold", justify=justify)
    for verdict in found.verdicts:
        known, tone = verdict.evidence, TONES[verdict.outcome]
        table.add_row(
            Text(str(known["id"])),
            Text(known["name"]),
            Text(f"{tone.sign} {verdict.outcome.value}", style=STYLES[tone.name]),
            "—" if known["score"] is None else f"{known['score']:.0f}",
            duration(known["seconds"]),
            Text(" ".join(verdict.notes)),
        )
    console.print(table)
    counts = found.counts
    told = ", ".join(f"{counts[name]} {name}" for name in counts if name != "total" and counts[name])
    console.print(f"{told}, of {counts['total']} ({found.mode}, seed {found.seed}).", soft_wrap=True)
    if found.kept:
        console.print(f"Kept from an earlier run of the same code: {found.kept} passes.", soft_wrap=True)
    if page is not None:
        console.print(f"Report: {page}", soft_wrap=True)
