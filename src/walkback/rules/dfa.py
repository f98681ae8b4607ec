"""Direct feedback alignment: the output error reaches every block through its own random matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.core.errors import NotApplicable
from walkback.nets.trace import Trace
from walkback.rules.base import Rule


class DFA(Rule):
    """`a_l = B_lᵀ e` with `B_l` of shape [classes, width], N(0, 1)/√classes.

    Block form: the credit arrives at a block's output and takes the exact chain inside the block; the
    skip connection is cut, so no block sees another's credit. For token-shaped states with one label
    per sample every token receives the same credit (broadcast).
    """

    name = "dfa"
    citation = "Nøkland 2016, arXiv:1609.01596"
    about = "e broadcast to every block by a fixed random matrix"
    ours = "the literature does not name its variants; form=block, skip=cut is the FA paper's"
    wiring = "cut"
    has_feedback = True
    defaults = {"form": "block", "skip": "cut"}  # noqa: RUF012
    choices = {"form": ("block",), "skip": ("cut",)}  # noqa: RUF012

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        classes = trace.logits.shape[-1]
        for layer, h in enumerate(trace.states):
            drawn = torch.randn(classes, _width(h, trace), generator=generator, dtype=torch.float64)
            self.register_buffer(f"feedback_{layer}", (drawn / classes**0.5).to(h))

    def credits(self, trace: Trace) -> list[Tensor]:
        return [self._credit(layer, trace) for layer in range(trace.depth + 1)]

    def _credit(self, layer: int, trace: Trace) -> Tensor:
        h, feedback = trace.states[layer], self.get_buffer(f"feedback_{layer}")
        credit = trace.error.to(feedback) @ feedback
        between = h.dim() - credit.dim()
        return credit.reshape(len(h), *[1] * between, -1).expand_as(h).to(h) if between else credit.to(h)


def _width(h: Tensor, trace: Trace) -> int:
    if h.dim() < 2 or (h.dim() > 3 and not trace.per_token):
        raise NotApplicable(
            f"dfa has no feedback for a state of shape {tuple(h.shape)}.",
            "It handles [batch, width] and [batch, tokens, width].",
        )
    return h.shape[-1]
