"""Row norms and cosines that do not depend on scale: what the clamp of a library cosine would hide."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CLAMP = 1e-8  # torch's and most libraries' floor on a norm in a cosine


def exact(tensor: Tensor) -> Tensor:
    """The same numbers in float64 on the CPU, where every measurement is made (MPS has no float64)."""
    return tensor.detach().cpu().double()


class ScaledRows(NamedTuple):
    """Rows of any scale: each divided by its largest entry, that entry, and how long what is left is.

    Zero rows stay zero, non-finite ones so: neither has a direction.
    """

    unit: Float[Tensor, "rows features"]
    largest: Float[Tensor, " rows"]
    length: Float[Tensor, " rows"]

    @classmethod
    def of(cls, rows: Float[Tensor, "rows features"]) -> ScaledRows:
        largest = rows.abs().amax(dim=1)
        unit = rows / torch.where(largest > 0, largest, 1.0).unsqueeze(1)
        return cls(unit, largest, torch.linalg.vector_norm(unit, dim=1))

    @property
    def norms(self) -> Float[Tensor, " rows"]:
        return self.length * self.largest

    @property
    def directed(self) -> Bool[Tensor, " rows"]:
        """Which rows have a direction."""
        return torch.isfinite(self.largest) & (self.largest > 0)

    def cosines(self, other: ScaledRows) -> tuple[Float[Tensor, " valid"], Bool[Tensor, " rows"]]:
        """cos of the rows that have a direction in both, and which those are."""
        valid = self.directed & other.directed
        along = torch.linalg.vecdot(self.unit, other.unit)
        return along[valid] / (self.length * other.length)[valid], valid


def row_norms(rows: Float[Tensor, "rows features"]) -> Float[Tensor, " rows"]:
    """‖row‖ without overflow or underflow: scaled by the largest entry first."""
    return ScaledRows.of(rows).norms


def row_cosines(
    a: Float[Tensor, "rows features"], b: Float[Tensor, "rows features"]
) -> tuple[Float[Tensor, " valid"], Bool[Tensor, " rows"]]:
    """cos(a_i, b_i) of the valid rows, and which those are.

    Each row is divided by its largest entry before the dot product, so the result is the same for
    rows of any scale a float can hold. Zero and non-finite rows have no direction: they are left out,
    and counted by the caller.
    """
    return ScaledRows.of(exact(a)).cosines(ScaledRows.of(exact(b)))


def clamped_cosines(
    a: Float[Tensor, "rows features"], b: Float[Tensor, "rows features"]
) -> Float[Tensor, " rows"]:
    """What a conventional measurement reports: float32, norms clamped at 1e-8, zeros scored 0."""
    a, b = a.detach().cpu().float(), b.detach().cpu().float()
    return torch.nn.functional.cosine_similarity(a, b, dim=1, eps=CLAMP)


def correct_rows(
    logits: Float[Tensor, "*rows classes"], labels: Int[Tensor, "*rows"]
) -> Bool[Tensor, "*rows"]:
    """Which rows are classified correctly. NaN or +∞ among the logits never is; −∞ rules a class out."""
    return (logits.detach().argmax(-1) == labels) & answered_rows(logits)


def answered_rows(logits: Float[Tensor, "*rows classes"]) -> Bool[Tensor, "*rows"]:
    """Which rows answer at all: the largest logit is a number, so that none is NaN or +∞."""
    return torch.isfinite(logits.detach().amax(-1))
