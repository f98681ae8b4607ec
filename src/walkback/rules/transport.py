"""Rules that are backprop with another matrix where it uses a transposed weight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from walkback.core.errors import NotApplicable
from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace
from walkback.rules.base import ChainRule
from walkback.rules.patching import Layer, Sender, layers_in_blocks, transposed

HEAD = "head"


class LayerTransport(ChainRule):
    """Every Linear or convolution in the blocks, and the head, sends its credit by `Bᵀ` instead of `Wᵀ`.

    B has W's shape; a kernel's B slides over the map as the kernel does. Norms, activations and skip
    connections transport exactly. a_L = LN_outᵀ(B_oᵀ e).
    """

    written: str  # the rule as error messages call it

    @abstractmethod
    def feedback(self, path: str, layer: Layer) -> Tensor:
        """B of the layer at `path` (`head` for the head), as it is at this moment."""

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        """Refuse what credit could not be sent through; subclasses draw."""
        self.layers(trace.net)
        self.check_contiguous(trace)
        if trace.reads_more:
            self._refuse_head()

    def layers(self, net: Adapter) -> dict[str, Layer]:
        return {**layers_in_blocks(net, self.written), HEAD: self._head(net)}

    def top_credit(self, trace: Trace) -> Tensor:
        self._check_head(trace)
        credit = trace.error @ self.feedback(HEAD, self._head(trace.net)).to(trace.error)
        if trace.net.out_ln is None:
            return credit
        with torch.enable_grad():
            h = trace.states[-1].detach().requires_grad_()
            (credit,) = torch.autograd.grad(trace.net.normed(h), h, credit)
        return credit

    def senders(self, net: Adapter) -> Mapping[str, Sender]:
        """Each layer of the blocks sends its credit down by B."""

        def sender(path: str, layer: Layer) -> Sender:
            return lambda delta, x: transposed(layer, self.feedback(path, layer), delta, x)

        return {path: sender(path, layer) for path, layer in layers_in_blocks(net, self.written).items()}

    def _head(self, net: Adapter) -> nn.Linear:
        if not isinstance(net.head, nn.Linear):
            raise NotApplicable(
                f"{self.written} needs the head to be one nn.Linear.", "Name it: head='classifier'."
            )
        return net.head

    def _check_head(self, trace: Trace) -> None:
        """B_o is carried through the terminal norm alone: nothing else may lie above h_L."""
        if trace.wiring == "probe" and not trace.sequential:  # a training pass needs no second look
            self._refuse_head()

    def _refuse_head(self) -> None:
        raise NotApplicable(
            f"{self.written} needs logits = head(out_ln(h_L)), and this model does more.",
            "Name the terminal norm with out_ln=…, if there is one.",
        )


def key_of(path: str) -> str:
    """A buffer's name for a layer's path."""
    return "feedback_" + path.replace(".", "_")


def drawn_like_weight(layer: Layer, generator: torch.Generator) -> Tensor:
    """Uniform in ±1/√fan_in, as torch draws an initial weight or kernel."""
    drawn = torch.rand(layer.weight.shape, generator=generator, dtype=torch.float64)
    return ((2 * drawn - 1) * fan_in(layer) ** -0.5).to(layer.weight)


def fan_in(layer: Layer) -> int:
    """How many numbers one output is a weighted sum of."""
    return layer.weight[0].numel()
