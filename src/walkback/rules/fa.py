"""Feedback alignment, layer form: backprop with every transposed weight replaced by a fixed random one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.errors import NotApplicable
from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace
from walkback.rules.base import ChainRule


class FA(ChainRule):
    """Every Linear in the blocks, and the head, sends its credit down by `Bᵀ` instead of `Wᵀ`.

    B has W's shape and is drawn like torch's initial W: uniform in ±1/√fan_in. Norms, activations and
    skip connections transport exactly. a_L = LN_outᵀ(B_oᵀ e).
    """

    name = "fa"
    citation = "Lillicrap et al. 2016, Nature Communications 7:13276"
    about = "every Wᵀ of the backward pass replaced by a fixed random Bᵀ"
    has_feedback = True
    defaults = {"form": "layer"}  # noqa: RUF012
    choices = {"form": ("layer",)}  # noqa: RUF012

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        for path, linear in feedback_layers(trace.net).items():
            bound = linear.in_features**-0.5
            drawn = torch.rand(linear.weight.shape, generator=generator, dtype=torch.float64)
            self.register_buffer(_key(path), ((2 * drawn - 1) * bound).to(linear.weight))

    def top_credit(self, trace: Trace) -> Tensor:
        _check_head(trace)
        head = _head(trace.net)
        path = next(path for path, linear in feedback_layers(trace.net).items() if linear is head)
        credit = trace.error @ self.get_buffer(_key(path)).to(trace.error)
        if trace.net.out_ln is None:
            return credit
        with torch.enable_grad():
            h = trace.states[-1].detach().requires_grad_()
            (credit,) = torch.autograd.grad(trace.net.out_ln(h), h, credit)
        return credit

    @contextlib.contextmanager
    def inside(self, net: Adapter) -> Iterator[None]:
        """Give each Linear of the blocks a forward whose backward uses B, and take it away again."""
        head = _head(net)
        patched = [(p, layer) for p, layer in feedback_layers(net).items() if layer is not head]
        before = [linear.__dict__.get("forward") for _, linear in patched]
        used: set[str] = set()
        try:
            for path, linear in patched:
                feedback = self.get_buffer(_key(path)).to(linear.weight)
                linear.forward = _feedback_forward(linear, feedback, path, used)  # type: ignore[method-assign]
            yield
            unused = [path for path, _ in patched if path not in used]
            if unused:
                raise NotApplicable(
                    f"fa(form=layer) never reached {unused[0]!r}: its weight is used without calling it.",
                    "Its feedback would have no effect, and the rule would be backprop there.",
                )
        finally:
            for (_, linear), forward in zip(patched, before, strict=True):
                linear.__dict__.pop("forward", None)
                if forward is not None:
                    linear.forward = forward  # type: ignore[method-assign]


class FeedbackLinear(torch.autograd.Function):
    """`y = x Wᵀ + b` forward; backward sends `δ B` down and gives W and b their exact outer products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, feedback: Tensor) -> Tensor:
        ctx.save_for_backward(x, feedback)
        ctx.has_bias = bias is not None
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        x, feedback = ctx.saved_tensors
        rows = delta.reshape(-1, delta.shape[-1])
        down = delta @ feedback if ctx.needs_input_grad[0] else None
        weight = rows.T @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        bias = rows.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return down, weight, bias, None


def feedback_layers(net: Adapter) -> dict[str, nn.Linear]:
    """The Linears that carry credit, by path. A matrix that B could not replace is refused by name:
    leaving it to autograd would be backprop under another name."""
    head = _head(net)
    found = {p: m for p, m in net.model.named_modules() if isinstance(m, nn.Linear)}
    wanted = {id(m) for block in net.blocks for m in block.modules()} | {id(head)}
    found = {path: linear for path, linear in found.items() if id(linear) in wanted}
    covered = {id(linear.weight) for linear in found.values() if type(linear) is nn.Linear}
    for name, parameter in net.block_parameters().items():
        if parameter.dim() > 1 and id(parameter) not in covered:
            raise NotApplicable(
                f"fa(form=layer) cannot replace the transpose of {name!r}.",
                "Only nn.Linear weights inside blocks can be given a feedback matrix.",
            )
    return found


def _head(net: Adapter) -> nn.Linear:
    if not isinstance(net.head, nn.Linear):
        raise NotApplicable(
            "fa(form=layer) needs the head to be one nn.Linear.", "Name it: head='classifier'."
        )
    return net.head


def _check_head(trace: Trace) -> None:
    """B_o is carried through the terminal norm alone: nothing else may lie between h_L and the logits."""
    if trace.wiring != "probe":  # training passes of one net need no second look
        return
    net, h = trace.net, trace.states[-1].detach()
    try:
        with torch.no_grad():
            read = _head(net)(h if net.out_ln is None else net.out_ln(h))
        whole = read.shape == trace.logits.shape and torch.allclose(
            read, trace.logits, rtol=1e-4, atol=1e-5
        )
    except RuntimeError:
        whole = False
    if not whole and bool(torch.isfinite(trace.logits).all()):
        raise NotApplicable(
            "fa(form=layer) needs logits = head(out_ln(h_L)), and this model does more.",
            "Name the terminal norm with out_ln=…, if there is one.",
        )


def _feedback_forward(linear: nn.Linear, feedback: Tensor, path: str, used: set[str]) -> Any:
    def forward(x: Tensor) -> Any:
        used.add(path)
        return FeedbackLinear.apply(x, linear.weight, linear.bias, feedback)

    return forward


def _key(path: str) -> str:
    return "feedback_" + path.replace(".", "_")
