"""HopfieldMLP: the classical net of equilibrium propagation, layers that settle under symmetric weights."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from walkback.core.errors import BadInput
from walkback.core.spec import Value
from walkback.nets.settling import SettlingNet
from walkback.nets.trace import stable_error

States = list[Tensor]
Gradients = dict[str, Tensor]
Beta = float | complex


class HopfieldMLP(SettlingNet):
    """Settles on `E = Σ_l ½‖s_l‖² − ρ(s_{l−1}) W_l ρ(s_l) − b_l ρ(s_l)`, ρ = tanh; logits = s_L.

    The input is clamped and enters as it is, `ρ(s_0) = x`. The forward pass is the free phase: `steps`
    Euler steps `s ← s − step_size ∂E/∂s` from zero. To the audit the first is the stem's and each of the
    others a block, its state all layers side by side, so that backprop is backprop through time. The
    blocks share one set of weights, which the first one holds; hidden weights start small enough for E to
    have a single minimum.
    """

    defaults: ClassVar[dict[str, Value]] = {"depth": 1, "width": 128, "steps": 30, "step_size": 0.5}

    def __init__(
        self,
        features: int,
        classes: int,
        depth: int = 1,
        width: int = 128,
        steps: int = 30,
        step_size: float = 0.5,
    ) -> None:
        super().__init__()
        if min(depth, width) < 1 or steps < 2 or not 0 < step_size <= 1:
            raise BadInput(
                "hopfield needs a depth and width of at least 1, 2 steps or more, and a step_size in 0…1."
            )
        self.step_size = step_size
        self.stem = Drive(features, [*[width] * depth, classes])
        self.blocks = nn.ModuleList([EulerStep(width, depth, classes, step_size)])
        self.blocks.extend(
            EulerStep(width, depth, classes, step_size, self.step.layers) for _ in range(steps - 2)
        )
        self.out_ln = nn.Identity()
        self.out_head = LastLayer(classes)

    @property
    def step(self) -> EulerStep:
        """The block that holds W_2 … W_L and b_2 … b_L; W_1 and b_1 are the stem's."""
        return cast("EulerStep", self.blocks[0])

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        drive = self.stem(x.flatten(1))
        s = self.step.forward(torch.zeros_like(drive), drive)  # called by name: it is the stem's step
        for block in self.blocks:
            s = block(s, drive)
        return self.out_head(s)

    def nudged(self, x: Tensor, y: Tensor, rest: Tensor, beta: float, steps: int) -> States:
        return settle_nudged(self, x, y, rest, beta, steps)


