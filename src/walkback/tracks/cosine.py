"""Track "cosine": walkback's cosine does not depend on the scale of what it compares."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from walkback.measure.rows import row_cosines
from walkback.tracks import Control, Decision, IdentityGate, Lab, Track

track = Track(
    id="cosine",
    name="Cosine without a clamp",
    claim="The cosine of a credit and a reference is the same at any scale that a float32 can hold.",
    purpose="A library cosine divides by max(‖g‖, 1e-8): below that a true .6 reads .03.",
    limits="Vectors of one width with known cosines; which cosine a paper computed is not in its numbers.",
    improve="Denormal references below 1e-38 lose digits before any cosine sees them.",
    arms={"known": "pairs made to have a given cosine", "read": "what walkback reads of them, scaled"},
    gates=(
        IdentityGate("spread", "Range of the true cosines", at_least=1.5),
        IdentityGate("dead", "Share of zero rows that are left out and counted", at_least=1.0),
    ),
    decisions=(
        Decision("worst", "Largest difference between cosine read and cosine made", at_most=1e-5),
        Decision("scales", "Orders of magnitude between the smallest and largest scale", at_least=60),
    ),
    controls=(
        Control("clamped", "a library cosine with its clamp is used"),
        Control("no rescaling", "rows are not divided by their largest entry first"),
        Control("dead rows count", "rows of zeros are given a cosine"),
        Control("one scale", "nothing is ever scaled"),
        Control("one cosine", "all pairs are orthogonal, so that a cosine that reads 0 is right"),
    ),
    level={"quick": "directional", "full": "conclusive"},
    quick={"rows": 200, "width": 64},
    full={"rows": 5000, "width": 256},
)


@track.experiment
def read_scaled(lab: Lab) -> None:
    """Pairs of float32 rows with cosines from −1 to 1; one of each is scaled by 1e-36 to 1e36; both a few
    zero rows. The cosine read is compared with the cosine made, at every scale.
    """
    rows, width = lab.settings["rows"], lab.settings["width"]
    generator = lab.generator("pairs")
    first, other = (torch.randn(rows, width, generator=generator, dtype=torch.float64) for _ in range(2))
    first, made = first / first.norm(dim=1, keepdim=True), torch.linspace(-1, 1, rows).double()
    made = 0 * made if lab.under("one cosine") else made
    other = other - (other * first).sum(1, keepdim=True) * first
    other = other / other.norm(dim=1, keepdim=True)
    second = made[:, None] * first + (1 - made**2).sqrt()[:, None] * other
    lab.report("spread", float(made.max() - made.min()))
    dead = torch.cat([torch.zeros(5, width), second[:5].float()])
    counted = _read(lab, dead, torch.cat([second[:5].float(), torch.zeros(5, width)]))[1]
    lab.report("dead", 1.0 - float(counted.double().mean()))
    exponents = [0] if lab.under("one scale") else list(range(-36, 37, 6))
    worst = 0.0
    for exponent in exponents:
        read, valid = _read(lab, first.float(), (second * 10.0**exponent).float())
        off = float((read - made[valid]).abs().max()) if len(read) == rows else float("inf")
        lab.row(scale=f"1e{exponent:+03d}", rows=int(valid.sum()), off=off)
        worst = max(worst, off if off == off else float("inf"))
    lab.report("worst", worst)
    lab.report("scales", max(exponents) - min(exponents))
    lab.tell(
        difference=f"No cosine is off by more than {worst:.1e}, at {len(exponents)} scales.",
        interpretation="What the cosine says about direction is not mixed with how large the vectors are.",
    )


def _read(lab: Lab, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    every = torch.ones(len(a), dtype=torch.bool)
    if lab.under("clamped"):
        finite = (a.norm(dim=1) > 0) & (b.norm(dim=1) > 0)
        return cosine_similarity(a, b, dim=1, eps=1e-8)[finite].double(), finite
    if lab.under("no rescaling"):
        cosines = ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).double()
        return cosines.nan_to_num(), (a != 0).any(1) & (b != 0).any(1)
    cosines, valid = row_cosines(a, b)
    if lab.under("dead rows count"):
        filled = torch.ones(len(a), dtype=torch.float64)
        filled[valid] = cosines
        return filled, every
    return cosines, valid
