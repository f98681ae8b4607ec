"""Train what has no row yet, measure it, write its row."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.canonical import content_id, plain
from walkback.core.errors import BadInput
from walkback.core.streams import stream_seed
from walkback.measure.battery import METRICS, fim_norm, metric_battery
from walkback.store.files import write_atomic
from walkback.studies.metric_stages.designs import Design
from walkback.studies.metric_stages.tasks import NETS, Task, load_task, rows_and_labels
from walkback.studies.stacked import Population, batch_rows, make_mlp, train_alone, train_stacked

OnProgress = Callable[[str, int, int], None]  # what is being done, units of work done, and of how many

TRAIN_N = 40  # and of the net's own training rows, as many as the smallest training set has
MEASURED = [name for name in METRICS if name != "next_step_ratio"]  # a stack has no optimizer per net


def run_designs(stage: str, designs: list[Design], out: Path | None, on_progress: OnProgress) -> Any:
    """The frame of all designs, from rows that are there and nets trained now."""
    import pandas as pd

    rows = _Rows(None if out is None else out / "rows" / stage)
    alone = [design for design in designs if design["arch"] in NETS]
    stacked = [design for design in designs if design["arch"] not in NETS]
    tally = _Tally(
        on_progress, sum(d["steps"] for d in alone) + len(designs) + (stacked or [{"steps": 0}])[0]["steps"]
    )
    if stacked:
        _train_stack(stacked, rows, tally)
    for design in alone:
        if rows.get(design) is None:
            rows.put(design, _train_one(design, tally))
            tally.add(f"net {design['run_id']}", 1)
        else:
            tally.add(f"net {design['run_id']}", design["steps"] + 1)
    found = [rows.get(design) or {} for design in designs]
    return pd.DataFrame([{k: math.nan if v is None else v for k, v in row.items()} for row in found])


def _train_stack(designs: list[Design], rows: _Rows, tally: _Tally) -> None:
    """All nets at once; if one row is missing all are trained again, so that every bit is the same."""
    steps, missing = designs[0]["steps"], [i for i, d in enumerate(designs) if rows.get(d) is None]
    if not missing:
        tally.add("stack", steps + len(designs))
        return
    task = load_task(designs[0]["task"])
    widths = (task.x.shape[1], 64, 64, task.classes)
    drawn = [rows_and_labels(task, design) for design in designs]
    order = torch.stack(
        [
            batch_rows(d["seed"], own, d["batch_size"], steps)
            for d, (own, _) in zip(designs, drawn, strict=True)
        ]
    )
    nets = [make_mlp(widths, design["seed"]) for design in designs]
    population = Population(nets, [d["lr"] for d in designs], [d["wd"] for d in designs])
    wanted, kept = _moments(designs[0]), {}

    def keep(step: int) -> None:
        if step in wanted:
            kept[step] = population.flat.clone()
        tally.add(f"training {len(designs)} nets at once", int(step > 0))

    train_stacked(population, task.x, torch.stack([labels for _, labels in drawn]), order, on_step=keep)
    tally.add("stack", len(designs) - len(missing))
    for i in missing:
        then = {step: population.net(i, flat) for step, flat in kept.items()}
        rows.put(designs[i], _measure(task, designs[i], *drawn[i], then))
        tally.add(f"measuring net {designs[i]['run_id']}", 1)


def _train_one(design: Design, tally: _Tally) -> dict[str, Any]:
    task = load_task(design["task"])
    own, labels = rows_and_labels(task, design)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(design["seed"], "weights"))
        net = NETS[design["arch"]]()
    wanted, then = _moments(design), {}

    def keep(step: int) -> None:
        if step in wanted:
            then[step] = copy.deepcopy(net)
        tally.add(f"training {design['arch']} {design['run_id']}", int(step > 0))

    order = batch_rows(design["seed"], own, design["batch_size"], design["steps"])
    train_alone(net, task.x, labels, order, lr=design["lr"], wd=design["wd"], on_step=keep)
    return _measure(task, design, own, labels, then)


def _moments(design: Design) -> set[int]:
    return {0, design["measured_at"], design["steps"], *design["marks"].values()}


def _measure(
    task: Task, design: Design, own: Tensor, labels: Tensor, then: Mapping[int, nn.Module]
) -> dict[str, Any]:
    """One row: the design, the battery at the moment it is read, the curve, and how the net ended."""
    found = metric_battery(
        then[design["measured_at"]],
        *task.at(task.metric),
        init=then[0],
        train=(task.x[own], labels[own]),
        val=task.at(task.val),
        seed=design["seed"] + design["run_id"],
        metrics=MEASURED,
    )
    found["fim_norm_train"] = fim_norm(
        then[design["measured_at"]], task.x[own[:TRAIN_N]], labels[own[:TRAIN_N]]
    )
    for name, step in design["marks"].items():
        at = metric_battery(
            then[step], *task.at(task.metric), val=task.at(task.val), metrics=["fim_norm", "val_loss"]
        )
        found |= {f"{metric}_{name}": value for metric, value in at.items()}
    last = metric_battery(
        then[design["steps"]], *task.at(task.test), metrics=["metric_batch_acc", "metric_batch_loss"]
    )
    ended = {"final_acc": last["metric_batch_acc"], "final_loss": last["metric_batch_loss"]}
    columns = {key: value for key, value in design.items() if key not in ("schema", "marks")}
    return {**columns, "train_n": TRAIN_N, **found, **ended}


class _Rows:
    """One JSON file per finished net, named after its design; in memory where no folder is given."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._read: dict[str, dict[str, Any]] = {}

    def get(self, design: Design) -> dict[str, Any] | None:
        key = self._key(design)
        if key not in self._read and self.folder is not None and (self.folder / key).exists():
            try:
                row = json.loads((self.folder / key).read_bytes())
            except ValueError:
                raise BadInput(
                    f"The row {self.folder / key} is not JSON.", "Remove it, and the net is trained again."
                ) from None
            self._read[key] = row
        return self._read.get(key)

    def put(self, design: Design, row: dict[str, Any]) -> None:
        text = json.dumps(plain(row), indent=1, allow_nan=False) + "\n"
        self._read[self._key(design)] = json.loads(text)
        if self.folder is not None:
            write_atomic(self.folder / self._key(design), text.encode())

    @staticmethod
    def _key(design: Design) -> str:
        return f"{design['run_id']:04d}-{content_id(design)}.json"


class _Tally:
    """How much of the work is done, told as it is done."""

    def __init__(self, tell: OnProgress, total: int) -> None:
        self.tell, self.total, self.done = tell, total, 0

    def add(self, what: str, units: int) -> None:
        self.done += units
        self.tell(what, self.done, self.total)
