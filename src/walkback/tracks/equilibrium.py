"""How far the gradients of the nets that settle are from backprop's, and how that depends on β."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.nets import hopfield, looped
from walkback.nets.ep_kernel import HopfieldKernel, LoopedKernel
from walkback.nets.hopfield import EulerStep, Gradients, HopfieldMLP
from walkback.nets.looped import LoopedMLP

STEPS = 150  # both nets start at a spectral norm near ½, and are then at rest to the last bit
Spoil = Callable[[Gradients, float], Gradients]  # what a sabotage makes of the gradients found at a β


@dataclass(frozen=True)
class Settling:
    """A net that settles and a batch, in float64; `module` has its free and its nudged phase."""

    net: HopfieldMLP | LoopedMLP
    module: ModuleType
    x: Tensor
    y: Tensor

    @property
    def name(self) -> str:
        return type(self.net).__name__

    @property
    def step_size(self) -> float:
        return self.net.step.step_size if isinstance(self.net, HopfieldMLP) else 1.0

    @property
    def learned_by_nudging(self) -> list[str]:
        """All but the readout of the loop, whose gradient is exact in any case."""
        return [name for name, _ in self.net.named_parameters() if not name.startswith("out_")]

    def free(self) -> Tensor:
        return self.module.settle_free(self.net, self.x, STEPS)


def draw_settling(generator: torch.Generator) -> list[Settling]:
    """A HopfieldMLP with two hidden layers and a LoopedMLP, and a batch of 32 for both."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        energy = HopfieldMLP(6, 4, depth=2, width=8, steps=STEPS)
        loop = LoopedMLP(6, 4, width=8, steps=STEPS)
        draw_biases(energy)
        draw_biases(loop)
    x = torch.randn(32, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (32,), generator=generator)
    return [Settling(energy.double(), hopfield, x, y), Settling(loop.double(), looped, x, y)]


def draw_biases(net: nn.Module) -> None:
    """Biases that start at zero would hide what happens to them."""
    for parameter in net.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)


def free_residual(case: Settling) -> float:
    """What one more free step changes, relative to the state."""
    rest = case.free()
    with torch.no_grad():
        return relative(case.net.blocks[0](rest, case.net.stem(case.x)), rest)


def through_time(case: Settling, steps: int = STEPS, start: Tensor | None = None) -> Gradients:
    """∂(Σ CE)/∂θ by autograd through `steps` steps from `start`, or from zero."""
    loss, _ = _unrolled(case, steps, start)
    names, parameters = zip(*case.net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def state_gradients(case: Settling, steps: int) -> Sequence[Tensor]:
    """∂(Σ CE)/∂s_T, ∂s_{T−1}, … by autograd through `steps` steps that stay at rest."""
    loss, states = _unrolled(case, steps, case.free().requires_grad_())
    return torch.autograd.grad(loss, states[::-1])


def _unrolled(case: Settling, steps: int, start: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    drive = case.net.stem(case.x)
    states = [torch.zeros_like(drive) if start is None else start]
    for _ in range(steps):
        states.append(case.net.blocks[0](states[-1], drive))
    return F.cross_entropy(case.net.out_head(states[-1]), case.y, reduction="sum"), states[1:]


def equilibrium_error(case: Settling, nudge: str, spoil: Spoil, beta: float) -> float:
    """The largest relative difference of an equilibrium gradient from backprop's through time."""
    exact = through_time(case)
    found = spoil(case.module.ep_gradients(case.net, case.x, case.y, beta, nudge, STEPS), beta)
    return worst(relative(found[name], exact[name]) for name in case.learned_by_nudging)


def order_in_beta(error_at: Callable[[float], float], betas: Sequence[float]) -> tuple[float, float]:
    """The slope of log error over log β, and the error at the last β; an error of 0 has no slope."""
    errors = [error_at(beta) for beta in betas]
    if not all(error > 0 for error in errors):
        return math.nan, errors[-1]
    return math.log(errors[0] / errors[-1]) / math.log(betas[0] / betas[-1]), errors[-1]


def step_state_error(case: Settling, beta: float, steps: int) -> float:
    """`s_{t+1} − s_t = −ε β ∂C/∂s_{T−t}`: nudged steps against backprop's (Ernoult et al. 2019).

    The difference of the phases at ±β, relative; the largest of all steps.
    """
    rest, settle = case.free(), case.module.settle_nudged
    up, down = (settle(case.net, case.x, case.y, rest, at, steps) for at in (beta, -beta))
    errors = []
    for t, exact in enumerate(state_gradients(case, steps)):
        moved = ((up[t + 1] - up[t]) - (down[t + 1] - down[t])) / (2 * beta)
        errors.append(relative(moved, -case.step_size * exact))
    return worst(errors)


def step_weight_error(case: Settling, beta: float, steps: int, spoil: Spoil) -> float:
    """What nudged step t adds to each gradient, against what step T − t of the free phase adds in backprop.

    By the kernel, whose gradients after K nudged steps are those of backprop through the last K steps.
    """
    kind = HopfieldKernel if isinstance(case.net, HopfieldMLP) else LoopedKernel
    rest, total = case.free(), through_time(case)
    errors: list[float] = []
    before = [{name: torch.zeros_like(total[name]) for name in case.learned_by_nudging}] * 2
    for nudged in range(1, steps + 1):
        step = kind(case.net, nudged=nudged, beta=beta).step(case.x, case.y)
        found = spoil({name: gradient * len(case.y) for name, gradient in step.gradients.items()}, beta)
        after = [found, through_time(case, nudged, rest)]
        for name in case.learned_by_nudging:
            mine, exact = (now[name] - then[name] for now, then in zip(after, before, strict=True))
            # The nudge needs a step per layer to arrive; before that there is nothing to be relative to.
            errors.append(relative(mine, exact) if exact.any() else float(mine.norm() / total[name].norm()))
        before = after
    return worst(errors)


@contextmanager
def noise_for_transposes(generator: torch.Generator) -> Iterator[None]:
    """Within, the way back goes through random weights of the same size."""

    def noise(above: Tensor, weight: Tensor) -> Tensor:
        drawn = torch.randn(weight.shape, generator=generator.clone_state(), dtype=torch.float64)
        return above @ (drawn * weight.real.std()).to(weight)

    with (
        replaced(looped, "feedback", noise),
        replaced(EulerStep, "feedback", lambda self, above, weight: noise(above, weight)),
    ):
        yield


@contextmanager
def replaced(owner: object, name: str, by: object) -> Iterator[None]:
    """An attribute of a module or a class, another one for a while."""
    original = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, original)


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def farthest(values: Sequence[float], target: float) -> float:
    """The value that is farthest from a target; NaN if one is NaN."""
    return float(values[int(np.argmax(np.abs(np.array(values) - target)))])


def worst(values: Iterable[float]) -> float:
    """The largest; NaN if one is NaN, which max() could drop."""
    return float(np.max(list(values)))


def least(values: Iterable[float]) -> float:
    """The smallest; NaN if one is NaN."""
    return float(np.min(list(values)))
