"""What the judge looks at: the measurements of one run at one epoch, and what it got right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walkback.core.errors import BadInput
from walkback.core.quantities import Measurements, gap
from walkback.store.bundle import Bundle


@dataclass(frozen=True)
class Evidence:
    """One run. `correct` has one entry per test item; `split` says which items these are.
    `fingerprint` stands for the shapes of the net's weights: a baseline must have the same. `blocks`
    stands for the weights of the blocks of a captured model: a baseline must have others.

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
    blocks: str = ""
    trained_on: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rate_open: str = ""  # why its learning rate is not chosen yet

    @property
    def trained(self) -> bool:
        """Whether its epochs were counted by walkback's loop; a captured model has none."""
        return self.status.get("state") in ("running", "finished", "diverged")

    def number(self, quantity: str, layer: int | None = None) -> float | None:
        return self.measurements.number(quantity, self.epoch, layer)

    def value(self, quantity: str, layer: int | None = None) -> float | None:
        """As `number`, but NaN where it was measured and is not a number."""
        return self.measurements.value(quantity, self.epoch, layer)

    def gap(self, quantity: str) -> str:
        """Why there is no number, in words; empty if there is one."""
        return gap(self.measurements.get(quantity, self.epoch))

    def unsettled(self, most: float) -> bool:
        """Whether the rule settles states and had not; a residual that is not a number is not rest."""
        found = self.measurements.get("settling.residual@1", self.epoch)
        return found is not None and found.status != "not_applicable" and not found.value <= most


def shown_label(runs: Sequence[Evidence], most: float) -> str:
    """The rule's name for a reader: one whose states had not settled in every seed says so."""
    label = runs[0].label
    return f"{label} (unconverged)" if any(run.unsettled(most) for run in runs) else label


def evidence_of(bundle: Bundle, epoch: int | None = None) -> Evidence:
    """The evidence a bundle holds at an epoch, by default its last measured one."""
    found = evidence_by_epoch(bundle)
    epoch = max(found) if epoch is None else epoch
    if epoch not in found:
        raise BadInput(f"{bundle.path.name} was not measured at epoch {epoch}.", f"It has {sorted(found)}.")
    return found[epoch]


def evidence_by_epoch(bundle: Bundle) -> dict[int, Evidence]:
    """The evidence at every measured epoch; the bundle is read once."""
    table, correct = bundle.measurements(), bundle.correct()
    if not table.epochs:
        raise BadInput(f"Bundle {bundle.path.name} holds no measurements yet.")
    whole = _evidence(bundle, table)
    return {
        epoch: replace(
            whole,
            epoch=epoch,
            accuracy=table.number("accuracy.test@1", epoch),
            correct=correct.get(epoch),
        )
        for epoch in table.epochs
    }


def _evidence(bundle: Bundle, table: Measurements) -> Evidence:
    card = bundle.card
    return Evidence(
        label=card["rule"]["label"],
        measurements=table,
        epoch=table.epochs[-1],
        seed=bundle.spec.get("seed"),
        role=card["rule"]["role"],
        classes=card["data"]["classes"],
        sources=bundle.sources(),
        split=card["data"]["split"],
        net=card["net"]["label"],
        fingerprint=card["net"]["fingerprint"],
        blocks=card["net"].get("blocks", ""),
        trained_on=card["data"]["dataset"],
        status=bundle.status,
        notes=tuple(card.get("notes", ())),
    )
