"""`walkback metric`: does a metric say more than the loss? On one's own table of runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walkback.cli import stages
from walkback.cli.options import names
from walkback.cli.output import Json, check_out, emit_json, stdout_console

if TYPE_CHECKING:
    from rich.table import Table

    from walkback.core.verdict import Verdict
    from walkback.metrics.curve import Moment
    from walkback.metrics.several import Audits

EXAMPLES = {
    "audit": "Example: walkback metric audit runs.csv --metric fim_norm --target acc --controls lr,wd",
    "simulate": "Example: walkback metric simulate runs.csv --metric fim_norm --target acc --controls lr",
    "curve": "Example: walkback metric curve runs.csv --metric sam --target acc --baseline val_loss",
}
app = typer.Typer(
    help="Audit a claim that a metric predicts a target.",
    epilog=EXAMPLES["audit"],
    no_args_is_help=True,
)

Files = Annotated[list[Path], typer.Argument(help="CSV tables of runs, pooled.")]
Metric = Annotated[str, typer.Option("--metric", help="Column, or several: fim_norm,sam_sharpness.")]
Target = Annotated[str, typer.Option("--target", help="Column that is to be predicted.")]
Baseline = Annotated[str | None, typer.Option("--baseline", help="Column to beat, as val_loss.")]
Controls = Annotated[str, typer.Option("--controls", help="Further columns to control for: lr,wd.")]
Twin = Annotated[str | None, typer.Option("--twin", help="Second reading of the baseline.")]
Cluster = Annotated[str | None, typer.Option("--cluster", help="Column whose rows belong together.")]


@app.command(epilog=EXAMPLES["audit"])
def audit(
    files: Files,
    metric: Metric,
    target: Target,
    baseline: Baseline = None,
    controls: Controls = "",
    twin: Twin = None,
    cluster: Cluster = None,
    group: Annotated[str | None, typer.Option("--group", help="A table per value of it.")] = None,
    direction: Annotated[
        str | None, typer.Option("--direction", help="positive or negative: the sign that is claimed.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="PROXY: inside ± this.")] = 0.2,
    simulated: Annotated[
        int, typer.Option("--simulate", min=0, help="Tables per truth: how often this audit errs here.")
    ] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write a report here.")] = None,
    json: Json = False,
) -> int:
    """Audit one metric, or several with corrections for asking several times."""
    from walkback.cli.output import counted
    from walkback.core.verdict import worst
    from walkback.metrics.ledger import read_tables
    from walkback.metrics.several import audit_all

    check_out(out)
    frame = read_tables(files)
    with counted("auditing") as progress:
        battery = audit_all(
            frame,
            names(metric),
            target,
            baseline,
            names(controls),
            twin=twin,
            cluster=cluster,
            group=group,
            direction=direction,
            delta=delta,
            canon=json or out is not None,
            simulated=simulated,
            on_progress=progress,
        )
    page = None
    if out is not None:
        from walkback.report.metric import write_metric_report

        page = write_metric_report(battery, frame, out)
    if json:
        answers = {
            name: {
                **metric_answer(verdict),
                "canon": battery.canon[name],
                "simulated": {kind: rate.to_dict() for kind, rate in battery.rates.get(name, {}).items()},
            }
            for name, verdict in battery.verdicts.items()
        }
        single = next(iter(answers.values())) if len(answers) == 1 else {"metrics": answers}
        adjusted = {"adjusted": battery.adjusted, "adjusted_groups": battery.by_group}
        emit_json({**single, **adjusted, "report": None if page is None else str(page)})
    else:
        _show(battery, page)
    return worst(verdict.outcome for verdict in battery.verdicts.values()).exit_code


@app.command(epilog=EXAMPLES["simulate"])
def simulate(
    files: Files,
    metric: Annotated[str, typer.Option("--metric", help="Column whose claim is simulated.")],
    target: Target,
    baseline: Baseline = None,
    controls: Controls = "",
    twin: Twin = None,
    cluster: Cluster = None,
    effect: Annotated[float, typer.Option("--effect", help="True partial correlation for power.")] = 0.4,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Simulated tables per truth.")] = 100,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    json: Json = False,
) -> int:
    """The audit's own false-positive rate and power on tables with this design and a known truth,
    beside its verdict on the real one. `audit --simulate` does the same within an audit.
    """
    from walkback.cli.output import counted
    from walkback.metrics import MetricAudit
    from walkback.metrics.ledger import read_tables
    from walkback.metrics.simulate import simulate as run_simulation

    frame = read_tables(files)
    real = MetricAudit(frame, metric, target, baseline, names(controls), twin=twin, cluster=cluster)
    verdict = real.run()
    with counted("simulated tables") as progress:
        rates = run_simulation(frame, real.claim, effect=effect, runs=runs, seed=seed, on_progress=progress)
    if json:
        told = {"outcome": verdict.outcome, "verdict": verdict.verdict, "claim": verdict.claim}
        emit_json({**told, **{name: rate.to_dict() for name, rate in rates.items()}})
        return 0
    _head(verdict)
    for rate in rates.values():
        _line(rate.sentence)
    return 0


@app.command(epilog=EXAMPLES["curve"])
def curve(
    files: Files,
    metric: Annotated[str, typer.Option("--metric", help="What <metric>_ep<t> columns begin with.")],
    target: Target,
    baseline: Annotated[
        str, typer.Option("--baseline", help="What <baseline>_ep<t> columns begin with.")
    ] = "val_loss",
    controls: Controls = "",
    json: Json = False,
) -> int:
    """The metric at epoch t against the loss at epoch t: a look along training, without a verdict."""
    from walkback.metrics.curve import sentence_of, temporal_curve
    from walkback.metrics.ledger import read_tables

    moments = temporal_curve(read_tables(files), metric, target, baseline, names(controls))
    if json:
        told = {"metric": metric, "target": target, "baseline": baseline, "controls": names(controls)}
        emit_json({**told, "moments": [asdict(moment) for moment in moments]})
        return 0
    console = stdout_console()
    console.print(_curve_table(moments))
    for moment in moments:
        if moment.reason:
            console.print(f"Epoch {moment.epoch}: {moment.reason}", soft_wrap=True)
    console.print(sentence_of(moments), soft_wrap=True)
    return 0


def metric_answer(verdict: Verdict) -> dict[str, Any]:
    """The documented keys first; what was tested, and why, after them."""
    evidence = verdict.evidence
    first = (
        "n",
        "raw",
        "partial",
        "p",
        "compat",
        "tests",
        "duplicates",
        "equivalence",
        "groups",
        "dropped",
    )
    return {
        "outcome": verdict.outcome,
        "verdict": verdict.verdict,
        "claim": verdict.claim,
        **{key: evidence.get(key) for key in first},
        "reasons": [reason.to_dict() for reason in verdict.reasons],
        "notes": list(verdict.notes),
    }


def _show(battery: Audits, page: Path | None) -> None:
    console, verdicts = stdout_console(), battery.verdicts
    if len(verdicts) == 1:
        for verdict in verdicts.values():
            _head(verdict)
            for note in verdict.notes:
                _line(note)
            for reason in verdict.reasons:
                _line(f"{reason.check}: {reason.sentence}")
            compat = verdict.evidence.get("compat")
            if compat:
                _line(
                    f"compat: raw {compat['raw']:+.4f}, partial {_number(compat['partial'], '+.4f')}, "
                    f"p {_number(compat['p'], '.4g')}, class {compat['class']}"
                )
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in ("metric", "n", "raw", "partial", "BH", "max-T", "class", "outcome"):
            table.add_column(column, overflow="fold", no_wrap=column in ("metric", "outcome"))
        for name, verdict in verdicts.items():
            table.add_row(name, *_row(verdict, battery.adjusted.get(name, {})))
        console.print(table)
    groups = _group_table(battery)
    if groups.row_count:
        console.print(groups)
    for name, rates in battery.rates.items():
        told = " ".join(rate.sentence for rate in rates.values())
        _line(told if len(verdicts) == 1 else f"{name}: {told}")
    if page is not None:
        console.print(f"Report: {page}", soft_wrap=True)


def _head(verdict: Verdict) -> None:
    """The claim is what was asked, whatever the answer: it must not read as one."""
    console = stdout_console()
    console.print(f"Claim: {verdict.claim}.", style="bold")
    console.print(f"Verdict: {verdict.verdict}", style="bold")


def _line(text: str) -> None:
    """Indented to its last line, and broken between words."""
    from rich.padding import Padding
    from rich.text import Text

    stdout_console().print(Padding(Text(text), (0, 0, 0, 2)))


def _group_table(battery: Audits) -> Table:
    from rich.table import Table

    from walkback.report.metric_tables import group_table

    table = Table(box=None, pad_edge=False)
    labels = ["metric"] * (len(battery.verdicts) > 1) + ["group"]
    for column in (*labels, "n", "raw", "partial", "p", "BH", "max-T"):
        table.add_column(column, overflow="fold")
    for row in group_table(battery).rows:
        numbers = [_number(row[name], "+.3f") for name in ("raw", "partial")]
        chances = [_number(row[name], ".2g") for name in ("p", "bh", "max_t")]
        table.add_row(*(row[label] for label in labels), str(row["n"]), *numbers, *chances)
    return table


def _curve_table(moments: list[Moment]) -> Table:
    from rich.table import Table

    from walkback.core.numerals import MISSING

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    given = ("both", "metric | base", "95 %", "base | metric")
    for column in ("epoch", "n", "metric", "baseline", *given):
        table.add_column(column, justify="right")
    for moment in moments:
        ends = [_number(end, "+.2f") for end in (moment.low, moment.high)]
        table.add_row(
            str(moment.epoch),
            str(moment.n),
            _number(moment.metric, "+.3f"),
            _number(moment.baseline, "+.3f"),
            _number(moment.together, "+.3f"),
            _number(moment.metric_given_baseline, "+.3f"),
            MISSING if MISSING in ends else f"[{ends[0]}, {ends[1]}]",
            _number(moment.baseline_given_metric, "+.3f"),
        )
    return table


def _number(value: float | None, form: str) -> str:
    from walkback.core.numerals import MISSING

    return MISSING if value is None or value != value else format(value, form)


def _row(verdict: Verdict, adjusted: dict[str, Any]) -> list[str]:
    from walkback.core.numerals import MISSING

    compat = verdict.evidence.get("compat") or {}
    return [
        str(verdict.evidence["n"]),
        _number(compat.get("raw"), "+.3f"),
        _number(compat.get("partial"), "+.3f"),
        _number(adjusted.get("bh"), ".2g"),
        _number(adjusted.get("max_t"), ".2g"),
        str(compat.get("class", MISSING)),
        verdict.outcome.value,
    ]


app.command("acid-test", epilog=stages.EXAMPLES["acid-test"])(stages.acid_test)
app.command("harness", epilog=stages.EXAMPLES["harness"])(stages.harness)
app.command("grid", epilog=stages.EXAMPLES["grid"])(stages.grid)
app.command("init-probe", epilog=stages.EXAMPLES["init-probe"])(stages.init_probe)
