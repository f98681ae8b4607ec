"""Forward and backward passes of the MLP family, written out: no graph, and buffers that are used again.

A part keeps from its forward pass what its backward pass needs, and nothing else. Gradients go straight
into `.grad`, which each backward pass overwrites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from walkback.nets.adapter import Adapter
from walkback.nets.mlp import MLP, ReluLayer
from walkback.nets.near_identity import NearIdentityMLP
from walkback.nets.resmlp import ResBlock, ResMLP

Send = Callable[[Tensor, Tensor], Tensor]  # (credit that arrived, input) → credit that goes down
State = Float[Tensor, "batch width"]
aten: Any = torch.ops.aten


class Workspace:
    """Memory by name, allocated once for the largest batch; a smaller batch uses its first rows."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def rows(self, name: str, count: int, width: int, like: Tensor) -> Tensor:
        held = self._held.get(name)
        if held is None or len(held) < count or held.shape[1] != width:
            held = self._held[name] = like.new_empty(count, width)
        return held[:count]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._held.values())


class Part(ABC):
    """A stem or a block without a graph. `trained` is whether its parameters are given gradients.

    `scratch` is memory for what a backward pass needs only for a moment; all parts share it.
    """

    def __init__(self, module: nn.Module, senders: Mapping[str, Send], scratch: Workspace) -> None:
        self.parameters = dict(module.named_parameters())
        self.senders, self.scratch = senders, scratch
        self.trained = any(parameter.requires_grad for parameter in self.parameters.values())

    @abstractmethod
    def forward(self, h: Tensor, space: Workspace) -> State:
        """The part's output; what `backward` needs stays in `space`."""

    @abstractmethod
    def backward(self, h: Tensor, delta: State, space: Workspace, *, down: bool) -> Tensor | None:
        """Gradients for the credit `delta` at the output; the credit at the input, if asked for."""

    def send(self, name: str, delta: Tensor, x: Tensor) -> Tensor:
        """What the Linear `name` passes down: what the rule says, or the exact `δ W`."""
        if name in self.senders:
            return self.senders[name](delta, x)
        weight = self.parameters[f"{name}.weight"]
        return torch.mm(delta, weight, out=self.scratch.rows(f"down {name}", len(x), x.shape[1], x))

    def deposit_linear(self, name: str, delta: Tensor, x: Tensor) -> None:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        if weight.requires_grad:
            torch.mm(delta.T, x, out=grad_of(weight))
        if bias.requires_grad:
            torch.sum(delta, 0, out=grad_of(bias))

    def affine(self, name: str, x: Tensor, space: Workspace) -> Tensor:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        out = space.rows(f"{name} out", len(x), len(weight), x)
        return torch.addmm(bias, x, weight.T, out=out)


class LinearPart(Part):
    """`W x + b`: the stem of a ResMLP."""

    def __init__(self, linear: nn.Module, senders: Mapping[str, Send], scratch: Workspace) -> None:
        super().__init__(linear, senders, scratch)
        self.parameters = {f"fc.{name}": parameter for name, parameter in self.parameters.items()}

    def forward(self, h: Tensor, space: Workspace) -> State:
        return self.affine("fc", h, space)

    def backward(self, h: Tensor, delta: State, space: Workspace, *, down: bool) -> Tensor | None:
        self.deposit_linear("fc", delta, h)
        return self.send("fc", delta, h) if down else None


class ReluPart(Part):
    """`relu(W h + b)`: stem and blocks of an MLP."""

    def forward(self, h: Tensor, space: Workspace) -> State:
        return self.affine("fc", h, space).relu_()

    def backward(self, h: Tensor, delta: State, space: Workspace, *, down: bool) -> Tensor | None:
        out = space.rows("fc out", len(h), delta.shape[1], h)
        inner = self.scratch.rows("inner", len(h), delta.shape[1], h)
        aten.threshold_backward.grad_input(delta, out, 0, grad_input=inner)
        self.deposit_linear("fc", inner, h)
        return self.send("fc", inner, h).clone() if down else None


