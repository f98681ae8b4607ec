"""What the judge looks at: the measurements of one run at one epoch, and what it got right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walkback.core.errors import BadInput
from walkback.core.quantities import Measurements
from walkback.store.bundle import Bundle


@dataclass(frozen=True)
class Evidence:
    """One run. `correct` has one entry per test item; `split` says which items these are.
    `fingerprint` stands for the shapes of the net's weights: a baseline must have the same.

    `accuracy` alone is enough for a point estimate of depth utility, `correct` for an interval.
    """

    label: str
    measurements: Measurements
    epoch: int
    seed: int | None = None
    role: str = "rule"
    classes: int = 0
    accuracy: float | None = None
    correct: NDArray[np.bool_] | None = None
    sources: NDArray[np.int64] | None = None
    split: str = ""
    net: str = ""
    fingerprint: str = ""
    trained_on: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def trained(self) -> bool:
        """Whether its epochs were counted by walkback's loop; a captured model has none."""
        return self.status.get("state") in ("running", "finished", "diverged")

    def number(self, quantity: str, layer: int | None = None) -> float | None:
        return self.measurements.number(quantity, self.epoch, layer)


def evidence_of(bundle: Bundle, epoch: int | None = None) -> Evidence:
    """The evidence a bundle holds at an epoch, by default its last measured one."""
    table = bundle.measurements()
    if not table.epochs:
        raise BadInput(f"Bundle {bundle.path.name} holds no measurements yet.")
    epoch = table.epochs[-1] if epoch is None else epoch
    if epoch not in table.epochs:
        raise BadInput(f"{bundle.path.name} was not measured at epoch {epoch}.", f"It has {table.epochs}.")
    card = bundle.card
    return Evidence(
        label=card["rule"]["label"],
        measurements=table,
        epoch=epoch,
        seed=bundle.spec.get("seed"),
        role=card["rule"]["role"],
        classes=card["data"]["classes"],
        accuracy=table.number("accuracy.test@1", epoch),
        correct=bundle.correct().get(epoch),
        sources=bundle.sources(),
        split=card["data"]["split"],
        net=card["net"]["label"],
        fingerprint=card["net"]["fingerprint"],
        trained_on=card["data"]["dataset"],
        status=bundle.status,
    )
