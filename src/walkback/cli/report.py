"""`walkback report`: tables, figures and one HTML page from a store, finished or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from walkback.cli.output import Json, Logic, check_out, emit_json, stdout_console

EXAMPLE = "Example: walkback report runs --out report"


def report(
    store: Annotated[Path, typer.Argument(help="Store of bundles.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("report"),
    logic: Logic = "artifact",
    json: Json = False,
) -> int:
    """Write tables (md, csv, tex), figures (svg, pdf, png) and report.html."""
    from walkback.core.errors import BadInput
    from walkback.judge.assemble import judge_bundles, unmeasured_names, with_measured
    from walkback.judge.naming import names_of
    from walkback.report import write_report
    from walkback.report.terminal import verdict_table
    from walkback.store import Store

    check_out(out)
    found = Store.existing(store).bundles()
    bundles, unmeasured = with_measured(found), unmeasured_names(found)
    if not bundles:
        raise BadInput(f"The store {store} holds no measured runs.", "Train some: walkback train --help.")
    judged = judge_bundles(bundles, logic=logic)
    page = write_report(judged, out, unmeasured=unmeasured)
    if json:
        named = zip(names_of(judged), judged, strict=True)
        verdicts = {name: item.verdict for name, item in named if item.role != "baseline"}
        emit_json({"report": str(page), "verdicts": verdicts, "not_measured_yet": unmeasured})
        return 0
    console = stdout_console()
    console.print(verdict_table(judged))
    for name in unmeasured:
        console.print(f"Not measured yet: {name}", soft_wrap=True)
    console.print(f"Report: {page}", soft_wrap=True)
    return 0
