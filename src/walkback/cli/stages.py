"""`walkback metric acid-test | harness | grid | init-probe`: the four stages, on nets trained here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walkback.cli.output import Json, check_out, counted, emit_json, say, stdout_console

if TYPE_CHECKING:
    from walkback.studies.metric_stages import StageResult

EXAMPLES = {
    name: f"Example: walkback metric {name} --out stages"
    for name in ("acid-test", "harness", "grid", "init-probe")
}
Out = Annotated[Path, typer.Option("--out", help="Where rows and tables go; run again to go on.")]
MetricName = Annotated[str, typer.Option("--metric", help="Which metric of the battery is judged.")]
Seed = Annotated[int, typer.Option("--seed", help="Of weights, batches and drawn recipes.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer nets and steps: does it run here?")]

OUT = Path("stages")
FEWER: dict[str, Any] = {"seeds": 2, "steps": 40, "capacity": (40, 200, 800), "noise": (0.0, 0.4, 0.8)}


def acid_test(
    out: Out = OUT,
    metric: MetricName = "fim_norm",
    seed: Seed = 0,
    quick: Quick = False,
    json: Json = False,
) -> int:
    """Stage 1: few training rows, then wrong labels: does the metric follow accuracy in both?"""
    from walkback.studies import metric_stages

    return _stage(metric_stages.acid_test, out, metric, seed, FEWER if quick else {}, json)


def harness(
    out: Out = OUT,
    metric: MetricName = "fim_norm",
    seed: Seed = 0,
    quick: Quick = False,
    json: Json = False,
) -> int:
    """Stage 2: the same two probes on a CNN with BatchNorm and on a small transformer."""
    from walkback.studies import metric_stages

    return _stage(metric_stages.harness, out, metric, seed, FEWER if quick else {}, json)


def grid(
    out: Out = OUT,
    metric: MetricName = "fim_norm",
    design: Annotated[
        str, typer.Option("--design", help="demo: 20 nets over lr and wd. conditions: the published 30.")
    ] = "demo",
    seed: Seed = 0,
    quick: Quick = False,
    json: Json = False,
) -> int:
    """Stage 3 (or 4): the metric given the loss, and the loss given the metric, on a grid of nets."""
    from walkback.studies import metric_stages

    options: dict[str, Any] = {"design": design, "nets": 30 if design == "conditions" else 20}
    if quick:
        options |= {"nets": 12, "epochs": 10, "measured_at": 2}
    return _stage(metric_stages.grid, out, metric, seed, options, json)


def init_probe(
    out: Out = OUT,
    metric: MetricName = "fim_norm",
    seed: Seed = 0,
    quick: Quick = False,
    json: Json = False,
) -> int:
    """Stage 4: the metric before any training against the accuracy after it."""
    from walkback.studies import metric_stages

    return _stage(metric_stages.init_probe, out, metric, seed, FEWER if quick else {}, json)


def _stage(
    run: Callable[..., StageResult], out: Path, metric: str, seed: int, options: dict[str, Any], json: bool
) -> int:
    import torch

    check_out(out)
    torch.set_num_threads(1)  # small nets are faster so, and the bits do not depend on the machine's cores
    with counted() as on_progress:
        result = run(metric=metric, seed=seed, out=out, on_progress=on_progress, **options)
    table = out / f"{result.stage}.csv"
    if json:
        emit_json({**result.summary, "table": str(table)})
        return 0
    stdout_console().print(result.sentence, soft_wrap=True)
    say(f"{len(result.frame)} nets: {table}")
    say(
        f"Next: walkback metric audit {table} --metric {metric} --target final_acc "
        "--baseline val_loss_a --twin val_loss_b"
    )
    return 0
