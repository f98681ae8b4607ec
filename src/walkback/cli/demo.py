"""`walkback demo`: a real audit on embedded data, from training to report, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from walkback.cli.output import Json, check_out, emit_json, say, stdout_console

EXAMPLE = "Example: walkback demo --out demo"

RULES, SEEDS, DATA = ("bp", "fa", "dfa", "frozen"), (42, 123, 456), "digit-sums"
NET = "resmlp(width=128,expansion=2)"
# At this rate block DFA's explosion is far beyond D2's threshold within four epochs on every seed;
# docs/explanation/digit-sums.md shows what changes at others.
RECIPE: dict[str, Any] = {
    "epochs": 4,
    "batch": 128,
    "lr": 1e-2,
    "weight_decay": 0.01,
    "schedule": "constant",
}


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where runs and report go.")] = Path("demo"),
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; default: all cores.")
    ] = None,
    json: Json = False,
) -> int:
    """Train three rules and their frozen baseline on digit sums, audit them, write the report."""
    import time

    started = time.monotonic()
    from walkback.cli.session import default_workers, train_all
    from walkback.core.spec import Call
    from walkback.data import load_dataset
    from walkback.judge.assemble import judge_bundles
    from walkback.report import write_report
    from walkback.run.plan import plan_runs
    from walkback.store import Store

    check_out(out)
    if not json:
        say(f"Training {', '.join(RULES)} on {DATA}, {len(SEEDS)} seeds each; about a minute on two cores.")
    dataset = load_dataset(Call(DATA))
    specs = plan_runs(net=NET, rules=RULES, seeds=SEEDS, data=DATA, dataset=dataset, **RECIPE)
    bundles = train_all(
        specs,
        Store(out / "runs"),
        [dataset],
        workers=workers or default_workers(),
        device="cpu",
    )
    judged = judge_bundles(bundles)
    page = write_report(judged, out)
    seconds = time.monotonic() - started
    verdicts = {item.label: item.verdict for item in judged if item.role != "baseline"}
    if json:
        emit_json({"report": str(page), "seconds": round(seconds, 1), "verdicts": verdicts})
        return 0
    from walkback.report.terminal import verdict_table

    console = stdout_console()
    console.print(verdict_table(judged))
    console.print(f"Report ({seconds:.0f} s): {page}", soft_wrap=True)
    return 0
