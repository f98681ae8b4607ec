"""How a projection of the error reaches states of any shape: one vector per row, the same everywhere.

A dense matrix from the error to a map would have C·H·W columns, so the default is to broadcast: one credit
per channel of a map, or per feature of a token, given to every position. It is not divided by the number
of positions, for tokens as for maps (ours): a cosine does not see the factor, nor does Adam up to its eps.
A state of four axes is taken to be [batch, channels, height, width].
"""

from __future__ import annotations

from torch import Tensor

from walkback.core.errors import NotApplicable
from walkback.nets.trace import Trace, feature_axis


def feature_width(h: Tensor, trace: Trace, rule: str) -> int:
    """How many features a feedback matrix must reach: those of a row, a token, or a map's channels."""
    if trace.per_token or h.dim() in (2, 3, 4):
        return h.shape[feature_axis(h, trace.per_token)]
    raise NotApplicable(
        f"{rule} has no feedback for a state of shape {tuple(h.shape)}.",
        "It handles [batch, width], [batch, tokens, width] and [batch, channels, height, width].",
    )


def to_state(projected: Tensor, h: Tensor) -> Tensor:
    """A credit per row in the shape of the state: every token or position of a sample receives the same."""
    if projected.dim() == 2 and h.dim() == 4:
        return projected[:, :, None, None].expand_as(h).to(h)
    return to_features(projected, h)


def to_features(projected: Tensor, x: Tensor) -> Tensor:
    """The same where the features are always the last axis, as at the input of a Linear."""
    rows, between = projected.shape[:-1], x.dim() - projected.dim()
    return projected.reshape(*rows, *[1] * between, -1).expand_as(x).to(x)
