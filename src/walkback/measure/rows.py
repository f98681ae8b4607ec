"""Row norms and cosines that do not depend on scale: what the clamp of a library cosine would hide."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CLAMP = 1e-8  # torch's and most libraries' floor on a norm in a cosine


def exact(tensor: Tensor) -> Tensor:
    """The same numbers in float64 on the CPU, where every measurement is made (MPS has no float64)."""
    return tensor.detach().cpu().double()


def row_norms(rows: Float[Tensor, "rows features"]) -> Float[Tensor, " rows"]:
    """‖row‖ without overflow or underflow: scaled by the largest entry first."""
    unit, largest = _unit(rows)
    return torch.linalg.vector_norm(unit, dim=1) * largest


def row_cosines(
    a: Float[Tensor, "rows features"], b: Float[Tensor, "rows features"]
) -> tuple[Float[Tensor, " valid"], Bool[Tensor, " rows"]]:
    """cos(a_i, b_i) of the valid rows, and which those are.

    Each row is divided by its largest entry before the dot product, so the result is the same for
    rows of any scale a float can hold. Zero and non-finite rows have no direction: they are left out,
    and counted by the caller.
    """
    (a, size_a), (b, size_b) = _unit(exact(a)), _unit(exact(b))
    valid = _is_size(size_a) & _is_size(size_b)
    norms = torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1)
    return torch.linalg.vecdot(a, b)[valid] / norms[valid], valid


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
    logits = logits.detach()
    return (logits.argmax(-1) == labels) & torch.isfinite(logits.amax(-1))


def _is_size(largest: Tensor) -> Tensor:
    """Whether a row with this largest entry has a direction."""
    return torch.isfinite(largest) & (largest > 0)


def _unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by their largest entry, and that entry; zero rows stay zero, non-finite ones so."""
    largest = rows.abs().amax(dim=1)
    return rows / torch.where(largest > 0, largest, 1.0).unsqueeze(1), largest
