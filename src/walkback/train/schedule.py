"""Learning-rate schedules, as plain functions of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Callable

from walkback.core.registry import Registry

Schedule = Callable[[int, int], float]


def constant(step: int, steps: int) -> float:
    return 1.0


def cosine(step: int, steps: int) -> float:
    """From 1 at the first step to 0 after the last, without warm-up or restarts."""
    return 0.5 * (1 + math.cos(math.pi * step / steps))


schedules: Registry[Schedule] = Registry(
    "schedule",
    {
        "constant": "walkback.train.schedule:constant",
        "cosine": "walkback.train.schedule:cosine",
    },
)
