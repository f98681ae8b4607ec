"""Shared by all tests: shapes in signatures are checked, and small nets and batches are at hand."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background: tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)

from jaxtyping import install_import_hook

with install_import_hook(
    ["walkback.nets", "walkback.rules", "walkback.measure", "walkback.train"], "beartype.beartype"
):
    import walkback.measure
    import walkback.nets
    import walkback.rules
    import walkback.train  # noqa: F401

import pytest
import torch
from hypothesis import settings

from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.rules import Rule, make_rule

torch.set_num_threads(1)
settings.register_profile("walkback", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("walkback")


@pytest.fixture
def net() -> Adapter:
    torch.manual_seed(0)
    return Adapter(ResMLP(12, 5, depth=3, width=16, expansion=2).double())


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 12, generator=generator, dtype=torch.float64)
    return x, torch.randint(5, (32,), generator=generator)


class ArrayFeed:
    """Training batches straight from two tensors."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y, self.items = x, y, len(y)

    def train_batch(
        self, rows: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[rows], self.y[rows]


def ready_rule(text: str, net: Adapter, x: torch.Tensor, y: torch.Tensor, seed: int = 2) -> Rule:
    """A rule with its feedback drawn for this net."""
    rule = make_rule(text)
    rule.setup(net.probe(x, y), torch.Generator().manual_seed(seed))
    return rule
