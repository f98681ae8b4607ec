"""Weight mirror: feedback that learns the weights by sending noise through them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from walkback.nets.trace import Trace
from walkback.rules.transport import LayerTransport, drawn_like_weight, key_of


class WeightMirror(LayerTransport):
    """After every step each Linear is given noise ξ, and `B ← (1 − λ)B + η·mean (Wξ)ξᵀ`.

    E[(Wξ)ξᵀ] = W for unit noise, so B turns towards W; then B is rescaled in place to W's norm, which
    keeps credit at its size without changing a direction.
    """

    name = "weight-mirror"
    citation = "Akrout et al. 2019, arXiv:1904.05391"
    about = "feedback that is learned from noise sent through each layer"
    ours = "a mirror phase after every step, on each Linear alone; rescaling to the norm of W"
    has_feedback = True
    learns_feedback = True
    defaults = {"rate": 0.1, "decay": 0.1, "samples": 32}  # noqa: RUF012
    written = "weight-mirror"

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        for path, linear in self.linears(trace.net).items():
            self.register_buffer(key_of(path), drawn_like_weight(linear, generator))

    def feedback(self, path: str, linear: nn.Linear) -> Tensor:
        return self.get_buffer(key_of(path))

    @torch.no_grad()
    def learn(self, trace: Trace) -> None:
        """The mirror phase; its noise comes from torch's own stream, which training seeds each epoch."""
        rate, decay = float(self.params["rate"]), float(self.params["decay"])
        samples = int(self.params["samples"])
        for path, linear in self.linears(trace.net).items():
            noise = torch.randn(samples, linear.in_features, dtype=linear.weight.dtype).to(
                linear.weight.device
            )
            feedback = self.get_buffer(key_of(path))
            feedback.mul_(1 - decay).addmm_((noise @ linear.weight.T).T, noise, alpha=rate / samples)
            feedback.mul_(linear.weight.norm() / feedback.norm().clamp_min(1e-30))
