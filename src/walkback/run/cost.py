"""What a run will cost, measured on a short piece of it: same code, whole test split, real files."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from walkback.core.spec import RunSpec
from walkback.data import Dataset
from walkback.run.one import kept_epochs, run_one
from walkback.run.pool import Report, one_thread, work_off
from walkback.store import Bundle, Store
from walkback.train import Progress

OnProgress = Callable[[str, int, int], None]
STEPS, WARM_UP = 12, 4


@dataclass(frozen=True)
class Cost:
    """Seconds of one thread for a step and for measuring an epoch; bytes of a checkpoint, of the rest."""

    step: float
    epoch: float
    checkpoint: int
    rest: int

    def seconds(self, spec: RunSpec, items: int, done: int = 0) -> float:
        """What is left of a run after `done` epochs."""
        steps = math.ceil(items * (1 - spec.holdout) / spec.batch)
        return (spec.epochs - done) * (steps * self.step + self.epoch)

    def bytes(self, spec: RunSpec) -> int:
        return self.rest + len(kept_epochs(spec.epochs)) * self.checkpoint


def costs_of(
    specs: Sequence[RunSpec],
    data: Sequence[Dataset],
    device: str = "cpu",
    *,
    workers: int = 1,
    on_progress: OnProgress = lambda name, done, total: None,
) -> dict[RunSpec, Cost]:
    """One measurement for all runs that differ in seed, epochs or rate alone.

    In as many processes at a time as will train, since those that share a machine slow each other down.
    """
    alike: dict[tuple[Any, ...], list[RunSpec]] = {}
    for spec in specs:
        same = (str(spec.net), str(spec.rule), str(spec.data), spec.data_identity, spec.batch)
        alike.setdefault(same, []).append(spec)
    groups = {group[0]: group for group in alike.values()}
    needed = [dataset for dataset in data if any(map(dataset.serves, groups))]
    jobs = [CostJob(spec, device) for spec in groups]
    found: dict[RunSpec, Cost] = {}
    for done, ended in enumerate(work_off(jobs, _measure, needed, workers=workers), start=1):
        if ended.failed:
            raise ended.error or RuntimeError(f"{ended.job.spec.name}: {ended.traceback}")
        found |= dict.fromkeys(groups[ended.job.spec], ended.result)
        on_progress(ended.job.spec.name, done, len(jobs))
    return found


@dataclass(frozen=True)
class CostJob:
    """What a worker needs beside the data sets, which it was sent before."""

    spec: RunSpec
    device: str


def _measure(job: CostJob, data: Sequence[Dataset], report: Report) -> Cost:
    """One measurement, in a worker."""
    dataset = next(held for held in data if held.serves(job.spec))
    return measure_cost(job.spec, dataset, job.device)


def measure_cost(spec: RunSpec, dataset: Dataset, device: str = "cpu") -> Cost:
    """Train a few batches in a scratch store, on one thread as a worker does.

    Two whole ones at least, some rows twice if need be: the first is for warming up.
    """
    held = len(dataset.y_train)
    batch = min(spec.batch, held)
    rows = np.arange(max(2 * batch, min(STEPS * batch, held))) % held
    piece = replace(dataset, x_train=dataset.x_train[rows], y_train=dataset.y_train[rows])
    short = replace(spec, data_identity=piece.identity, epochs=1, holdout=0.0, batch=batch)
    ticks: list[float] = []

    def tick(progress: Progress) -> None:
        ticks.append(time.perf_counter())

    with one_thread(), tempfile.TemporaryDirectory() as scratch:
        bundle = run_one(short, piece, Store(Path(scratch)), device=device, on_progress=tick)
        ended = time.perf_counter()
        checkpoint, rest = _sizes(bundle)
    first = min(WARM_UP, len(ticks) - 2)
    step = (ticks[-1] - ticks[first]) / (len(ticks) - 1 - first)
    return Cost(step, ended - ticks[-1], checkpoint, rest)


def _sizes(bundle: Bundle) -> tuple[int, int]:
    """Of one checkpoint, and of everything else."""
    checkpoints = [m for m in bundle.members() if m.startswith("checkpoints/")]
    total = sum(len(bundle.read(name)) for name in bundle.members())
    held = sum(len(bundle.read(name)) for name in checkpoints)
    return held // len(checkpoints), total - held
