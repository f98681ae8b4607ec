"""What a credit does to the loss: nudging along it, and correlating it with random perturbations.

Both use steps *relative* to the size of the state. With a fixed step the exact gradient itself scores
nothing once states are large: the loss difference drowns in float32 rounding. That reading is here too,
to be held against published numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int
from scipy.stats import rankdata
from torch import Tensor

from walkback.core.errors import BadInput
from walkback.measure.rows import exact, row_norms

Losses = Callable[[Tensor], Float[Tensor, " rows"]]  # a state → the loss of each row
HALVINGS = 5
AT_ONCE = 4  # perturbed copies of the batch that are evaluated together


@dataclass(frozen=True)
class Nudge:
    """ν = Δ(a)/Δ(g): 1 for the gradient itself, 0 within `band_mean ± band_sd` for random directions."""

    ratio: float
    band_mean: float
    band_sd: float
    eta: float
    n_valid: int

    @classmethod
    def not_applicable(cls) -> Nudge:
        return cls(math.nan, math.nan, math.nan, math.nan, 0)


def nudge(
    losses: Losses,
    h: Tensor,
    a: Tensor,
    g: Tensor,
    generator: torch.Generator,
    *,
    eta: float = 1e-2,
    directions: int = 20,
) -> Nudge:
    """How much of the gradient's own gain a step along −a brings.

    `Δ(u) = mean_i ½[Φ(h − η‖h_i‖u_i) − Φ(h + η‖h_i‖u_i)]` with unit rows u. If even −g does not lower
    the loss, η is halved up to five times, and then the test is not applicable.
    """
    check_alike(h, a, g)
    valid = has_direction(a) & has_direction(g)
    if not bool(valid.any()):
        return Nudge.not_applicable()
    unit_a, unit_g = unit_rows(a), unit_rows(g)
    for _ in range(HALVINGS + 1):
        best = _gain(losses, h, unit_g, eta, valid)
        if best < 0:
            break
        eta /= 2
    else:
        return Nudge.not_applicable()
    drawn = (random_unit_rows(h, generator) for _ in range(directions))
    band = torch.cat([_gains(losses, h, some, eta, valid) for some in _stacks(drawn)]) / best
    ratio = _gain(losses, h, unit_a, eta, valid) / best
    return Nudge(ratio, float(band.mean()), float(band.std()), eta, int(valid.sum()))


@dataclass(frozen=True)
class Perturbation:
    """ρ of the credit (Pearson and Spearman, mean over rows), beside ρ of the gradient: its ceiling."""

    rho: float
    rho_spearman: float
    ceiling: float
    se: float
    n_valid: int


def perturbation_correlation(
    losses: Losses,
    h: Tensor,
    a: Tensor,
    g: Tensor,
    generator: torch.Generator,
    *,
    directions: int = 32,
    epsilon: float = 1e-3,
) -> Perturbation:
    """Does ⟨a_i, v⟩ predict how the loss of row i changes along v?

    `q = Φ(h + ε‖h‖v) − Φ(h − ε‖h‖v)` for `directions` unit vectors v, drawn anew for every row; ρ is
    the correlation over directions, averaged over rows. In the linear regime it equals the cosine.
    """
    check_alike(h, a, g)
    q, p_a, p_g = _along(losses, h, a, g, epsilon * state_sizes(h), generator, directions)
    rho, ceiling = row_correlations(p_a, q), row_correlations(p_g, q)
    ranks = row_correlations(_ranks(p_a), _ranks(q))
    known = rho[~rho.isnan()]
    se = float(known.std() / len(known) ** 0.5) if len(known) > 1 else math.nan
    return Perturbation(_nanmean(rho), _nanmean(ranks), _nanmean(ceiling), se, len(known))


@dataclass(frozen=True)
class FixedStep:
    """ρ and its ceiling as a step that does not grow with ‖h‖ reads them; the rows it moves at all."""

    rho: float
    ceiling: float
    moved: int


def fixed_step_correlation(
    losses: Losses,
    h: Tensor,
    a: Tensor,
    g: Tensor,
    generator: torch.Generator,
    *,
    directions: int = 32,
    step: float = 1e-3,
) -> FixedStep:
    """The same with `q = Φ(h + step·v) − Φ(h − step·v)`: what published values of ρ may have been read by.

    A row whose loss does not move reads 0, as a correlation with a floor under its norms has it; how many
    do move stands beside.
    """
    check_alike(h, a, g)
    q, p_a, p_g = _along(losses, h, a, g, torch.as_tensor(step).to(h), generator, directions)
    moves = _varies(q)
    rho, ceiling = (
        _nanmean(row_correlations(p, q).masked_fill(_varies(p) & ~moves, 0.0)) for p in (p_a, p_g)
    )
    return FixedStep(rho, ceiling, int((moves & q.isfinite().all(0)).sum()))


def _along(
    losses: Losses,
    h: Tensor,
    a: Tensor,
    g: Tensor,
    size: Tensor,
    generator: torch.Generator,
    directions: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Along unit vectors v, drawn anew for every row: the loss from −size·v to +size·v, ⟨a, v⟩, ⟨g, v⟩."""
    unit_a, unit_g = (unit_rows(exact(side)) for side in (a, g))
    expected_a, expected_g, seen = [], [], []
    for v in _stacks(random_unit_rows(h, generator) for _ in range(directions)):
        step = size * v
        seen.append(each_loss(losses, h + step) - each_loss(losses, h - step))
        expected_a.append(_row_products(unit_a, v))
        expected_g.append(_row_products(unit_g, v))
    return torch.cat(seen), torch.cat(expected_a), torch.cat(expected_g)


