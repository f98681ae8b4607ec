"""Difference target propagation: every block is given a target, made by a decoder of the block above."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.core.errors import BadInput, NotApplicable
from walkback.core.spec import Call
from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace
from walkback.rules.base import Rule, draw_weights


class DTP(Rule):
    """`t_l = h_l + G_l(t_{l+1}) − G_l(h_{l+1})`, `a_l = h_l − t_l`; G_l is a learned inverse of block l+1.

    The top target is a step of `step·‖h_L‖` against the exact gradient: relative, because under a terminal
    norm an absolute one means nothing. Credits are scaled back to that gradient's size, so that a step of
    another size gives the same learning. G_l(u) = u + a small net of LN(u), trained on h_l plus noise to
    give back what the block was given. Targets are of Gauss–Newton kind: a low cosine to backprop is no
    failure.
    """

    name = "dtp"
    citation = "Lee et al. 2015, arXiv:1412.7525; Meulemans et al. 2020, arXiv:2006.14331"
    about = "targets sent down by learned decoders; the credit is state minus target"
    ours = "residual decoders, trained at every step by the run's optimizer; credit in the gradient's size"
    wiring = "cut"
    has_feedback = True
    learns_feedback = True
    defaults = {"step": 0.1, "noise": 0.1, "width": 64}  # noqa: RUF012

    @classmethod
    def check_choices(cls, call: Call) -> None:
        super().check_choices(call)
        for key in cls.defaults:
            if not float(call.params[key]) > 0:
                raise BadInput(f"dtp needs a positive {key}, not {call.params[key]}.")

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        widths = {tuple(h.shape[1:]) for h in trace.states}
        if len(widths) != 1 or trace.states[0].dim() != 2:
            raise NotApplicable("dtp needs states of one width, as vectors: its decoders are residual.")
        width = trace.states[0].shape[1]
        like = trace.states[0]
        for layer in range(trace.depth):
            decoder = _Decoder(width, int(self.params["width"]))
            draw_weights(decoder, generator)
            self.add_module(f"decoder_{layer}", decoder.to(like.dtype).to(like.device))

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        return {**super().trained(net), **dict(self.named_parameters())}

    def credits(self, trace: Trace) -> list[Tensor]:
        states = [h.detach() for h in trace.states]
        top = trace.top_reference().detach()
        sizes = top.norm(dim=1, keepdim=True).clamp_min(torch.finfo(top.dtype).tiny)
        step = float(self.params["step"]) * states[-1].norm(dim=1, keepdim=True)
        target = states[-1] - step * top / sizes
        targets = [target]
        with torch.no_grad():
            for layer in range(trace.depth - 1, -1, -1):
                decoder = self.get_submodule(f"decoder_{layer}")
                targets.insert(0, states[layer] + decoder(targets[0]) - decoder(states[layer + 1]))
            scale = torch.where(step > 0, sizes / step, 0.0)  # a state of zeros has no step to be scaled by
            return [(h - t) * scale for h, t in zip(states, targets, strict=True)]

    def learn(self, trace: Trace) -> None:
        """Each decoder learns to undo its block on noisy states; only decoders get these gradients."""
        noise = float(self.params["noise"])
        for layer in range(trace.depth):
            h = trace.states[layer].detach()
            near = h + noise * h.square().mean().sqrt() * torch.randn_like(h)
            with torch.no_grad():
                above = trace.block(layer + 1, near)
            decoder = self.get_submodule(f"decoder_{layer}")
            with torch.enable_grad():
                scale = h.square().mean().clamp_min(1e-30)
                loss = F.mse_loss(decoder(above), near) / scale
                parameters = list(decoder.parameters())
                for parameter, gradient in zip(
                    parameters, torch.autograd.grad(loss, parameters), strict=True
                ):
                    parameter.grad = gradient


class _Decoder(nn.Module):
    """`u + W2 gelu(W1 LN(u) + b)`, near the identity at first, as a residual block's inverse is.

    A bias of W2 would cancel in every difference target.
    """

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.down = nn.Linear(width, inner)
        self.up = nn.Linear(inner, width, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        return u + self.up(F.gelu(self.down(self.ln(u))))
