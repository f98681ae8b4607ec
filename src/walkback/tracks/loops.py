"""Looped nets for tracks: drawn with a Lipschitz constant of 1, trained by backprop through time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.data.feed import Feed
from walkback.measure.rows import correct_rows
from walkback.nets import Adapter
from walkback.nets.looped import LoopedMLP
from walkback.rules.bp import BP
from walkback.tracks.lab import Lab
from walkback.train import Recipe, TrainState, train

LOOP = {"width": 64, "steps": 30, "batch": 128, "lr": 3e-3}


def draw_loop(lab: Lab, seed: int, *, spectral_norm: bool) -> LoopedMLP:
    """Weights by seed alone: with and without the norm a net starts as the same function, at L = 1."""
    torch.manual_seed(lab.stream("init", seed))
    width, steps = lab.settings["width"], lab.settings["steps"]
    net = LoopedMLP(64, 10, width=width, steps=steps, spectral_norm=spectral_norm)
    if not spectral_norm:
        net.recurrent.weight.data /= lipschitz(net)
    return net


def lipschitz(net: LoopedMLP) -> float:
    """L = σ_max(W_rec) of the weight in use, by SVD in float64; the slope of tanh is at most 1."""
    return float(torch.linalg.svdvals(net.recurrent.weight.detach().double()).max())


def train_loop(
    lab: Lab, net: LoopedMLP, seed: int, *, lr: float, on_epoch: Callable[[], None] = lambda: None
) -> float:
    """Train on the 8×8 digits; test accuracy in per cent."""
    feed = Feed(load_dataset(Call("digits")))
    recipe = Recipe(
        lab.settings["epochs"], lab.settings["batch"], lr, 0.0, "constant", lab.stream("batches", seed)
    )
    train(TrainState(Adapter(net), BP()), feed, recipe, on_epoch=lambda state: on_epoch())
    x, y = held_out(feed)
    with torch.no_grad():
        return 100 * float(correct_rows(net(x), y).double().mean())


def held_out(feed: Feed | None = None) -> tuple[Tensor, Tensor]:
    feed = feed or Feed(load_dataset(Call("digits")))
    return feed.test_batch(slice(None))
