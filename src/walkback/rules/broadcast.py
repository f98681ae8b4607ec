"""How a projection of the error reaches states of any shape: one vector per row, broadcast over tokens."""

from __future__ import annotations

from torch import Tensor

from walkback.core.errors import NotApplicable
from walkback.nets.trace import Trace


def feature_width(h: Tensor, trace: Trace, rule: str) -> int:
    """How many features a feedback matrix must reach."""
    if h.dim() < 2 or (h.dim() > 3 and not trace.per_token):
        raise NotApplicable(
            f"{rule} has no feedback for a state of shape {tuple(h.shape)}.",
            "It handles [batch, width] and [batch, tokens, width].",
        )
    return h.shape[-1]


def to_state(projected: Tensor, h: Tensor) -> Tensor:
    """A credit per row in the shape of the state: every token of a sample receives the same."""
    between = h.dim() - projected.dim()
    if not between:
        return projected.to(h)
    return projected.reshape(len(h), *[1] * between, -1).expand_as(h).to(h)
