"""What is measured, by versioned id, and the long table that holds the readings.

NaN is never zero: a reading that is not a plain number says so in its status.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from walkback.core.errors import CorruptBundle

if TYPE_CHECKING:
    import pandas as pd

STATUSES = ("ok", "nan", "inf", "below_floor", "not_applicable")
SETTLED_BELOW = 0.05  # the residual up to which states count as settled; few-step solvers leave above 0.3


class Quantity(NamedTuple):
    """One measured thing. `per_layer` readings carry a layer index: 0 = stem output, L = deepest."""

    id: str
    meaning: str
    per_layer: bool = False


QUANTITIES = {
    quantity.id: quantity
    for quantity in (
        Quantity("accuracy.test@1", "share of the test split that is classified correctly"),
        Quantity("accuracy.validation@1", "the same on the rows held out of training to choose a rate"),
        Quantity("loss.test@1", "mean cross-entropy on the test split"),
        Quantity("loss.train@1", "mean cross-entropy over the epoch's training batches"),
        Quantity("scale.state_norm@1", "median over rows of ‖h_l‖", True),
        Quantity("scale.growth@1", "median over rows of RMS(h_l) / RMS(h_{l−1}); layer l ≥ 1", True),
        Quantity("scale.growth_max@1", "largest growth of one block: what D1 judges"),
        Quantity("scale.growth_total@1", "median over rows of RMS(h_L) / RMS(h_0)"),
        Quantity("scale.mean_part@1", "median share of ‖h_L‖ in its feature mean, removed by LN"),
        Quantity("reference.norm@1", "median over rows of ‖g_l‖, sum-reduced loss", True),
        Quantity("reference.error_norm@1", "median over rows of ‖e‖, e = softmax − onehot"),
        Quantity(
            "reference.n_valid@1", "rows whose error e is not zero: those that validity is taken over"
        ),
        Quantity("reference.validity@1", "median ‖g_L‖/‖e‖ brought to a batch of 128: what D2 judges"),
        Quantity("reference.compat@1", "median ‖g_L‖ of the mean-reduced loss: the paper's D2"),
        Quantity("reference.unit_probe@1", "factor the 1e-8 clamp puts on a conventional cosine at L"),
        Quantity(
            "reference.float64_relerr@1",
            "median relative error of g_L in float32 vs float64, at epochs with a checkpoint",
        ),
        Quantity("alignment.cosine@1", "mean over valid rows of cos(a_l, g_l), no clamp", True),
        Quantity("alignment.cosine_median@1", "median over valid rows of cos(a_l, g_l)", True),
        Quantity("alignment.cosine_sd@1", "standard deviation over valid rows of cos(a_l, g_l)", True),
        Quantity("alignment.n_valid@1", "rows with finite, non-zero credit and reference", True),
        Quantity("alignment.cosine_compat@1", "the same cosine as a clamped library gives it", True),
        Quantity("alignment.parameter_cosine@1", "cos of the rule's and backprop's batch gradients", True),
        Quantity("alignment.stability@1", "cos of the mean credits of two disjoint halves", True),
        Quantity(
            "alignment.null_mean@1",
            "mean cosine under the null (fresh B, or shuffled samples where B is learned or reaches none)",
            True,
        ),
        Quantity("alignment.null_sd@1", "standard deviation of the mean cosine under the null", True),
        Quantity("alignment.null_p@1", "two-sided rank p of the observed cosine under the null", True),
        Quantity("alignment.null_z@1", "observed cosine in standard deviations of the null", True),
        Quantity("alignment.null_draws@1", "how many draws the null has"),
        Quantity("alignment.deep_null_mean@1", "mean of the deep cosine under the null"),
        Quantity("alignment.deep_null_sd@1", "standard deviation of the deep cosine under the null"),
        Quantity("alignment.deep_null20_mean@1", "the same mean over the first 20 draws: the FA paper's n"),
        Quantity("alignment.deep_null20_sd@1", "the same deviation over the first 20 draws"),
        Quantity("alignment.deep_null_p@1", "two-sided rank p of the deep cosine under the null"),
        Quantity("alignment.deep_null_z@1", "deep cosine in standard deviations of the null"),
        Quantity("nudge.ratio@1", "ν: loss change along −a over that along −g; backprop = 1", True),
        Quantity("nudge.band_mean@1", "mean ν of random directions: what counts as zero", True),
        Quantity("nudge.band_sd@1", "standard deviation of ν over random directions", True),
        Quantity("nudge.eta@1", "relative step that was used", True),
        Quantity("perturbation.rho@1", "correlation of ⟨a, v⟩ with the loss change along v", True),
        Quantity("perturbation.rho_spearman@1", "the same, of ranks", True),
        Quantity("perturbation.ceiling@1", "the same for the exact gradient: what ρ can reach here", True),
        Quantity("perturbation.se@1", "standard error of ρ over rows", True),
        Quantity("perturbation.n_valid@1", "rows over which ρ was averaged", True),
        Quantity(
            "perturbation.rho_compat@1", "ρ by a step of 1e-3 whatever ‖h‖, along the same directions", True
        ),
        Quantity("perturbation.ceiling_compat@1", "its ceiling: the exact gradient by that step", True),
        Quantity(
            "perturbation.moved_compat@1", "rows whose loss that step moves at all; others read 0", True
        ),
        Quantity("alignment.deep_cosine@1", "mean of the per-layer cosines over l ≥ 1"),
        Quantity("alignment.gamma_mean@1", "Γ: mean of the clamped cosines over l = 0…L"),
        Quantity("alignment.gamma_concat@1", "Γ: clamped cosine of the layers laid end to end"),
        Quantity("settling.residual@1", "how far from rest a rule that settles had stopped; 0 at rest"),
    )
}


class Reading(NamedTuple):
    epoch: int
    layer: int | None
    quantity: str
    value: float
    status: str

    @property
    def number(self) -> float | None:
        """The value if it can be compared with a threshold (inf can, NaN cannot), else None."""
        return self.value if self.status in ("ok", "below_floor", "inf") else None


def gap(reading: Reading | None) -> str:
    """Why there is no number: never taken, without meaning here, or not a number. Empty if there is one."""
    if reading is None:
        return "not measured"
    if reading.number is not None:
        return ""
    return "not a number" if reading.status == "nan" else "not applicable"


def status_of(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if math.isinf(value) else "ok"


@dataclass
class Measurements:
    """The readings of one run, in the order they were made."""

    readings: list[Reading] = field(default_factory=list)
    _indexed: tuple[int, int] | None = field(default=None, init=False, repr=False, compare=False)

    def add(
        self, epoch: int, quantity: str, value: float, layer: int | None = None, status: str = ""
    ) -> None:
        known = QUANTITIES[quantity]
        assert known.per_layer == (layer is not None), quantity
        status = status or status_of(value)
        assert status in STATUSES, status
        self.readings.append(Reading(epoch, layer, quantity, float(value), status))

    def __iter__(self) -> Iterator[Reading]:
        return iter(self.readings)

    def __len__(self) -> int:
        return len(self.readings)

    @property
    def epochs(self) -> list[int]:
        return sorted({reading.epoch for reading in self.readings})

    def get(self, quantity: str, epoch: int, layer: int | None = None) -> Reading | None:
        """The reading, or None if it was never taken."""
        return self._index().get((epoch, layer, QUANTITIES[quantity].id))

    def _index(self) -> dict[tuple[int, int | None, str], Reading]:
        """Readings by epoch, layer and quantity; the first counts. Built anew after a change."""
        state = (id(self.readings), len(self.readings))
        if self._indexed != state:
            self._by_key = {(r.epoch, r.layer, r.quantity): r for r in reversed(self.readings)}
            self._layers: dict[int, set[int]] = {}
            for epoch, layer, _ in self._by_key:
                if layer is not None:
                    self._layers.setdefault(epoch, set()).add(layer)
            self._indexed = state
        return self._by_key

    def number(self, quantity: str, epoch: int, layer: int | None = None) -> float | None:
        reading = self.get(quantity, epoch, layer)
        return None if reading is None else reading.number

    def value(self, quantity: str, epoch: int, layer: int | None = None) -> float | None:
        """The number; NaN if it was measured and is not a number, None if there is none."""
        reading = self.get(quantity, epoch, layer)
        return math.nan if gap(reading) == "not a number" else self.number(quantity, epoch, layer)

    def layers(self, epoch: int) -> list[int]:
        self._index()
        return sorted(self._layers.get(epoch, ()))

    def to_csv(self) -> str:
        """Deterministic text; `repr` of a float reads back as the same float."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("epoch", "layer", "quantity", "value", "status"))
        for epoch, layer, quantity, value, status in self.readings:
            shown = "" if math.isnan(value) else repr(value)
            writer.writerow((epoch, "" if layer is None else layer, quantity, shown, status))
        return out.getvalue()

    @classmethod
    def from_csv(cls, text: str) -> Measurements:
        try:
            return cls(list(_read_rows(text)))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptBundle(f"The measurement table cannot be read: {error}.") from None

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.readings, columns=list(Reading._fields))


@lru_cache(maxsize=128)  # judging a store looks at each run as itself, as a baseline and as a control
def _read_rows(text: str) -> tuple[Reading, ...]:
    return tuple(_read_row(row) for row in csv.DictReader(io.StringIO(text)))


def _read_row(row: dict[str, str]) -> Reading:
    value = float(row["value"]) if row["value"] else math.nan
    layer = int(row["layer"]) if row["layer"] else None
    return Reading(int(row["epoch"]), layer, row["quantity"], value, row["status"])


def join(tables: Iterable[Measurements]) -> Measurements:
    return Measurements([reading for table in tables for reading in table])
