"""Weight mirror: feedback that learns the weights by sending noise through them."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.nets.trace import Trace
from walkback.rules.patching import Layer
from walkback.rules.transport import LayerTransport, drawn_like_weight, fan_in, key_of


class WeightMirror(LayerTransport):
    """Before every step of the weights each layer is given noise ξ, and `B ← (1 − λ)B + η·mean (Wξ)ξᵀ`.

    E[(Wξ)ξᵀ] = W for unit noise, so B turns towards W; then B is rescaled in place to W's norm, which
    keeps credit at its size without changing a direction.
    """

    name = "weight-mirror"
    citation = "Akrout et al. 2019, arXiv:1904.05391"
    about = "feedback that is learned from noise sent through each layer"
    ours = (
        "a mirror phase before every step of the weights, on each layer alone, for kernels on patches of "
        "noise; rescaled to the norm of W"
    )
    has_feedback = True
    learns_feedback = True
    defaults = {"rate": 0.1, "decay": 0.1, "samples": 32}  # noqa: RUF012
    written = "weight-mirror"

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        super().setup(trace, generator)
        for path, layer in self.layers(trace.net).items():
            self.register_buffer(key_of(path), drawn_like_weight(layer, generator))

    def feedback(self, path: str, layer: Layer) -> Tensor:
        return self.get_buffer(key_of(path))

    @torch.no_grad()
    def learn(self, trace: Trace) -> None:
        """The mirror phase; its noise comes from torch's own stream, which training seeds each epoch."""
        rate, decay = float(self.params["rate"]), float(self.params["decay"])
        samples = int(self.params["samples"])
        for path, layer in self.layers(trace.net).items():
            weight, feedback = layer.weight.flatten(1), self.get_buffer(key_of(path)).flatten(1)
            noise = torch.randn(samples, fan_in(layer), dtype=weight.dtype).to(weight.device)
            feedback.mul_(1 - decay).addmm_((noise @ weight.T).T, noise, alpha=rate / samples)
            feedback.mul_(weight.norm() / feedback.norm().clamp_min(1e-30))
