"""One training loop, read from top to bottom, for every rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from walkback.core.streams import stream_seed
from walkback.nets.adapter import Adapter
from walkback.rules.base import Rule
from walkback.train.kernel import depositor
from walkback.train.schedule import schedules


@runtime_checkable
class Feed(Protocol):
    """Where training batches come from."""

    @property
    def items(self) -> int: ...

    def train_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Recipe:
    """How a net is trained; equal for a rule and its baseline."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float
    schedule: str
    seed: int


@dataclass
class TrainState:
    """All that a run is between two epochs. Every random draw is a function of (seed, purpose, epoch),
    so weights, rule state and optimizer moments are enough to go on as if nothing had happened."""

    net: Adapter
    rule: Rule
    epoch: int = 0
    train_loss: float = math.nan
    moments: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Divergence:
    """A run that left the numbers: an outcome to record, not a crash."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Progress:
    epoch: int
    epochs: int
    step: int
    steps: int


def train(
    state: TrainState,
    feed: Feed,
    recipe: Recipe,
    *,
    on_epoch: Callable[[TrainState], None],
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Divergence | None:
    """Train from `state` to the last epoch. `on_epoch` is called after each; None means all went well."""
    net, rule = state.net, state.rule
    parameters = rule.trained(net)
    for name, parameter in net.model.named_parameters():
        parameter.requires_grad_(name in parameters)
    optimizer = torch.optim.AdamW(
        list(parameters.values()), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True
    )
    restore_moments(optimizer, parameters, state.moments)
    own = [parameter for name, parameter in parameters.items() if name not in net.trainable]
    deposit = depositor(net, rule, recipe.batch)
    schedule = schedules[recipe.schedule]
    per_epoch = math.ceil(feed.items / recipe.batch)
    steps = per_epoch * recipe.epochs

    while not (reason := left_the_numbers(state)) and state.epoch < recipe.epochs:
        order = torch.randperm(feed.items, generator=_generator(recipe.seed, "batches", state.epoch))
        augment = _generator(recipe.seed, "augment", state.epoch)
        torch.manual_seed(stream_seed(recipe.seed, "dropout", state.epoch))
        net.model.train()
        total = torch.zeros((), dtype=torch.float64)
        for index, rows in enumerate(order.split(recipe.batch)):
            step = state.epoch * per_epoch + index
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * schedule(step, steps)
            rule.begin_step(step / steps)
            for parameter in own:
                parameter.grad = None
            trace = deposit(*feed.train_batch(rows.to(net.device), augment))
            rule.learn(trace)
            optimizer.step()
            total += trace.losses.sum().cpu().double()
            on_progress(Progress(state.epoch, recipe.epochs, step + 1, steps))
        state.epoch += 1
        state.train_loss = float(total) / feed.items
        state.moments = save_moments(optimizer, parameters)
        on_epoch(state)
    return Divergence(state.epoch, reason) if reason else None


def save_moments(
    optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter]
) -> dict[str, Tensor]:
    """Adam's moments and step counts, by parameter name."""
    return {
        f"{name}/{key}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state[parameter].items()
    }


def restore_moments(
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, torch.nn.Parameter],
    moments: dict[str, Tensor],
) -> None:
    for name, parameter in parameters.items():
        found = {k.rpartition("/")[2]: v for k, v in moments.items() if k.rpartition("/")[0] == name}
        if found:
            optimizer.state[parameter] = {key: value.clone() for key, value in found.items()}


def left_the_numbers(state: TrainState) -> str:
    """Why a run has diverged, or nothing; asked before each epoch, so a resumed run asks it too."""
    if state.epoch > 0 and not math.isfinite(state.train_loss):
        return "the training loss is not finite"
    if not all(bool(torch.isfinite(p).all()) for p in state.net.model.parameters()):
        return "a weight is not finite"
    return ""


def _generator(seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(seed, *purpose))