def check_alike(h: Tensor, a: Tensor, g: Tensor) -> None:
    """A credit of another shape would be spread over rows it was not given to."""
    if not h.shape == a.shape == g.shape:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in (("h", h), ("a", a), ("g", g)))
        raise BadInput(f"States, credits and gradients must have one shape, not {shapes}.")


def stable_losses(
    logits: Float[Tensor, "*rows classes"], labels: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """Cross-entropy as `softplus(lse_{c≠y} − z_y)`: keeps its digits where a sample is fitted."""
    index = labels.unsqueeze(-1)
    others = logits.scatter(-1, index, float("-inf")).logsumexp(-1)
    return torch.nn.functional.softplus(others - logits.gather(-1, index).squeeze(-1))


def unit_rows(tensor: Tensor) -> Tensor:
    """Each row (all axes but the first) divided by its norm, whatever its scale; zero rows stay zero."""
    rows = exact(tensor).flatten(1)
    norms = row_norms(rows).unsqueeze(1)
    unit = torch.where(norms > 0, rows / torch.where(norms > 0, norms, 1.0), 0.0)
    return unit.reshape(tensor.shape).to(tensor)


def random_unit_rows(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, dtype=like.dtype)
    norms = torch.linalg.vector_norm(drawn.flatten(1), dim=1)
    return (drawn / norms.view(-1, *[1] * (like.dim() - 1))).to(like)


def each_loss(
    losses: Losses, stack: Float[Tensor, "copies rows *features"]
) -> Float[Tensor, "copies rows"]:
    """The losses of every copy, in float64; one call for all where `losses` can (`losses.of_stack`)."""
    at_once = getattr(losses, "of_stack", None)
    return exact(at_once(stack) if at_once else torch.stack([losses(h) for h in stack]))


def state_sizes(h: Tensor) -> Tensor:
    """‖h_i‖, shaped to multiply h."""
    sizes = row_norms(exact(h).flatten(1))
    return sizes.reshape(-1, *[1] * (h.dim() - 1)).to(h)


def has_direction(tensor: Tensor) -> Tensor:
    largest = tensor.detach().flatten(1).abs().amax(1)
    return torch.isfinite(largest) & (largest > 0)


def row_correlations(
    p: Float[Tensor, "draws rows"], q: Float[Tensor, "draws rows"]
) -> Float[Tensor, " rows"]:
    """Pearson over draws for each row; NaN where either side does not vary."""
    p, q = p - p.mean(0), q - q.mean(0)
    p, q = p / p.abs().amax(0), q / q.abs().amax(0)
    return (p * q).sum(0) / (p.square().sum(0) * q.square().sum(0)).sqrt()


def _varies(values: Float[Tensor, "draws rows"]) -> Tensor:
    return (values != values[0]).any(0)


def _stacks(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """A few at a time, stacked."""
    waiting = iter(tensors)
    while some := list(islice(waiting, AT_ONCE)):
        yield torch.stack(some)


def _gain(losses: Losses, h: Tensor, unit: Tensor, eta: float, valid: Tensor) -> float:
    return float(_gains(losses, h, unit.unsqueeze(0), eta, valid))


def _gains(losses: Losses, h: Tensor, units: Tensor, eta: float, valid: Tensor) -> Tensor:
    """Δ for each of a stack of directions."""
    step = eta * state_sizes(h) * units
    change = (each_loss(losses, h - step) - each_loss(losses, h + step)) / 2
    return change[:, valid.cpu()].mean(1)


def _row_products(unit: Tensor, stack: Tensor) -> Tensor:
    """⟨unit_i, v_i⟩ of every row, for each v of a stack."""
    return (unit * exact(stack)).flatten(2).sum(2)


def _ranks(values: Tensor) -> Tensor:
    """Average ranks down each column: a row that does not vary has one rank, and no correlation."""
    return torch.from_numpy(rankdata(values.cpu().numpy(), axis=0)).double()


def _nanmean(values: Tensor) -> float:
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else math.nan
