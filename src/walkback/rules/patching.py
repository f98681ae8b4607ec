"""Gives the Linears of a net another backward pass for a while, and makes sure that it is really used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.errors import NotApplicable
from walkback.nets.adapter import Adapter

Sender = Callable[[Tensor, Tensor], Tensor]  # (credit that arrived, input) → credit that goes down


def linears_in_blocks(net: Adapter, rule: str) -> dict[str, nn.Linear]:
    """The Linears inside the blocks, by path. A matrix that could not be patched is refused by name:
    leaving it to autograd would be backprop under another name."""
    inside = {id(module) for block in net.blocks for module in block.modules()}
    found = {
        path: module
        for path, module in net.model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside
    }
    covered = {id(linear.weight) for linear in found.values() if type(linear) is nn.Linear}
    for name, parameter in net.block_parameters().items():
        if parameter.dim() > 1 and id(parameter) not in covered:
            raise NotApplicable(
                f"{rule} cannot replace the transpose of {name!r}.",
                "Only nn.Linear weights inside blocks can be given a feedback matrix.",
            )
    return found


@contextlib.contextmanager
def patched(net: Adapter, senders: Mapping[str, Sender], rule: str) -> Iterator[None]:
    """Within, each Linear named sends down what its sender says; afterwards all is as it was.

    A Linear that never ran is an error: the rule would be backprop there.
    """
    linears = {path: net.model.get_submodule(path) for path in senders}
    before = {path: linear.__dict__.get("forward") for path, linear in linears.items()}
    used: set[str] = set()
    try:
        for path, linear in linears.items():
            linear.forward = _noting(linear, senders[path], path, used)
        yield
        unused = [path for path in linears if path not in used]
        if unused:
            raise NotApplicable(
                f"{rule} never reached {unused[0]!r}: its weight is used without calling it.",
                "Its feedback would have no effect, and the rule would be backprop there.",
            )
    finally:
        for path, linear in linears.items():
            linear.__dict__.pop("forward", None)
            if before[path] is not None:
                linear.forward = before[path]  # type: ignore[assignment]


def _noting(linear: nn.Module, send: Sender, path: str, used: set[str]) -> Callable[[Tensor], Any]:
    def forward(x: Tensor) -> Any:
        used.add(path)
        return CreditLinear.apply(x, linear.weight, linear.bias, send)

    return forward


class CreditLinear(torch.autograd.Function):
    """`y = x Wᵀ + b` forward. Backward: W and b get their exact outer products with the credit δ that
    arrives; what goes down is `send(δ, x)` in place of `δ W`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, send: Sender) -> Tensor:
        ctx.save_for_backward(x)
        ctx.has_bias, ctx.send = bias is not None, send
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        rows = delta.reshape(-1, delta.shape[-1])
        down = ctx.send(delta, x) if ctx.needs_input_grad[0] else None
        weight = rows.T @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        bias = rows.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return down, weight, bias, None
