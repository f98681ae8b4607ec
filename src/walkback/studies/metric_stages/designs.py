"""What each net of a stage is. A row belongs to exactly one design: a changed setting is a new row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from walkback.core.streams import stream_seed

Design = dict[str, Any]

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
DEMO_TRAIN, DEMO_BATCH = 1024, 128  # eight whole batches to an epoch


def design_of(stage: str, run_id: int, seed: int, **given: Any) -> Design:
    common = {"schema": 1, "stage": stage, "task": "digits", "arch": "mlp", "run_id": run_id, "cond": ""}
    recipe = {"optimizer": "adam", "lr": 1e-3, "wd": 1e-4, "label_noise": 0.0, "batch_size": 40}
    return {**common, "seed": stream_seed(seed, stage, run_id) >> 32, **recipe, "marks": {}, **given}


def probe_designs(
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
        design_of(stage, i, seed, arch=arch, steps=steps, measured_at=measured_at, marks=marks, **level)
        for i, level in enumerate(every)
    ]


def demo_designs(seed: int, nets: int, epochs: int, measured_at: int) -> list[Design]:
    rng = np.random.default_rng(stream_seed(seed, "grid", "recipes"))
    per_epoch = DEMO_TRAIN // DEMO_BATCH
    shared: Design = {"task": "classification", "batch_size": DEMO_BATCH, "n_train": DEMO_TRAIN}
    shared |= {"steps": epochs * per_epoch, "measured_at": measured_at * per_epoch}
    shared |= {"marks": _epoch_marks(epochs, measured_at, per_epoch)}
    drawn = zip(rng.uniform(1e-4, 1e-2, nets), rng.uniform(1e-5, 1e-3, nets), strict=True)
    return [
        design_of("grid", i, seed, lr=float(lr), wd=float(wd), **shared) for i, (lr, wd) in enumerate(drawn)
    ]


def condition_designs(seed: int, nets: int, epochs: int, measured_at: int) -> list[Design]:
    per_epoch = 400 // 40
    shared: Design = {"steps": epochs * per_epoch, "measured_at": measured_at * per_epoch}
    shared |= {"marks": _epoch_marks(epochs, measured_at, per_epoch)}
    every = [(name, given) for name, given in CONDITIONS.items() for _ in range(nets // len(CONDITIONS))]
    return [
        design_of("grid", i, seed, cond=name, **{**shared, **given})
        for i, (name, given) in enumerate(every)
    ]


def _epoch_marks(epochs: int, measured_at: int, per_epoch: int) -> dict[str, int]:
    """The moments of the temporal curve."""
    chosen = sorted({0, measured_at, *(e for e in (5, 10, 50) if e <= epochs), epochs})
    return {f"ep{epoch}": epoch * per_epoch for epoch in chosen}
