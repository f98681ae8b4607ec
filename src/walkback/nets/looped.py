"""LoopedMLP: one recurrent layer run until it rests, the net of the TorEqProp report."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from walkback.core.errors import BadInput
from walkback.core.spec import Value
from walkback.nets.hopfield import Beta, Gradients, States, cost_gradient, slope_at_zero
from walkback.nets.settling import SettlingNet


class LoopedMLP(SettlingNet):
    """`h ← tanh(W_in x + W_rec h + b)` for `steps` steps from h = 0; `logits = W_out h + b_out`.

    The first step from zero is the stem, `h_0 = tanh(W_in x + b)`; each of the others is a block. They
    share W_rec, which the first one holds. `spectral_norm` divides W_rec by its largest singular value,
    so that the loop cannot run away (ours: exactly, not by power iteration). Without it W_rec starts at a
    spectral norm near ½.
    """

    defaults: ClassVar[dict[str, Value]] = {"width": 128, "steps": 30, "spectral_norm": False}
    step_size = 1.0

    def __init__(
        self,
        features: int,
        classes: int,
        width: int = 128,
        steps: int = 30,
        spectral_norm: bool = False,
    ) -> None:
        super().__init__()
        if width < 1 or steps < 2:
            raise BadInput("looped needs a width of at least 1 and at least 2 steps.")
        self.stem = nn.Linear(features, width)
        recurrent = nn.Linear(width, width, bias=False)
        nn.init.normal_(recurrent.weight, std=0.25 * width**-0.5)
        if spectral_norm:
            parametrize.register_parametrization(recurrent, "weight", UnitNorm())
        self.blocks = nn.ModuleList(LoopStep(recurrent, owner=index == 0) for index in range(steps - 1))
        self.out_ln = nn.Identity()
        self.out_head = nn.Linear(width, classes)

    @property
    def recurrent(self) -> nn.Linear:
        return cast("LoopStep", self.blocks[0]).recurrent

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        drive = self.stem(x.flatten(1))
        h = drive.tanh()
        with parametrize.cached():
            for block in self.blocks:
                h = block(h, drive)
        return self.out_head(self.out_ln(h))

    def nudged(self, x: Tensor, y: Tensor, rest: Tensor, beta: float, steps: int) -> States:
        return settle_nudged(self, x, y, rest, beta, steps)


class LoopStep(nn.Module):
    def __init__(self, recurrent: nn.Linear, owner: bool) -> None:
        super().__init__()
        if owner:
            self.recurrent = recurrent
        # A tuple hides the shared weights from the parameters of all blocks but the first.
        self._shared = (recurrent,)

    def forward(
        self, h: Float[Tensor, "batch width"], drive: Float[Tensor, "batch width"]
    ) -> Float[Tensor, "batch width"]:
        return (drive + self._shared[0](h)).tanh()


class UnitNorm(nn.Module):
    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        return weight / torch.linalg.matrix_norm(weight, 2)


def settle_free(net: LoopedMLP, x: Tensor, steps: int = 1000) -> Tensor:
    """The loop carried on from zero until rest."""
    with torch.no_grad(), parametrize.cached():
        drive = net.stem(x.flatten(1))
        h = drive.tanh()
        for _ in range(steps):
            h = net.blocks[0](h, drive)
        return h


def settle_nudged(
    net: LoopedMLP, x: Tensor, y: Tensor, free: Tensor, beta: Beta, steps: int = 1000
) -> States:
    """`h ← tanh(drive + W h) − (J − Jᵀ)(h − h0) − β ∂C/∂h` from the free state h0: every state on the way.

    `J = (1 − h0²) W` is the loop's Jacobian at h0. W_rec is not symmetric, so that without the second term
    the nudge would travel along W where the gradient needs Wᵀ (Scurria et al. 2026, arXiv:2602.03670).
    """
    kind = torch.complex128 if isinstance(beta, complex) else free.dtype
    with torch.no_grad():
        weight, out = net.recurrent.weight.to(kind), net.out_head.weight.to(kind)
        drive, rest = net.stem(x.flatten(1)).to(kind), free.to(kind)
        slope = 1 - rest.square()
        states = [rest]
        for _ in range(steps):
            moved = states[-1] - rest
            twist = slope * (moved @ weight.T) - feedback(slope * moved, weight)
            error = cost_gradient(states[-1] @ out.T + net.out_head.bias, y)
            states.append((drive + states[-1] @ weight.T).tanh() - twist - beta * (error @ out))
    return states


def feedback(above: Tensor, weight: Tensor) -> Tensor:
    """The way back, through the same weights."""
    return above @ weight


def ep_gradients(
    net: LoopedMLP, x: Tensor, y: Tensor, beta: float, nudge: str = "symmetric", steps: int = 1000
) -> Gradients:
    """`dC/dθ = aᵀ ∂v/∂θ` at the free state with `a = −dh/dβ`, sum-reduced; the head's is exact.

    For a W_rec under `spectral_norm` the gradient is that of the weight in use.
    """
    free = settle_free(net, x, steps)

    def minus_state(at: Beta) -> Gradients:
        return {"a": -settle_nudged(net, x, y, free, at, steps)[-1]}

    credit = slope_at_zero(minus_state, beta, nudge)["a"]
    with torch.no_grad():
        inner = (1 - free.square()) * credit
        error = cost_gradient(net.out_head(free), y)
        return {
            "stem.weight": inner.T @ x.flatten(1),
            "stem.bias": inner.sum(0),
            "blocks.0.recurrent.weight": inner.T @ free,
            "out_head.weight": error.T @ free,
            "out_head.bias": error.sum(0),
        }