class Drive(nn.Module):
    """What the clamped input does to the layers: `W_1 x + b_1` on the first, nothing on the others."""

    def __init__(self, features: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.fc = nn.Linear(features, widths[0])
        self.rest = sum(widths[1:])

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch units"]:
        return nn.functional.pad(self.fc(x), (0, self.rest))


class EulerStep(nn.Module):
    """`s ← s − step_size ∂E/∂s`, all layers at once."""

    def __init__(
        self, width: int, depth: int, classes: int, step_size: float, shared: nn.ModuleList | None = None
    ) -> None:
        super().__init__()
        self.step_size = step_size
        self.widths = [*[width] * depth, classes]
        if shared is None:
            pairs = zip(self.widths[:-1], self.widths[1:], strict=True)
            self.layers = shared = nn.ModuleList(_small_linear(below, above) for below, above in pairs)
        # A tuple hides the shared weights from the parameters of all blocks but the first.
        self._shared = tuple(cast("nn.Linear", layer) for layer in shared)

    def forward(
        self, s: Num[Tensor, "batch units"], drive: Num[Tensor, "batch units"]
    ) -> Num[Tensor, "batch units"]:
        return s - self.step_size * self.energy_gradient(s, drive)

    def energy_gradient(
        self, s: Num[Tensor, "batch units"], drive: Num[Tensor, "batch units"]
    ) -> Num[Tensor, "batch units"]:
        """`∂E/∂s_l = s_l − ρ'(s_l) (W_l ρ(s_{l−1}) + b_l + W_{l+1}ᵀ ρ(s_{l+1}))`; complex s is welcome."""
        rates = s.tanh()
        parts = list(rates.split(self.widths, dim=1))
        fields = list(drive.to(s.dtype).split(self.widths, dim=1))
        for index, layer in enumerate(self._shared):
            weight, bias = layer.weight.to(s.dtype), layer.bias.to(s.dtype)
            fields[index + 1] = fields[index + 1] + parts[index] @ weight.T + bias
            fields[index] = fields[index] + self.feedback(parts[index + 1], weight)
        return s - (1 - rates.square()) * torch.cat(fields, dim=1)

    def feedback(self, above: Tensor, weight: Tensor) -> Tensor:
        """What a layer sends to the one below: through the same weights, which makes E an energy."""
        return above @ weight


class LastLayer(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, s: Num[Tensor, "batch units"]) -> Num[Tensor, "batch classes"]:
        return s[:, -self.classes :]


def _small_linear(below: int, above: int) -> nn.Linear:
    """A spectral norm near ½, for two neighbours' pulls together must stay below the ½‖s‖² that holds s."""
    layer = nn.Linear(below, above)
    nn.init.normal_(layer.weight, std=0.5 / (below**0.5 + above**0.5))
    nn.init.zeros_(layer.bias)
    return layer


def settle_free(net: HopfieldMLP, x: Tensor, steps: int = 1000) -> Tensor:
    """The free phase, carried on from zero until rest."""
    with torch.no_grad():
        drive = net.stem(x.flatten(1))
        return _settle(net, drive, torch.zeros_like(drive), None, 0.0, steps)[-1]


def settle_nudged(
    net: HopfieldMLP, x: Tensor, y: Tensor, start: Tensor, beta: Beta, steps: int = 1000
) -> States:
    """The nudged phase `s ← s − step_size (∂E/∂s + β ∂C/∂s)` from `start`: every state on the way."""
    with torch.no_grad():
        drive = net.stem(x.flatten(1))
        return _settle(net, drive, start, y, beta, steps)


def _settle(net: HopfieldMLP, drive: Tensor, s: Tensor, y: Tensor | None, beta: Beta, steps: int) -> States:
    block, classes = net.step, net.out_head.classes
    s = s.to(torch.complex128) if isinstance(beta, complex) else s
    states = [s]
    for _ in range(steps):
        after = block(s, drive)
        if y is not None:
            nudge = beta * cost_gradient(s[:, -classes:], y)
            after = torch.cat([after[:, :-classes], after[:, -classes:] - block.step_size * nudge], dim=1)
        s = after
        states.append(s)
    return states


def energy_slopes(net: HopfieldMLP, x: Tensor, s: Tensor) -> Gradients:
    """∂E/∂θ at a state, summed over the batch: `−ρ(s_l) ρ(s_{l−1})ᵀ` and `−ρ(s_l)`."""
    rates = [x.flatten(1).to(s.dtype), *s.tanh().split(net.step.widths, dim=1)]
    names = ["stem.fc", *(f"blocks.0.layers.{index}" for index in range(len(rates) - 2))]
    slopes = {}
    for name, below, above in zip(names, rates[:-1], rates[1:], strict=True):
        slopes[f"{name}.weight"] = -above.T @ below
        slopes[f"{name}.bias"] = -above.sum(0)
    return slopes


def ep_gradients(
    net: HopfieldMLP, x: Tensor, y: Tensor, beta: float, nudge: str = "symmetric", steps: int = 1000
) -> Gradients:
    """`dC/dθ = d/dβ ∂E/∂θ(s^β)` at β = 0, sum-reduced; `nudge` as in `slope_at_zero`."""
    free = settle_free(net, x, steps)

    def slopes(at: Beta) -> Gradients:
        return energy_slopes(net, x, settle_nudged(net, x, y, free, at, steps)[-1])

    return slope_at_zero(slopes, beta, nudge)


def slope_at_zero(f: Callable[[Beta], Gradients], beta: float, nudge: str, points: int = 4) -> Gradients:
    """f'(0) from f at a few β. `positive`: error O(β). `symmetric`: O(β²). `holomorphic`: O(β^points).

    The last takes f on a circle in the complex plane and Cauchy's formula,
    `f'(0) ≈ Σ_k f(β ω^k) ω^{−k} / (points β)` (Laborieux & Zenke 2022, arXiv:2209.00530).
    """
    if nudge == "positive":
        weights: list[tuple[Beta, Beta]] = [(beta, 1 / beta), (0.0, -1 / beta)]
    elif nudge == "symmetric":
        weights = [(beta, 0.5 / beta), (-beta, -0.5 / beta)]
    elif nudge == "holomorphic":
        roots = [cmath.exp(2j * cmath.pi * k / points) for k in range(points)]
        weights = [(beta * root, 1 / (points * beta * root)) for root in roots]
    else:
        raise BadInput(f"nudge is 'positive', 'symmetric' or 'holomorphic', not {nudge!r}.")
    parts = [(f(at), weight) for at, weight in weights]
    return {name: _real(sum(part[name] * weight for part, weight in parts)) for name in parts[0][0]}


def _real(value: Tensor | int) -> Tensor:
    assert isinstance(value, Tensor)
    return value.real if value.is_complex() else value


def cost_gradient(
    logits: Num[Tensor, "batch classes"], y: Int[Tensor, " batch"]
) -> Num[Tensor, "batch classes"]:
    """∂(Σ CE)/∂logits; on complex logits, the same function continued."""
    if not logits.is_complex():
        return stable_error(logits, y)
    grown = (logits - logits.real.amax(dim=1, keepdim=True)).exp()
    shares = grown / grown.sum(dim=1, keepdim=True)
    return shares - nn.functional.one_hot(y, logits.shape[1])
