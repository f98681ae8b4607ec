"""The training loop against torch's own optimizer and schedules, written out."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.train import loop


@pytest.fixture(scope="module")
def digits():
    return load_dataset(Call("digits"))


def test_schedules_go_from_full_rate_to_none():
    from walkback.train.schedule import schedules

    cosine = [schedules["cosine"](step, 100) for step in range(101)]
    assert cosine[0] == 1 and cosine[50] == pytest.approx(0.5) and cosine[100] == pytest.approx(0)
    assert all(a >= b for a, b in pairwise(cosine))
    assert schedules["constant"](77, 100) == 1


def test_the_loop_is_plain_adamw(digits):
    """Two epochs of the loop against torch's own optimizer, written out."""
    from tests.conftest import ArrayFeed
    from walkback.core.streams import stream_seed
    from walkback.nets import Adapter
    from walkback.nets.resmlp import ResMLP
    from walkback.rules import make_rule

    x, y = torch.from_numpy(digits.x_train[:200]), torch.from_numpy(digits.y_train[:200])
    torch.manual_seed(0)
    model, twin = ResMLP(64, 10, 2, 16), ResMLP(64, 10, 2, 16)
    twin.load_state_dict(model.state_dict())
    recipe = loop.Recipe(epochs=2, batch=64, lr=1e-3, weight_decay=5.0, schedule="cosine", seed=3)
    loop.train(
        loop.TrainState(Adapter(model), make_rule("bp")), ArrayFeed(x, y), recipe, on_epoch=lambda s: None
    )
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-3, weight_decay=5.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for epoch in range(2):
        order = torch.randperm(
            200, generator=torch.Generator().manual_seed(stream_seed(3, "batches", epoch))
        )
        for rows in order.split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(twin(x[rows]), y[rows]).backward()
            optimizer.step()
            scheduler.step()
    for mine, slow in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, slow, rtol=1e-3, atol=2e-6)
