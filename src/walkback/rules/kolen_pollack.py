"""Kolen–Pollack: feedback that receives the weights' own increments, and so forgets how it began."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace
from walkback.rules.patching import Layer
from walkback.rules.transport import LayerTransport, drawn_like_weight, key_of


class KolenPollack(LayerTransport):
    """Layer FA whose B is trained beside W: the same gradient, the same optimizer, the same decay.

    With AdamW B has moments of its own, fed with the same dW, so both move alike and the decay alone
    tells them apart: `W − B` shrinks by Π(1 − lr·decay), to rounding. Without decay it never shrinks.
    """

    name = "kolen-pollack"
    citation = "Kolen & Pollack 1994; Akrout et al. 2019, arXiv:1904.05391"
    about = "feedback that gets the same increments and decay as the weights"
    ours = "B's own AdamW moments, fed with W's gradient"
    has_feedback = True
    learns_feedback = True
    written = "kolen-pollack"

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        super().setup(trace, generator)
        for path, layer in self.layers(trace.net).items():
            self.register_parameter(key_of(path), nn.Parameter(drawn_like_weight(layer, generator)))

    def feedback(self, path: str, layer: Layer) -> Tensor:
        return self.get_parameter(key_of(path)).detach()

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        own = {key_of(path): self.get_parameter(key_of(path)) for path in self.layers(net)}
        return {**super().trained(net), **own}

    def learn(self, trace: Trace) -> None:
        for path, layer in self.layers(trace.net).items():
            gradient = layer.weight.grad
            self.get_parameter(key_of(path)).grad = None if gradient is None else gradient.clone()
