"""The setting of the FA paper: ResMLP 4×256, expansion 4, CIFAR-10's shape, batch 128, one thread."""

from __future__ import annotations

import numpy as np
import torch

from walkback.data import Dataset
from walkback.data.cifar10 import MEAN, SD
from walkback.data.feed import Feed
from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.rules import make_rule

BATCH, FEATURES, CLASSES, WIDTH, DEPTH, EXPANSION = 128, 3072, 10, 256, 4, 4
torch.set_num_threads(1)


def net() -> Adapter:
    torch.manual_seed(0)
    return Adapter(ResMLP(FEATURES, CLASSES, DEPTH, WIDTH, EXPANSION))


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


def step(rule_name: str):  # type: ignore[no-untyped-def]
    """One training step of walkback's loop: gradients by the rule, then AdamW."""
    adapter, rule, (x, y) = net(), make_rule(rule_name), batch()
    rule.setup(adapter.probe(x[:2], y[:2]), torch.Generator())
    optimizer = torch.optim.AdamW(adapter.model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        rule.deposit_gradients(adapter, x, y)
        optimizer.step()

    return run


def gemms():  # type: ignore[no-untyped-def]
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
