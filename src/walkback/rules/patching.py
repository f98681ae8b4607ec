"""Gives layers of a net another backward pass for a while, and makes sure that it is really used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.errors import NotApplicable
from walkback.nets.adapter import Adapter

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = nn.Linear | Convolution
KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Sender = Callable[[Tensor, Tensor], Tensor]  # (credit that arrived, input) → credit that goes down


def layers_in_blocks(net: Adapter, rule: str, kinds: tuple[type[Layer], ...] = KINDS) -> dict[str, Layer]:
    """The layers of these kinds inside the blocks, by path. A matrix or kernel that could not be patched is
    refused by name: leaving it to autograd would be backprop under another name."""
    inside = {id(module) for block in net.blocks for module in block.modules()}
    found = {
        path: module
        for path, module in net.model.named_modules()
        if isinstance(module, kinds) and id(module) in inside
    }
    covered = {id(layer.weight) for layer in found.values() if _is_plain(layer)}
    for name, parameter in net.block_parameters().items():
        if parameter.dim() > 1 and id(parameter) not in covered:
            raise NotApplicable(
                f"{rule} cannot replace the transpose of {name!r}.",
                f"Inside blocks it gives feedback to {_listed(kinds)}, padded with zeros.",
            )
    return found


def _is_plain(layer: Layer) -> bool:
    """A subclass may compute something else; a padding that differs from side to side has no one number."""
    if isinstance(layer, nn.Linear):
        return type(layer) is nn.Linear
    return type(layer) in KINDS and layer.padding_mode == "zeros" and _padding(layer) is not None


def _listed(kinds: tuple[type[Layer], ...]) -> str:
    return ", ".join(f"nn.{kind.__name__}" for kind in kinds)


@contextlib.contextmanager
def patched(net: Adapter, senders: Mapping[str, Sender], rule: str) -> Iterator[None]:
    """Within, each layer named sends down what its sender says; afterwards all is as it was.

    A layer that never ran is an error: the rule would be backprop there.
    """
    layers = {path: net.model.get_submodule(path) for path in senders}
    before = {path: layer.__dict__.get("forward") for path, layer in layers.items()}
    used: set[str] = set()
    try:
        for path, layer in layers.items():
            layer.forward = _noting(layer, senders[path], path, used)
        yield
        unused = [path for path in layers if path not in used]
        if unused:
            raise NotApplicable(
                f"{rule} never reached {unused[0]!r}: its weight is used without calling it.",
                "Its feedback would have no effect, and the rule would be backprop there.",
            )
    finally:
        for path, layer in layers.items():
            layer.__dict__.pop("forward", None)
            if before[path] is not None:
                layer.forward = before[path]  # type: ignore[assignment]


def _noting(layer: Any, send: Sender, path: str, used: set[str]) -> Callable[[Tensor], Any]:
    def forward(x: Tensor) -> Any:
        used.add(path)
        return CreditLayer.apply(x, layer.weight, layer.bias, layer, send)

    return forward


class CreditLayer(torch.autograd.Function):
    """The layer itself forward. Backward: weight and bias get their exact gradients under the credit δ that
    arrives; what goes down is `send(δ, x)` in place of `δ W` or of δ through the transposed kernel."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer, send: Sender
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.layer, ctx.send = bias is not None, layer, send
        if isinstance(layer, nn.Linear):
            return nn.functional.linear(x, weight, bias)
        return layer._conv_forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        down = ctx.send(delta, x) if ctx.needs_input_grad[0] else None
        wanted = (ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2])
        return down, *_gradients(ctx.layer, delta, x, weight, wanted), None, None


def _gradients(
    layer: Layer, delta: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Of weight and bias, where they are wanted."""
    if isinstance(layer, nn.Linear):
        rows = delta.reshape(-1, delta.shape[-1])
        own = rows.T @ x.reshape(-1, x.shape[-1]) if wanted[0] else None
        return own, rows.sum(0) if wanted[1] else None
    _, own, bias = _convolution_backward(layer, delta, x, weight, (False, *wanted))
    return own, bias


def has_parameters_below(x: Tensor) -> bool:
    """Whether any parameter took part in making x, as far down as its graph was not cut."""
    waiting, seen = [x.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(getattr(node, "variable", None), nn.Parameter):
            return True
        waiting.extend(below for below, _ in node.next_functions)
    return False


def transposed(layer: Layer, feedback: Tensor, delta: Tensor, x: Tensor) -> Tensor:
    """δ sent down through the layer as if its weight were the feedback, which has the weight's shape."""
    if isinstance(layer, nn.Linear):
        return delta @ feedback.to(delta)
    down, *_ = _convolution_backward(layer, delta, x, feedback.to(delta), (True, False, False))
    assert down is not None
    return down


def _convolution_backward(
    layer: Convolution, delta: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
) -> Sequence[Tensor | None]:
    """What torch runs under autograd, for a weight of our choice."""
    return torch.ops.aten.convolution_backward(
        delta,
        x,
        weight,
        [weight.shape[0]],
        layer.stride,
        _padding(layer),
        layer.dilation,
        False,
        [0] * len(layer.stride),
        layer.groups,
        wanted,
    )


def _padding(layer: Convolution) -> tuple[int, ...] | None:
    """In numbers; None where `same` would pad one side more than the other."""
    if layer.padding == "valid":
        return (0,) * len(layer.stride)
    if layer.padding == "same":
        both = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return None if any(each % 2 for each in both) else tuple(each // 2 for each in both)
    return tuple(int(each) for each in layer.padding)
