"""The data of the stages, as sets of rows without a sample in common, and the nets trained one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from walkback.core.errors import BadInput
from walkback.core.spec import Call
from walkback.core.streams import stream_seed
from walkback.data import load_dataset
from walkback.studies.metric_stages.designs import DEMO_TRAIN, Design

METRIC_N = 100  # gradient samples, the same for every net: FIM_norm falls mechanically as N grows


@dataclass(frozen=True)
class Task:
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
def load_task(name: str) -> Task:
    x, y, train = _classification() if name == "classification" else _digits()
    rest = torch.arange(train + METRIC_N, len(y))
    middle = train + METRIC_N + len(rest) // 2
    val, test = torch.arange(train + METRIC_N, middle), torch.arange(middle, len(y))
    metric = torch.arange(train, train + METRIC_N)
    return Task(x, y, int(y.max()) + 1, torch.arange(train), metric, val, test)


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


def rows_and_labels(task: Task, design: Design) -> tuple[Tensor, Tensor]:
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