class ResPart(Part):
    """`h + W2 gelu(W1 LN(h) + b1) + b2`: a block of a ResMLP."""

    def __init__(self, block: nn.Module, senders: Mapping[str, Send], scratch: Workspace) -> None:
        super().__init__(block, senders, scratch)
        assert isinstance(block, ResBlock)
        self.eps = block.ln.eps
        self.learns = all(parameter.requires_grad for parameter in self.parameters.values())

    def forward(self, h: Tensor, space: Workspace) -> State:
        count, width = h.shape
        gamma, beta = self.parameters["ln.weight"], self.parameters["ln.bias"]
        normed = space.rows("normed", count, width, h)
        mean, rstd = space.rows("mean", count, 1, h), space.rows("rstd", count, 1, h)
        aten.native_layer_norm.out(h, [width], gamma, beta, self.eps, out0=normed, out1=mean, out2=rstd)
        z = self.affine("fc1", normed, space)
        active = aten.gelu.out(z, out=space.rows("active", count, z.shape[1], h))
        above = torch.add(h, self.parameters["fc2.bias"], out=space.rows("above", count, width, h))
        return above.addmm_(active, self.parameters["fc2.weight"].T)

    def backward(self, h: Tensor, delta: State, space: Workspace, *, down: bool) -> Tensor | None:
        count, width = h.shape
        gamma, beta = self.parameters["ln.weight"], self.parameters["ln.bias"]
        inner = len(self.parameters["fc1.weight"])
        normed, z, active = (
            space.rows(name, count, size, h)
            for name, size in (("normed", width), ("fc1 out", inner), ("active", inner))
        )
        self.deposit_linear("fc2", delta, active)
        if not (self.trained or down):
            return None
        into = self.send("fc2", delta, active)
        theirs = "fc2" in self.senders  # then it may be a tensor that they keep
        out = self.scratch.rows("slope", count, inner, h) if theirs else into
        slope = aten.gelu_backward.grad_input(into, z, grad_input=out)
        mean, rstd = space.rows("mean", count, 1, h), space.rows("rstd", count, 1, h)
        if self.learns and not down and "fc1" not in self.senders:
            self._deposit_below(slope, torch.mul(h - mean, rstd, out=normed))
            return None
        self.deposit_linear("fc1", slope, normed)
        wanted = [down, gamma.requires_grad, beta.requires_grad]
        below = norm_backward(self.send("fc1", slope, normed), h, (mean, rstd), gamma, beta, wanted)
        return None if below is None else delta + below

    def _deposit_below(self, slope: Tensor, unit: Tensor) -> None:
        """W1, b1, γ and β where nothing is sent further down: without the product `δ_z W1`.

        With `n = γ∘n̂ + β`, `M = δ_zᵀ n̂` and `s = Σ δ_z`: dW1 = M∘γ + s βᵀ, dβ = W1ᵀ s, and dγ, which is
        the column sum of (δ_z W1)∘n̂, is that of W1∘M.
        """
        weight, bias = self.parameters["fc1.weight"], self.parameters["fc1.bias"]
        gamma, beta = self.parameters["ln.weight"], self.parameters["ln.bias"]
        product = torch.mm(slope.T, unit, out=grad_of(weight))
        total = torch.sum(slope, 0, out=grad_of(bias))
        torch.mv(weight.T, total, out=grad_of(beta))
        both = torch.mul(
            weight, product, out=self.scratch.rows("W1∘M", len(weight), weight.shape[1], weight)
        )
        torch.sum(both, 0, out=grad_of(gamma))
        product.mul_(gamma).addr_(total, beta)


def norm_backward(
    delta: Tensor,
    h: Tensor,
    moments: tuple[Tensor, Tensor],
    gamma: Tensor,
    beta: Tensor,
    wanted: list[bool],
    scale: float = 1.0,
) -> Tensor | None:
    """Through a LayerNorm: the credit below; γ's and β's gradients, times `scale`, where wanted."""
    below, of_gamma, of_beta = aten.native_layer_norm_backward(
        delta, h, [h.shape[1]], *moments, gamma, beta, wanted
    )
    for parameter, gradient, asked in ((gamma, of_gamma, wanted[1]), (beta, of_beta, wanted[2])):
        if asked:
            torch.mul(gradient, scale, out=grad_of(parameter))
    return below


def grad_of(parameter: Tensor) -> Tensor:
    """`.grad` as memory to write into."""
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
    return parameter.grad


PARTS: dict[type[nn.Module], type[Part]] = {nn.Linear: LinearPart, ReluLayer: ReluPart, ResBlock: ResPart}
_MODELS = (ResMLP, NearIdentityMLP, MLP)
_BUILT_OF = (*_MODELS, nn.ModuleList, nn.LayerNorm, nn.Identity)


def hand_parts(net: Adapter, senders: Mapping[str, Send] | None = None) -> list[Part] | None:
    """Stem and blocks by hand; None for a model that is not exactly what these passes were written for.

    `senders`, by path in the model, say what a Linear sends down in place of its exact credit.
    """
    model = net.model
    if not isinstance(model, (ResMLP, MLP)) or not _unaltered(net):
        return None
    paths = {id(module): path for path, module in model.named_modules()}

    def own(module: nn.Module) -> dict[str, Send]:
        prefix = paths[id(module)] + "."
        found = (senders or {}).items()
        return {path.removeprefix(prefix): send for path, send in found if path.startswith(prefix)}

    scratch = Workspace()
    return [PARTS[type(module)](module, own(module), scratch) for module in (model.stem, *net.blocks)]


def _unaltered(net: Adapter) -> bool:
    """No subclass of anyone's own, no hook, no weight used twice, and the parts where they belong."""
    model = net.model
    assert isinstance(model, (ResMLP, MLP))
    weights = [p for module in model.modules() for p in module._parameters.values() if p is not None]
    return (
        type(model) in _MODELS
        and all(type(part) in PARTS for part in (model.stem, *net.blocks))
        and list(net.blocks) == list(model.blocks)
        and net.head is model.out_head
        and net.out_ln is model.out_ln
        and not any(_altered(module) for module in model.modules())
        and len({id(p) for p in weights}) == len(weights)
    )


def _altered(module: nn.Module) -> bool:
    """Hooks, a forward of its own, parametrised weights: things that a hand-written pass would miss."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        type(module) not in (*PARTS, *_BUILT_OF)
        or (isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None))
        or (isinstance(module, ResBlock) and type(module.ln) is not nn.LayerNorm)
        or any(p._backward_hooks for p in module._parameters.values() if p is not None)
        or any(getattr(module, name) for name in hooks)
        or "forward" in module.__dict__
        or hasattr(module, "parametrizations")
        or (isinstance(module, nn.Linear) and module.bias is None)
    )
