"""Gaussian inputs labelled by a fixed random net: a task that StudentNet can express exactly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from walkback.core.streams import stream_seed
from walkback.data.dataset import Array, Dataset, DatasetMaker

TRAIN_ITEMS = 20_000
TEST_ITEMS = 5_000
CENTRING_ITEMS = 10_000
FEATURES, WIDTH, INNER, DEPTH, CLASSES = 16, 32, 32, 2, 10
# Of the teacher's branches: with small weights tanh is nearly linear, and so is the task. This and the
# sizes were chosen so that trained blocks beat frozen ones under backprop: a task to audit depth on, not
# evidence that depth matters.
GAIN = 3.0


def teacher(seed: int = 0) -> Dataset:
    """20,000 train and 5,000 test items; the label is the teacher's largest logit."""
    net = draw_teacher(np.random.default_rng(stream_seed(seed, "teacher", "weights")))
    rng = np.random.default_rng(stream_seed(seed, "teacher", "inputs"))
    x = rng.standard_normal((TRAIN_ITEMS + TEST_ITEMS, FEATURES)).astype(np.float32)
    y = net.logits(x).argmax(axis=1).astype(np.int64)
    return Dataset(
        "teacher", x[:TRAIN_ITEMS], y[:TRAIN_ITEMS], x[TRAIN_ITEMS:], y[TRAIN_ITEMS:], classes=CLASSES
    )


class Branch(NamedTuple):
    """`W2 tanh(W1 h + b1)`."""

    w1: Array
    b1: Array
    w2: Array


class Teacher(NamedTuple):
    """`h_0 = W_e x`; `h_{l+1} = h_l + W2 tanh(W1 h_l + b1)`; `logits = W_o h_L − centre`."""

    stem: Array
    branches: list[Branch]
    head: Array
    centre: Array

    def logits(self, x: Array) -> Array:
        h = x.astype(np.float64) @ self.stem.T
        for branch in self.branches:
            h = h + np.tanh(h @ branch.w1.T + branch.b1) @ branch.w2.T
        return h @ self.head.T - self.centre


def draw_teacher(rng: np.random.Generator) -> Teacher:
    """Weights N(0, 1/fan_in), in the branches times `GAIN`; biases N(0, 1). The logits' means, estimated
    on inputs of its own, are taken away, or a few classes would own most items."""

    def draw(out: int, inside: int, gain: float = 1.0) -> Array:
        return gain * rng.standard_normal((out, inside)) / inside**0.5

    stem = draw(WIDTH, FEATURES)
    branches = [
        Branch(draw(INNER, WIDTH, GAIN), rng.standard_normal(INNER), draw(WIDTH, INNER, GAIN))
        for _ in range(DEPTH)
    ]
    raw = Teacher(stem, branches, draw(CLASSES, WIDTH), np.zeros(CLASSES))
    return raw._replace(centre=raw.logits(rng.standard_normal((CENTRING_ITEMS, FEATURES))).mean(axis=0))


TEACHER = DatasetMaker(
    {"seed": 0},
    teacher,
    "Gaussian inputs labelled by a random StudentNet, chosen so that depth matters",
)
