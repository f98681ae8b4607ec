"""Feedback alignment: fixed random matrices where backprop transports by transposed weights."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.core.spec import Value
from walkback.nets.trace import Trace
from walkback.rules.base import Rule
from walkback.rules.broadcast import feature_width, to_state
from walkback.rules.patching import Layer
from walkback.rules.transport import LayerTransport, drawn_like_weight, key_of


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
    """`a_L = B_Lᵀ e`, `a_l = B_lᵀ a_{l+1}`, N(0, 1)/√width; no skip term, exact chain inside a block.

    Tokens and positions of a map all receive the same credit (broadcast), so one vector per row is sent
    from block to block, whatever the sizes of their states.
    """

    wiring = "cut"
    reads_states = False

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        widths = [feature_width(h, trace, self.name) for h in trace.states]
        above = [*widths[1:], trace.logits.shape[-1]]
        for layer, (h, width, source) in enumerate(zip(trace.states, widths, above, strict=True)):
            drawn = torch.randn(source, width, generator=generator, dtype=torch.float64)
            self.register_buffer(f"feedback_{layer}", (drawn / widths[layer] ** 0.5).to(h))

    def credits(self, trace: Trace) -> list[Tensor]:
        sent = trace.error
        credits: list[Tensor] = []
        for layer in range(trace.depth, -1, -1):
            sent = sent @ self._feedback(layer)
            credits.insert(0, to_state(sent, trace.states[layer]))
        return credits

    def _feedback(self, layer: int) -> Tensor:
        return self.get_buffer(f"feedback_{layer}")


class LayerFA(LayerTransport, FA):
    """Every Linear or convolution in the blocks, and the head, sends its credit by a fixed random `Bᵀ`.

    B is drawn like torch's initial W: uniform in ±1/√fan_in.
    """

    written = "fa(form=layer)"

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        super().setup(trace, generator)
        for path, layer in self.layers(trace.net).items():
            self.register_buffer(key_of(path), drawn_like_weight(layer, generator))

    def feedback(self, path: str, layer: Layer) -> Tensor:
        return self.get_buffer(key_of(path))
