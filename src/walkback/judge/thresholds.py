"""Every threshold of the protocol in one table, with its source and its reason; the docs render it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import SupportsFloat

from walkback.core.errors import BadInput
from walkback.core.quantities import SETTLED_BELOW


def _threshold(default: float, *, source: str, reason: str) -> float:
    return field(default=default, metadata={"source": source, "reason": reason})


@dataclass(frozen=True)
class Thresholds:
    """Where each detector fires. Change one with `Thresholds(growth=30)`."""

    growth: float = _threshold(
        50.0,
        source="FA paper, diagnostic (a)",
        reason="D1 fires above this growth of one block; backprop stays near 10 in the demo.",
    )
    validity: float = _threshold(
        1e-7,
        source="FA paper, diagnostic (b); brought to a batch of 128 (ours)",
        reason="D2 fires below ten times the 1e-8 clamp of library cosines.",
    )
    compat: float = _threshold(
        1e-7,
        source="FA paper, diagnostic (b), taken literally",
        reason="The median mean-reduced ‖g_L‖, which logic 'paper' uses; moves with batch and fit.",
    )
    depth_gain: float = _threshold(
        0.02,
        source="FA paper, diagnostic (d)",
        reason="D3 fires if trained blocks do not beat frozen random ones by two points of accuracy.",
    )
    seed_share: float = _threshold(
        2 / 3,
        source="ours",
        reason="D1 and D2 fire over several seeds if at least this share of them fires.",
    )
    alpha: float = _threshold(
        0.02,
        source="ours",
        reason="One-sided error of D3's interval, small enough to look at 3, 5 and 10 seeds.",
    )

    residual: float = _threshold(
        SETTLED_BELOW,
        source="ours",
        reason="A rule whose states stopped farther from rest than this is shown as unconverged.",
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, SupportsFloat) or not 0 < float(value) < math.inf:
                raise BadInput(f"The threshold {item.name} must be positive and finite, not {value!r}.")
        if self.alpha >= 0.5 or self.seed_share > 1:
            raise BadInput("alpha must be below 0.5 and seed_share at most 1.")

    @classmethod
    def table(cls) -> list[dict[str, str]]:
        """Rows for the docs: name, value, source, reason."""
        return [
            {"name": item.name, "value": f"{item.default:.3g}", **item.metadata} for item in fields(cls)
        ]
