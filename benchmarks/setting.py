"""The setting of the FA paper: ResMLP 4×256, expansion 4, CIFAR-10's shape, batch 128, one thread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from walkback.data import Dataset
from walkback.data.cifar10 import MEAN, SD
from walkback.data.feed import Feed
from walkback.nets import Adapter
from walkback.nets.mlp import MLP
from walkback.nets.resmlp import ResMLP
from walkback.rules import Rule, make_rule
from walkback.train.kernel import depositor

BATCH, FEATURES, CLASSES, WIDTH, DEPTH, EXPANSION = 128, 3072, 10, 256, 4, 4
PLAIN_TORCH = "plain torch backprop"
torch.set_num_threads(1)


def resmlp() -> nn.Module:
    torch.manual_seed(0)
    return ResMLP(FEATURES, CLASSES, DEPTH, WIDTH, EXPANSION)


def deep_mlp() -> nn.Module:
    """Sixteen hidden layers of 512: the stem and fifteen blocks."""
    torch.manual_seed(0)
    return MLP(FEATURES, CLASSES, depth=15, width=512)


def batch(size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, FEATURES, generator=generator), torch.randint(
        CLASSES, (size,), generator=generator
    )


def feed(images: int = 2048) -> Feed:
    """Random bytes in CIFAR-10's shape: the work is the same, and no data set is needed."""
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(images, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(CLASSES, size=images)
    return Feed(Dataset("bytes", x, y, x, y, CLASSES, mean=MEAN, sd=SD, augment="crop-flip"))


def ready(rule_name: str, model: nn.Module) -> tuple[Adapter, Rule]:
    adapter, rule, (x, y) = Adapter(model), make_rule(rule_name), batch(2)
    rule.setup(adapter.probe(x, y), torch.Generator())
    return adapter, rule


def step(rule_name: str, model: nn.Module | None = None) -> Callable[[], object]:
    """One training step of walkback's loop: gradients by the rule, then AdamW."""
    adapter, rule = ready(rule_name, model or resmlp())
    (x, y), deposit = batch(), depositor(adapter, rule, BATCH)
    optimizer = torch.optim.AdamW(adapter.model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        deposit(x, y)
        optimizer.step()

    return run


def plain_step(model: nn.Module | None = None) -> Callable[[], object]:
    """The same by plain torch: autograd backprop and the same optimizer."""
    model, (x, y) = model or resmlp(), batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def plain_pass(size: int) -> Callable[[], object]:
    """One forward and one backward pass by plain torch."""
    model, (x, y) = resmlp(), batch(size)

    def run() -> None:
        model.zero_grad(set_to_none=True)
        cross_entropy(model(x), y).backward()

    return run


def gemms() -> Callable[[], object]:
    """Exactly the matrix products of a backprop step, alone, into buffers that are there already."""
    shapes = [(FEATURES, WIDTH, False)]
    shapes += [(WIDTH, EXPANSION * WIDTH, True), (EXPANSION * WIDTH, WIDTH, True)] * DEPTH
    shapes += [(WIDTH, CLASSES, True)]
    work = []
    for inner, outer, sends_down in shapes:
        x, w, d = torch.randn(BATCH, inner), torch.randn(outer, inner), torch.randn(BATCH, outer)
        outs = torch.empty(BATCH, outer), torch.empty(outer, inner), torch.empty(BATCH, inner)
        work.append((x, w, d, outs, sends_down))

    def run() -> None:
        for x, w, d, (y, dw, dx), sends_down in work:
            torch.mm(x, w.T, out=y)
            torch.mm(d.T, x, out=dw)
            if sends_down:
                torch.mm(d, w, out=dx)

    return run
