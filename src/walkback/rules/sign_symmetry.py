"""Sign symmetry: the feedback shares the signs of the weights, not their sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.nets.trace import Trace
from walkback.rules.base import repeatable
from walkback.rules.patching import Layer
from walkback.rules.transport import LayerTransport, drawn_like_weight, fan_in, key_of


class SignSymmetry(LayerTransport):
    """`form=usf`: `B = s·sign(W)`, s the mean of |W|. `form=frsf`: `B = |R|∘sign(W)`, R fixed.
    `form=brsf`: the same with R drawn anew at every use.

    R is drawn like torch's initial W. Signs follow the weights as they change.
    """

    name = "sign-symmetry"
    citation = "Liao, Leibo & Poggio 2016, arXiv:1510.05067; Moskovitz et al. 2018, arXiv:1812.06488"
    about = "backprop with the signs of the weights and other sizes"
    ours = "R is drawn uniformly, like torch's initial weights; in brsf at every use, not once a batch"
    has_feedback = False  # with other sizes the signs would still be the weights': no null
    defaults = {"form": "usf"}  # noqa: RUF012
    choices = {"form": ("usf", "brsf", "frsf")}  # noqa: RUF012
    written = "sign-symmetry"

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        super().setup(trace, generator)
        if self.params["form"] == "frsf":
            for path, layer in self.layers(trace.net).items():
                self.register_buffer(key_of(path), drawn_like_weight(layer, generator).abs())

    @property
    def ready(self) -> bool:
        return self.params["form"] != "frsf" or any(True for _ in self.buffers())

    def credits(self, trace: Trace) -> list[Tensor]:
        """The same draw whenever a checkpoint is measured, so that a measurement can be repeated."""
        with repeatable(self.name):
            return super().credits(trace)

    def feedback(self, path: str, layer: Layer) -> Tensor:
        weight = layer.weight.detach()
        if self.params["form"] == "usf":
            return weight.abs().mean() * weight.sign()
        if self.params["form"] == "frsf":
            return self.get_buffer(key_of(path)) * weight.sign()
        drawn = torch.rand(weight.shape, dtype=weight.dtype).to(weight.device)
        return drawn * fan_in(layer) ** -0.5 * weight.sign()
