"""The four stages a metric passes before it may claim to predict generalisation; each trains its nets.

1 dual acid test, 2 cross-architecture harness, 3 loss-baseline control on a grid (numbered 4
in the method's first description), 4 initialisation probe. Every net is one row: its design, the whole
metric battery, the early validation loss on two disjoint halves, and the final test accuracy. Rows are
written as nets finish; the same call again goes on where it was stopped and gives the same rows.

What is (ours): the data sets, the sizes of the probes, equal numbers of steps for all nets of a stage, and
that metric, baseline loss and target are read from three sets of samples that have nothing in common.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from walkback.core.canonical import content_id, plain
from walkback.core.errors import BadInput, UnknownName
from walkback.core.spec import Call
from walkback.core.streams import stream_seed
from walkback.data import load_dataset
from walkback.measure.battery import METRICS, fim_norm, metric_battery
from walkback.metrics.compat import Partial, partial_spearman, ranks
from walkback.store.files import write_atomic
from walkback.studies.stacked import Population, batch_rows, make_mlp, train_alone, train_stacked

OnProgress = Callable[[str, int, int], None]  # what is being done, units of work done, and of how many
Design = dict[str, Any]

METRIC_N = 100  # gradient samples, the same for every net: FIM_norm falls mechanically as N grows
TRAIN_N = 40  # and of the net's own training rows, as many as the smallest training set has
CAPACITY = (40, 100, 200, 400, 800)  # training rows for a net of fixed size
NOISE = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8)  # share of training labels that are wrong
CONDITIONS: dict[str, Design] = {  # those of the published 30 runs; the strength of `reg` is (ours)
    "A_n100": {"n_train": 100},
    "B_n400": {"n_train": 400},
    "C_n800": {"n_train": 800},
    "D_n400_reg": {"n_train": 400, "wd": 1e-2},
    "E_n400_n30": {"n_train": 400, "label_noise": 0.3},
    "F_n400_n50": {"n_train": 400, "label_noise": 0.5},
}
PUBLISHED: dict[str, dict[str, float]] = {
    "acid-test": {"capacity": -0.937, "label_noise": -0.770},
    "grid": {"metric_given_loss": 0.216, "metric_given_loss_p": 0.261, "loss_given_metric": -0.900},
    "init-probe": {"capacity": -0.305, "label_noise": 0.377},
}
PROBE_MARKS = (
    "fim_norm_init",
    "fim_norm_early",
    "fim_norm_final",
)  # read in every probe beside the battery
_MEASURED = [name for name in METRICS if name != "next_step_ratio"]  # a stack has no optimizer per net


@dataclass(frozen=True)
class StageResult:
    """`frame` has one row per net, ready for `walkback metric audit`; `summary` is the stage's answer."""

    stage: str
    frame: Any
    summary: dict[str, Any]

    @property
    def sentence(self) -> str:
        return str(self.summary["sentence"])

    def to_dict(self) -> dict[str, Any]:
        return self.summary

    def write(self, out: Path) -> Path:
        """`<stage>.csv` and `<stage>.json` in the folder; the path of the first."""
        table = out / f"{self.stage}.csv"
        write_atomic(table, self.frame.to_csv(index=False).encode())
        text = json.dumps(plain(self.summary), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomic(out / f"{self.stage}.json", (text + "\n").encode())
        return table


def acid_test(
    *,
    metric: str = "fim_norm",
    seed: int = 0,
    seeds: int = 5,
    steps: int = 400,
    capacity: Sequence[int] = CAPACITY,
    noise: Sequence[float] = NOISE,
    out: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> StageResult:
    """Stage 1: does the metric order nets by accuracy when data, and when clean labels, run short?

    Spearman of the trained net's metric with its test accuracy in each probe: same sign, and both p < .05.
    When to read it is (ours), and chosen after both moments had been seen: read a fifth of the way through
    training, FIM_norm does not pass on digits. Both answers are in the summary and in its sentence.
    """
    _check_metric(metric, *PROBE_MARKS)
    designs = _probe_designs("acid-test", "mlp", seed, seeds, steps, steps, capacity, noise)
    frame = _run("acid-test", designs, out, on_progress)
    return _finish(_acid_summary(frame, metric, "acid-test", 1, "dual acid test"), frame, out)


def harness(
    *,
    metric: str = "fim_norm",
    seed: int = 0,
    seeds: int = 3,
    steps: int = 200,
    archs: Sequence[str] = ("cnn", "transformer"),
    capacity: Sequence[int] = CAPACITY,
    noise: Sequence[float] = NOISE,
    out: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> StageResult:
    """Stage 2: the same two probes on other architectures, a CNN with BatchNorm and a small transformer."""
    _check_metric(metric, *PROBE_MARKS)
    designs: list[Design] = []
    for arch in archs:
        if arch not in NETS:
            raise UnknownName(f"Unknown architecture {arch!r}.", f"Available: {', '.join(NETS)}.")
        designs += _probe_designs("harness", arch, seed, seeds, steps, steps, capacity, noise)
    designs = [{**design, "run_id": i} for i, design in enumerate(designs)]
    frame = _run("harness", designs, out, on_progress)
    groups = {arch: _acid_summary(frame[frame.arch == arch], metric, "harness", 2, arch) for arch in archs}
    signs = {group["sign"] for group in groups.values()}
    open_ = any(group["passes"] is None for group in groups.values())
    passes = None if open_ else all(group["passes"] for group in groups.values()) and len(signs) == 1
    head = _head("harness", 2, "cross-architecture harness", metric, frame)
    summary = {
        **head,
        "archs": {arch: {k: group[k] for k in group if k not in head} for arch, group in groups.items()},
        "passes": passes,
        "sentence": "Stage 2, cross-architecture harness: "
        + " ".join(f"{arch}: {_probe_words(group)}{_early_words(group)}." for arch, group in groups.items())
        + f" {_ending(passes, 'The acid test holds, with one sign, in every architecture.')}",
    }
    return _finish(summary, frame, out)


def grid(
    *,
    metric: str = "fim_norm",
    seed: int = 0,
    nets: int = 20,
    epochs: int = 100,
    measured_at: int = 20,
    design: str = "demo",
    out: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> StageResult:
    """Stage 3 (or 4): does the metric say more than the loss of the same moment, and the reverse?

    `design="demo"` draws lr from U(1e-4, 1e-2) and wd from U(1e-5, 1e-3); `"conditions"` trains the six
    conditions of the published 30 runs, with `nets` rounded down to whole sets of six.
    """
    _check_metric(metric)
    if not 0 < measured_at <= epochs:
        raise BadInput(f"measured_at must lie in 1…{epochs} epochs, not {measured_at}.")
    makers = {"demo": _demo_designs, "conditions": _condition_designs}
    if design not in makers:
        raise UnknownName(f"Unknown grid {design!r}.", f"Available: {', '.join(makers)}.")
    frame = _run("grid", makers[design](seed, nets, epochs, measured_at), out, on_progress)
    values, loss, target = (frame[name].to_numpy(float) for name in (metric, "val_loss", "final_acc"))
    there, back = _controlled(values, target, loss), _controlled(loss, target, values)
    curve = _curve(frame) if metric == "fim_norm" else []
    summary = {
        **_head("grid", 3, "loss-baseline control", metric, frame),
        "page_number": 4,
        "design": design,
        "metric_given_loss": _numbers(there),
        "loss_given_metric": _numbers(back),
        "curve": curve,
        "sentence": f"Stage 3 (stage 4 in its first description), loss-baseline control: {metric} "
        f"has r {there.raw:+.3f} with final accuracy, {there.partial:+.3f} (p {there.p:.2g}) given the "
        f"validation loss of the same moment; the loss has {back.raw:+.3f}, {back.partial:+.3f} "
        f"(p {back.p:.2g}) given {metric}; {there.n} nets.",
    }
    return _finish(summary, frame, out)


def init_probe(
    *,
    metric: str = "fim_norm",
    seed: int = 0,
    seeds: int = 5,
    steps: int = 400,
    capacity: Sequence[int] = CAPACITY,
    noise: Sequence[float] = NOISE,
    out: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> StageResult:
    """Stage 4: is it there before any training? The metric at initialisation against the final accuracy."""
    _check_metric(metric, *PROBE_MARKS)
    designs = _probe_designs("init-probe", "mlp", seed, seeds, steps, 0, capacity, noise)
    frame = _run("init-probe", designs, out, on_progress)
    return _finish(_acid_summary(frame, metric, "init-probe", 4, "initialisation probe"), frame, out)


# Designs: what each net of a stage is. A row belongs to exactly one, so a changed setting is a new row.


def _design(stage: str, run_id: int, seed: int, **given: Any) -> Design:
    common = {"schema": 1, "stage": stage, "task": "digits", "arch": "mlp", "run_id": run_id, "cond": ""}
    recipe = {"optimizer": "adam", "lr": 1e-3, "wd": 1e-4, "label_noise": 0.0, "batch_size": 40}
    return {**common, "seed": stream_seed(seed, stage, run_id) >> 32, **recipe, "marks": {}, **given}


def _probe_designs(
    stage: str,
    arch: str,
    seed: int,
    seeds: int,
    steps: int,
    measured_at: int,
    capacity: Sequence[int],
    noise: Sequence[float],
) -> list[Design]:
    levels: list[Design] = [{"probe": "capacity", "cond": f"n{n}", "n_train": n} for n in capacity]
    levels += [
        {"probe": "label_noise", "cond": f"noise{share:g}", "n_train": 400, "label_noise": share}
        for share in noise
    ]
    marks = {"init": 0, "early": steps // 5, "final": steps}
    every = [level for level in levels for _ in range(seeds)]
    return [
        _design(stage, i, seed, arch=arch, steps=steps, measured_at=measured_at, marks=marks, **level)
        for i, level in enumerate(every)
    ]


def _demo_designs(seed: int, nets: int, epochs: int, measured_at: int) -> list[Design]:
    rng = np.random.default_rng(stream_seed(seed, "grid", "recipes"))
    per_epoch = DEMO_TRAIN // DEMO_BATCH
    shared: Design = {"task": "classification", "batch_size": DEMO_BATCH, "n_train": DEMO_TRAIN}
    shared |= {"steps": epochs * per_epoch, "measured_at": measured_at * per_epoch}
    shared |= {"marks": _epoch_marks(epochs, measured_at, per_epoch)}
    drawn = zip(rng.uniform(1e-4, 1e-2, nets), rng.uniform(1e-5, 1e-3, nets), strict=True)
    return [
        _design("grid", i, seed, lr=float(lr), wd=float(wd), **shared) for i, (lr, wd) in enumerate(drawn)
    ]


def _condition_designs(seed: int, nets: int, epochs: int, measured_at: int) -> list[Design]:
    per_epoch = 400 // 40
    shared: Design = {"steps": epochs * per_epoch, "measured_at": measured_at * per_epoch}
    shared |= {"marks": _epoch_marks(epochs, measured_at, per_epoch)}
    every = [(name, given) for name, given in CONDITIONS.items() for _ in range(nets // len(CONDITIONS))]
    return [
        _design("grid", i, seed, cond=name, **{**shared, **given}) for i, (name, given) in enumerate(every)
    ]


def _epoch_marks(epochs: int, measured_at: int, per_epoch: int) -> dict[str, int]:
    """The moments of the temporal curve."""
    chosen = sorted({0, measured_at, *(e for e in (5, 10, 50) if e <= epochs), epochs})
    return {f"ep{epoch}": epoch * per_epoch for epoch in chosen}


# Data: inputs and labels, and sets of rows that have no sample in common.

DEMO_TRAIN, DEMO_BATCH = 1024, 128  # eight whole batches to an epoch


@dataclass(frozen=True)
class _Task:
    x: Tensor
    y: Tensor
    classes: int
    train: Tensor
    metric: Tensor
    val: Tensor
    test: Tensor

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[rows], self.y[rows]


@cache
def _load(name: str) -> _Task:
    x, y, train = _classification() if name == "classification" else _digits()
    rest = torch.arange(train + METRIC_N, len(y))
    middle = train + METRIC_N + len(rest) // 2
    val, test = torch.arange(train + METRIC_N, middle), torch.arange(middle, len(y))
    metric = torch.arange(train, train + METRIC_N)
    return _Task(x, y, int(y.max()) + 1, torch.arange(train), metric, val, test)


def _classification() -> tuple[Tensor, Tensor, int]:
    """2,000 × 20, 10 informative, standardised by the training rows."""
    from sklearn.datasets import make_classification

    x, y = make_classification(2000, 20, n_informative=10, random_state=0)
    x = (x - x[:DEMO_TRAIN].mean(0)) / x[:DEMO_TRAIN].std(0)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)), DEMO_TRAIN


def _digits() -> tuple[Tensor, Tensor, int]:
    data = load_dataset(Call("digits"))
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    order = np.random.default_rng(stream_seed(0, "metric stages", "digits")).permutation(len(y))
    return torch.from_numpy(x[order]), torch.from_numpy(y[order]), 850


def _rows_and_labels(task: _Task, design: Design) -> tuple[Tensor, Tensor]:
    """The net's training rows, and all labels with a share of those rows' replaced by other classes."""
    generator = torch.Generator().manual_seed(stream_seed(design["seed"], "training rows"))
    if design["n_train"] > len(task.train):
        raise BadInput(f"{design['n_train']} training rows are wanted and {len(task.train)} are there.")
    rows = task.train[torch.randperm(len(task.train), generator=generator)[: design["n_train"]]]
    wrong = rows[torch.rand(len(rows), generator=generator) < design["label_noise"]]
    shift = torch.randint(1, task.classes, (len(wrong),), generator=generator)
    labels = task.y.clone()
    labels[wrong] = (labels[wrong] + shift) % task.classes
    return rows, labels


# Nets that are trained one by one. Input: 64 pixels of an 8×8 digit.


class _Transformer(nn.Module):
    """Each line of the image is a token; two layers, width 32, four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.position = nn.Parameter(torch.randn(8, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x.unflatten(1, (8, 8))) + self.position).mean(1))


def _cnn() -> nn.Module:
    """Two convolutions with BatchNorm, and a linear head on the mean over places."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


NETS: dict[str, Callable[[], nn.Module]] = {"cnn": _cnn, "transformer": _Transformer}


# Work: train what has no row yet, measure it, write its row.


def _run(stage: str, designs: list[Design], out: Path | None, on_progress: OnProgress) -> Any:
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
    task = _load(designs[0]["task"])
    widths = (task.x.shape[1], 64, 64, task.classes)
    drawn = [_rows_and_labels(task, design) for design in designs]
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
    task = _load(design["task"])
    own, labels = _rows_and_labels(task, design)
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
    task: _Task, design: Design, own: Tensor, labels: Tensor, then: Mapping[int, nn.Module]
) -> dict[str, Any]:
    """One row: the design, the battery at the moment it is read, the curve, and how the net ended."""
    found = metric_battery(
        then[design["measured_at"]],
        *task.at(task.metric),
        init=then[0],
        train=(task.x[own], labels[own]),
        val=task.at(task.val),
        seed=design["seed"] + design["run_id"],
        metrics=_MEASURED,
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


# Answers.


def _finish(summary: dict[str, Any], frame: Any, out: Path | None) -> StageResult:
    result = StageResult(summary["stage"], frame, summary)
    if out is not None:
        result.write(out)
    return result


def _head(stage: str, number: int, title: str, metric: str, frame: Any) -> dict[str, Any]:
    head = {"stage": stage, "number": number, "title": title, "metric": metric, "nets": len(frame)}
    return {**head, "metric_n": METRIC_N, "published": PUBLISHED.get(stage, {})}


def _acid_summary(frame: Any, metric: str, stage: str, number: int, title: str) -> dict[str, Any]:
    answer = _acid_answer(frame, metric)
    early: dict[str, Any] = {}
    if metric == "fim_norm" and stage != "init-probe":
        early = {"early": _acid_answer(frame, "fim_norm_early")}
    words = f"Stage {number}, {title}: {_probe_words(answer)}{_early_words(early)}. "
    words += _ending(answer["passes"], "Same sign in both, and both p < .05.")
    return {**_head(stage, number, title, metric, frame), **answer, **early, "sentence": words}


def _acid_answer(frame: Any, metric: str) -> dict[str, Any]:
    probes = {}
    for probe in ("capacity", "label_noise"):
        rows = frame[frame.probe == probe]
        values, target = (rows[name].to_numpy(float) for name in (metric, "final_acc"))
        known = np.isfinite(values) & np.isfinite(target)
        found = partial_spearman(values[known], target[known], None)
        probes[probe] = {"r": found.raw, "p": found.raw_p, "n": found.n, "missing": int((~known).sum())}
    return {"probes": probes, "sign": _common_sign(probes), "passes": _passes(probes)}


def _common_sign(probes: Mapping[str, Mapping[str, float]]) -> int:
    """−1 or 1 where both correlations have it; 0 where they differ or are not known."""
    signs = {float(np.sign(probe["r"])) for probe in probes.values()}
    return int(signs.pop()) if len(signs) == 1 and not any(map(math.isnan, signs)) else 0


def _passes(probes: Mapping[str, Mapping[str, float]]) -> bool | None:
    """None where it cannot be told: a net without a metric is not left out on the way to a pass."""
    if any(math.isnan(probe["p"]) or probe["missing"] for probe in probes.values()):
        return None
    return _common_sign(probes) != 0 and max(probe["p"] for probe in probes.values()) < 0.05


def _probe_words(summary: Mapping[str, Any]) -> str:
    named = {"capacity": "training rows", "label_noise": "label noise"}
    probes = summary["probes"]
    return ", ".join(f"{named[k]} r {v['r']:+.3f} (p {v['p']:.2g}, n={v['n']})" for k, v in probes.items())


def _early_words(summary: Mapping[str, Any]) -> str:
    """Said wherever it was read: an answer that holds at one moment only is not hidden by the other."""
    if "early" not in summary:
        return ""
    return f"; a fifth of the way through training: {_probe_words(summary['early'])}"


def _ending(passes: bool | None, held: str) -> str:
    if passes is None:
        return "It cannot be told: the metric or the accuracy of a net is missing, or does not vary."
    return held if passes else "Not passed: the signs differ, or a p is not below .05."


def _controlled(values: np.ndarray, target: np.ndarray, control: np.ndarray) -> Partial:
    known = np.isfinite(values) & np.isfinite(target) & np.isfinite(control)
    return partial_spearman(values[known], target[known], ranks(control[known]))


def _numbers(found: Partial) -> dict[str, Any]:
    keys = ("raw", "raw_p", "partial", "p", "n", "k")
    return {**{key: getattr(found, key) for key in keys}, "class": found.kind}


def _curve(frame: Any) -> list[dict[str, Any]]:
    """The metric at t given the loss at t, for every moment at which both were read."""
    target, found = frame["final_acc"].to_numpy(float), []
    for name in (c.removeprefix("fim_norm_") for c in frame if c.startswith("fim_norm_ep")):
        values, loss = (frame[f"{c}_{name}"].to_numpy(float) for c in ("fim_norm", "val_loss"))
        there, back = _controlled(values, target, loss), _controlled(loss, target, values)
        found.append({"epoch": int(name[2:]), "metric": _numbers(there), "loss": _numbers(back)})
    return found


def _check_metric(metric: str, *extra: str) -> None:
    known = (*_MEASURED, "fim_norm_train", *extra)
    if metric not in known:
        raise UnknownName(f"Unknown metric {metric!r}.", f"Available: {', '.join(known)}.")
