"""Feedback alignment: fixed random matrices where backprop transports by transposed weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from walkback.core.errors import NotApplicable
from walkback.core.spec import Value
from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace
from walkback.rules.base import ChainRule, Rule
from walkback.rules.broadcast import feature_width, to_state
from walkback.rules.patching import Sender, linears_in_blocks


class FA(Rule):
    """Two inequivalent rules bear the name; a report always prints which."""

    name = "fa"
    citation = "Lillicrap et al. 2016, Nature Communications 7:13276"
    about = "credit sent down by fixed random matrices instead of transposed weights"
    ours = "the names of the forms: layer is Lillicrap's, block the FA paper's"
    has_feedback = True
    defaults = {"form": "layer"}  # noqa: RUF012
    choices = {"form": ("layer", "block")}  # noqa: RUF012

    @classmethod
    def build(cls, **params: Value) -> Rule:
        return LayerFA(**params) if params["form"] == "layer" else BlockFA(**params)


class BlockFA(FA):
    """`a_L = B_Lᵀ e`, `a_l = B_lᵀ a_{l+1}`, N(0, 1)/√width; no skip term, exact chain inside a block."""

    wiring = "cut"

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        widths = [feature_width(h, trace, self.name) for h in trace.states]
        above = [*widths[1:], trace.logits.shape[-1]]
        for layer, (h, width, source) in enumerate(zip(trace.states, widths, above, strict=True)):
            drawn = torch.randn(source, width, generator=generator, dtype=torch.float64)
            self.register_buffer(f"feedback_{layer}", (drawn / widths[layer] ** 0.5).to(h))

    def credits(self, trace: Trace) -> list[Tensor]:
        credits = [to_state(trace.error @ self._feedback(trace.depth), trace.states[-1])]
        for layer in range(trace.depth - 1, -1, -1):
            credits.insert(0, credits[0] @ self._feedback(layer))
        return credits

    def _feedback(self, layer: int) -> Tensor:
        return self.get_buffer(f"feedback_{layer}")


class LayerFA(FA, ChainRule):
    """Every Linear in the blocks, and the head, sends its credit down by `Bᵀ` instead of `Wᵀ`.

    B has W's shape and is drawn like torch's initial W: uniform in ±1/√fan_in. Norms, activations and
    skip connections transport exactly. a_L = LN_outᵀ(B_oᵀ e).
    """

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        for path, linear in {**linears_in_blocks(trace.net, _NAME), _HEAD: _head(trace.net)}.items():
            bound = linear.in_features**-0.5
            drawn = torch.rand(linear.weight.shape, generator=generator, dtype=torch.float64)
            self.register_buffer(_key(path), ((2 * drawn - 1) * bound).to(linear.weight))

    def top_credit(self, trace: Trace) -> Tensor:
        _check_head(trace)
        credit = trace.error @ self.get_buffer(_key(_HEAD)).to(trace.error)
        if trace.net.out_ln is None:
            return credit
        with torch.enable_grad():
            h = trace.states[-1].detach().requires_grad_()
            (credit,) = torch.autograd.grad(trace.net.out_ln(h), h, credit)
        return credit

    def senders(self, net: Adapter) -> Mapping[str, Sender]:
        """Each Linear of the blocks sends its credit down by B."""

        def sender(path: str, linear: nn.Linear) -> Sender:
            feedback = self.get_buffer(_key(path)).to(linear.weight)
            return lambda delta, x: delta @ feedback

        return {path: sender(path, linear) for path, linear in linears_in_blocks(net, _NAME).items()}


_NAME, _HEAD = "fa(form=layer)", "head"


def _head(net: Adapter) -> nn.Linear:
    if not isinstance(net.head, nn.Linear):
        raise NotApplicable(f"{_NAME} needs the head to be one nn.Linear.", "Name it: head='classifier'.")
    return net.head


def _check_head(trace: Trace) -> None:
    """B_o is carried through the terminal norm alone: nothing else may lie between h_L and the logits."""
    if trace.wiring == "probe" and not trace.sequential:  # a training pass needs no second look
        raise NotApplicable(
            f"{_NAME} needs logits = head(out_ln(h_L)), and this model does more.",
            "Name the terminal norm with out_ln=…, if there is one.",
        )


def _key(path: str) -> str:
    return "feedback_" + path.replace(".", "_")
