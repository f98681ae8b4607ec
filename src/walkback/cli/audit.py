"""`walkback audit STUDY`: a named set of runs, trained, judged and reported; run it again to resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walkback.cli.output import (
    Json,
    Logic,
    StoreOption,
    check_out,
    counted,
    emit_json,
    say,
    stdout_console,
)

if TYPE_CHECKING:
    from walkback.core.spec import RunSpec
    from walkback.data import Dataset
    from walkback.judge.assemble import Judged
    from walkback.run.many import RunFailure
    from walkback.run.plan import Identified
    from walkback.store import Store
    from walkback.studies import Study

EXAMPLE = "Example: walkback audit dose-response --plan"


def audit(
    study: Annotated[str, typer.Argument(help="See walkback ls studies.")],
    plan: Annotated[
        bool, typer.Option("--plan", help="Runs, epochs, hours and disk, from a short piece of each.")
    ] = False,
    judge_only: Annotated[
        bool, typer.Option("--judge-only", help="Report what the store holds; train nothing.")
    ] = False,
    store: StoreOption = "runs",
    out: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("report"),
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="Where the data set lies.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; default: all cores.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu (the default), cuda or mps.")] = None,
    logic: Logic = "artifact",
    json: Json = False,
) -> int:
    """Train the runs of a study, judge them and write its report.

    Interrupt it as you like: the same command goes on from the last epoch, and --judge-only reports what
    is there meanwhile, without the data set. Studies share a store: a run that two of them need is
    trained once. A run that fails does not stop the others, nor the report; the exit code is then 3.
    """
    from walkback.cli.session import check_device, default_workers, train_what_can_be
    from walkback.core.errors import BadInput
    from walkback.store import Store
    from walkback.studies import studies
    from walkback.studies.answers import data_of

    chosen = studies[study]
    check_out(out)
    if judge_only and plan:
        raise BadInput(
            "--plan says what is left to train; --judge-only trains nothing.", "Give one of them."
        )
    if judge_only and (workers is not None or device is not None):
        raise BadInput("--judge-only trains nothing.", "Leave --workers and --device out.")
    if judge_only and data_dir is None:
        folder = Store.existing(store)
        known = data_of(folder, [arm.data for arm in chosen.arms])
        return _show_answer(chosen, known, folder, out, logic, json)
    device, workers = device or "cpu", workers or default_workers()
    check_device(device)
    folder = Store.existing(store) if judge_only else Store.to_train(store)
    loaded, absent = chosen.load(data_dir)
    data, held = {**data_of(folder, list(absent)), **loaded}, list(loaded.values())
    specs = [spec for spec in chosen.runs(data) if any(dataset.serves(spec) for dataset in held)]
    for name, why in absent.items():
        say(f"Runs on {name} are left as they are: {why}")
    if plan:
        return _show_plan(chosen, specs, folder, held, absent, workers, device, json)
    if not judge_only:
        if not json:
            say(f"{len(specs)} runs into {store}. {chosen.question}")
        failures = train_what_can_be(specs, folder, held, workers=workers, device=device)
        failures += _measure_in_full(chosen, loaded, folder, json)
        return _show_answer(chosen, data, folder, out, logic, json, failures, absent)
    return _show_answer(chosen, data, folder, out, logic, json, absent=absent)


def _measure_in_full(
    study: Study, data: Mapping[str, Dataset], store: Store, json: bool
) -> list[RunFailure]:
    """The full tier where the study wants it and it is not there yet; where it could not be had."""
    from walkback.run.full import measure_missing
    from walkback.run.many import RunFailure
    from walkback.run.pool import told

    failures = []
    for spec, epochs in study.full_epochs(data).items():
        bundle = store.find(spec.name)
        try:
            done = measure_missing(bundle, epochs) if bundle is not None else []
        except Exception as error:
            failures.append(RunFailure(spec, *told(error)))
            say(str(failures[-1]))
            continue
        if done and not json:
            say(f"{spec.name}: full tier at epoch {', '.join(map(str, done))}")
    return failures


def _show_plan(
    study: Study,
    specs: Sequence[RunSpec],
    store: Store,
    data: Sequence[Dataset],
    absent: Mapping[str, str],
    workers: int,
    device: str,
    json: bool,
) -> int:
    from walkback.core.spec import tell_apart
    from walkback.rules import describe_rule
    from walkback.run.cost import costs_of

    store.refuse_zipped([spec.name for spec in specs])
    items = {dataset.identity: len(dataset.y_train) for dataset in data}
    states = {spec: _state(spec, store) for spec in specs}
    todo = [spec for spec in specs if states[spec]["state"] not in ("finished", "diverged")]
    if not json and todo:
        say("Measuring what a step costs here …")
    with counted() as progress:
        costs = costs_of(todo, data, device, workers=workers, on_progress=progress)
    seconds = {s: costs[s].seconds(s, items[s.data_identity], states[s]["epoch"]) for s in todo}
    left = sum(seconds.values())
    longest = max(seconds.values(), default=0.0)
    answer = {
        "study": study.name,
        "question": study.question,
        "ours": study.ours,
        "runs": [
            {
                "name": spec.name,
                "rule": str(spec.rule),
                "label": describe_rule(spec.rule)["label"],
                "setting": setting,
                "seed": spec.seed,
                "epochs": spec.epochs,
                **states[spec],
                "hours_left": seconds.get(spec, 0.0) / 3600,
            }
            for spec, setting in zip(specs, tell_apart(specs), strict=True)
        ],
        "planned": len(specs),
        "data_absent": dict(absent),
        "finished": len(specs) - len(todo),
        "epochs_left": sum(spec.epochs - states[spec]["epoch"] for spec in todo),
        "workers": workers,
        "hours_left": max(left / workers, longest) / 3600,
        "megabytes_left": sum(costs[spec].bytes(spec) for spec in todo) / 1e6,
    }
    if json:
        emit_json(answer)
    else:
        _print_plan(answer)
    return 0


def _state(spec: RunSpec, store: Store) -> dict[str, Any]:
    """How far a run is: `not run` where the store has nothing of it."""
    bundle = store.find(spec.name)
    if bundle is None:
        return {"state": "not run", "epoch": 0}
    return {"state": bundle.status.get("state", "running"), "epoch": bundle.status.get("epoch") or 0}


def _print_plan(answer: Mapping[str, Any]) -> None:
    from rich.table import Table

    console = stdout_console()
    console.print(answer["question"])
    table = Table(box=None, pad_edge=False)
    for column in ("rule", "net and recipe", "seed", "epochs", "state", "left"):
        table.add_column(column, overflow="fold")
    for row in answer["runs"]:
        state = f"epoch {row['epoch']}" if row["state"] == "running" else row["state"]
        left = _duration(3600 * row["hours_left"]) if row["hours_left"] else ""
        table.add_row(row["label"], row["setting"], str(row["seed"]), str(row["epochs"]), state, left)
    console.print(table)
    console.print(
        f"{answer['finished']} of {answer['planned']} runs finished. Left: {answer['epochs_left']} epochs, "
        f"about {_duration(3600 * answer['hours_left'])} with {answer['workers']} at a time "
        f"and {answer['megabytes_left']:.0f} MB, by what a short piece of each costs on this machine.",
        soft_wrap=True,
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _show_answer(
    study: Study,
    data: Mapping[str, Identified],
    store: Store,
    out: Path,
    logic: str,
    json: bool,
    failures: Sequence[RunFailure] = (),
    absent: Mapping[str, str] | None = None,
) -> int:
    """Judge what is there; every run that is not is named, and so is every one that failed just now."""
    from walkback.cli.session import exit_code, first_of
    from walkback.core.errors import BadInput
    from walkback.judge.assemble import judge_bundles, unmeasured_names, with_measured
    from walkback.judge.naming import names_of
    from walkback.report import write_report
    from walkback.studies.answers import Answers

    specs = study.runs(data)
    states = {spec: _state(spec, store)["state"] for spec in specs}
    found = [bundle for spec in specs if (bundle := store.find(spec.name)) is not None]
    bundles, unmeasured = with_measured(found), unmeasured_names(found)
    if not bundles and failures:
        raise first_of(failures, len(specs))
    if not bundles:
        raise BadInput(
            f"The store {store.path} holds no run of {study.name} yet.",
            "Train them: leave out --judge-only.",
        )
    judged = judge_bundles(bundles, logic=logic)
    page = write_report(
        judged,
        out,
        title=f"walkback audit: {study.name}",
        study=study.chapter(Answers(store, data), states),
        unmeasured=unmeasured,
    )
    missing = [spec.name for spec, state in states.items() if state == "not run"]
    if json:
        named = zip(names_of(judged), judged, strict=True)
        verdicts = {name: item.verdict for name, item in named if item.role != "baseline"}
        emit_json(
            {
                "study": study.name,
                "report": str(page),
                "planned": len(specs),
                "finished": sum(state in ("finished", "diverged") for state in states.values()),
                "not_run": missing,
                "data_absent": dict(absent or {}),
                "failed": {failure.spec.name: str(failure.error or "internal") for failure in failures},
                "not_measured_yet": unmeasured,
                "verdicts": verdicts,
            }
        )
        return exit_code(failures)
    _print_answer(judged, missing, len(specs), unmeasured, failures, page)
    return exit_code(failures)


def _print_answer(
    judged: Sequence[Judged],
    missing: Sequence[str],
    planned: int,
    unmeasured: Sequence[str],
    failures: Sequence[RunFailure],
    page: Path,
) -> None:
    from walkback.report.terminal import verdict_table

    console = stdout_console()
    console.print(verdict_table(judged))
    if missing:
        console.print(f"Not run yet: {len(missing)} of {planned} runs.")
    for name in unmeasured:
        console.print(f"Not measured yet: {name}", soft_wrap=True)
    for failure in failures:
        reason = failure.error or "a bug in walkback; the lines above say where."
        console.print(f"Failed: {failure.spec.name}: {reason}", soft_wrap=True)
    console.print(f"Report: {page}", soft_wrap=True)
