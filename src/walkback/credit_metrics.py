"""Credit metrics for anyone's vectors: cosine without a clamp, nudging, perturbation correlation.

They need no model of walkback's: tensors with one row per sample, and for the last two a function that
maps a state to the loss of every row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from walkback.core.errors import BadInput
from walkback.measure.directions import FixedStep as FixedStep
from walkback.measure.directions import Nudge as Nudge
from walkback.measure.directions import Perturbation as Perturbation
from walkback.measure.directions import fixed_step_correlation as fixed_step_correlation
from walkback.measure.directions import nudge as nudge
from walkback.measure.directions import perturbation_correlation as perturbation_correlation
from walkback.measure.directions import stable_losses as stable_losses
from walkback.measure.rows import CLAMP, clamped_cosines, row_cosines


@dataclass(frozen=True)
class Cosine:
    """Over valid rows; `compat` is the clamped library cosine, `n_valid` of `n` rows had a direction."""

    mean: float
    median: float
    sd: float
    compat: float
    n_valid: int
    n: int


def cosine(a: Tensor, g: Tensor) -> Cosine:
    """cos(a_i, g_i) for each row, exact at any scale; zero and non-finite rows are left out and counted."""
    if a.shape != g.shape or a.dim() < 2:
        raise BadInput(f"Credits {tuple(a.shape)} and gradients {tuple(g.shape)} must both be [rows, …].")
    a, g = a.flatten(1), g.flatten(1)
    values, valid = row_cosines(a, g)
    known = len(values)
    return Cosine(
        mean=float(values.mean()) if known else math.nan,
        median=float(values.quantile(0.5)) if known else math.nan,
        sd=float(values.std()) if known > 1 else math.nan,
        compat=float(clamped_cosines(a, g).mean()),
        n_valid=int(valid.sum()),
        n=len(a),
    )


def corrected(read: float, reference_norm: float) -> float:
    """A published clamped cosine brought back: `read · max(1, 1e-8/‖g‖)`, for the norm it was read at.

    It undoes the clamp on the reference alone, and cannot restore digits that were not printed.
    """
    if not reference_norm > 0:
        raise BadInput(f"The reference norm must be positive, not {reference_norm}.")
    return read * max(1.0, CLAMP / reference_norm)
