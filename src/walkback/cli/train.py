"""`walkback train`: rules × seeds into a store; the same command again goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from walkback.cli.options import numbers, whole_numbers
from walkback.cli.output import Json, StoreOption, emit_json, say, stdout_console
from walkback.core.errors import BadInput

EXAMPLE = (
    "Example: walkback train --rules bp,dfa,frozen --seeds 42,123,456 --epochs 5 --data digit-sums "
    "--width 128 --store runs"
)


def train(
    context: typer.Context,
    rules: Annotated[str, typer.Option("--rules", help="As in bp,fa,dfa,frozen.")] = "bp,fa,dfa,frozen",
    seeds: Annotated[str, typer.Option("--seeds", help="As in 42,123,456.")] = "42",
    net: Annotated[str, typer.Option("--net", help="As in resmlp or resmlp(expansion=2).")] = "resmlp",
    data: Annotated[str, typer.Option("--data", help="See walkback ls data.")] = "digit-sums",
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="Where the data set lies.")] = None,
    store: StoreOption = "runs",
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = 5,
    batch: Annotated[int, typer.Option("--batch", min=1)] = 128,
    lr: Annotated[float, typer.Option("--lr")] = 1e-3,
    lr_grid: Annotated[
        str | None,
        typer.Option("--lr-grid", help="As in 1e-3,3e-3,1e-2: the best on held-out training rows counts."),
    ] = None,
    weight_decay: Annotated[float, typer.Option("--weight-decay")] = 0.01,
    schedule: Annotated[str, typer.Option("--schedule", help="cosine or constant.")] = "cosine",
    width: Annotated[int | None, typer.Option("--width", min=1, help="Net's width.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", min=1, help="Net's number of blocks.")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or mps.")] = "cpu",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes of one thread each.")] = 1,
    spec: Annotated[Path | None, typer.Option("--spec", help="TOML file with these options.")] = None,
    json: Json = False,
) -> int:
    """Train rules × seeds into a store of bundles, measuring after every epoch.

    Interrupt it as you like: the same command goes on from the last epoch, to the same bits.
    """
    options = {name: value for name, value in context.params.items() if name not in ("spec", "json")}
    written = {name for name in options if _on_command_line(context, name)}
    if spec is not None:
        given = read_spec(spec, set(options))
        options |= {name: value for name, value in given.items() if name not in written}
        written |= set(given)
    if {"lr", "lr_grid"} <= written:
        raise BadInput("--lr and --lr-grid both say which rate to train with.", "Give one of them.")
    bundles = train_from(options)
    answer = {"store": options["store"], "runs": [_row(bundle) for bundle in bundles]}
    if json:
        emit_json(answer)
        return 0
    console = stdout_console()
    for row in answer["runs"]:
        shown = "not measured" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f} %"
        console.print(f"{row['name']}: {row['status']}, test accuracy {shown}", soft_wrap=True)
    if not any(bundle.card["rule"]["role"] == "baseline" for bundle in bundles):
        say("No frozen baseline among these runs: add frozen to --rules, or D3 stays INCOMPLETE.")
    return 0


def train_from(options: dict[str, Any]) -> list[Any]:
    from walkback.cli.session import check_device, train_all
    from walkback.core.spec import Call, split_list
    from walkback.data import load_dataset
    from walkback.run.plan import plan_runs
    from walkback.store import Store

    check_device(options["device"])
    net_options = {key: options[key] for key in ("width", "depth") if options[key] is not None}
    recipe = {key: options[key] for key in ("epochs", "batch", "lr", "weight_decay", "schedule")}
    dataset = load_dataset(Call.parse(options["data"]), options["data_dir"])
    store = Store.to_train(options["store"])
    specs = plan_runs(
        net=options["net"],
        rules=split_list(options["rules"]),
        seeds=whole_numbers("--seeds", options["seeds"]),
        data=options["data"],
        dataset=dataset,
        net_options=net_options,
        lr_grid=[] if options["lr_grid"] is None else numbers("--lr-grid", options["lr_grid"]),
        **recipe,
    )
    return train_all(
        specs,
        store,
        [dataset],
        workers=options["workers"],
        device=options["device"],
    )


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def read_spec(path: Path, known: set[str]) -> dict[str, Any]:
    """Options from a TOML file, which the command line overrides; lists may be written as lists."""
    import tomllib

    if not path.is_file():
        raise BadInput(f"There is no file {path}.")
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}.") from None
    given = {key.replace("-", "_"): value for key, value in given.items()}
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadInput(
            f"{path} has unknown keys: {', '.join(unknown)}.", f"Known: {', '.join(sorted(known))}."
        )
    for key in ("rules", "seeds", "lr_grid"):
        if isinstance(given.get(key), list):
            given[key] = ",".join(map(str, given[key]))
    given.update({key: str(given[key]) for key in ("seeds",) if key in given})
    for key, value in given.items():
        _check_type(f"{path}: {key}", key, value)
    return given


def _check_type(name: str, key: str, value: Any) -> None:
    whole = key in ("epochs", "batch", "width", "depth", "workers")
    number = key in ("lr", "weight_decay")
    wanted = "a whole number of at least 1" if whole else "a number" if number else "text"
    right = isinstance(value, int if whole else (int, float) if number else str)
    if not right or isinstance(value, bool) or (whole and value < 1):
        raise BadInput(f"{name} must be {wanted}, not {value!r}.")


def _row(bundle: Any) -> dict[str, Any]:
    from walkback.judge.evidence import evidence_of, shown_label
    from walkback.judge.thresholds import Thresholds

    table = bundle.measurements()
    return {
        "name": bundle.path.name,
        "id": bundle.id,
        "rule": shown_label([evidence_of(bundle)], Thresholds().residual),
        "seed": bundle.spec["seed"],
        "status": bundle.status["state"],
        "accuracy": table.number("accuracy.test@1", table.epochs[-1]),
        "path": str(bundle.path),
    }
