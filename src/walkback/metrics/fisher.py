"""What n rows say of a partial rank correlation, by Fisher's z: interval, equivalence to zero, power."""

from __future__ import annotations

import math
from dataclasses import dataclass

from walkback.core.errors import BadInput
from walkback.metrics.canon import Score

RANK_FACTOR = 1.06  # ranks are a little less efficient: Fieller, Hartley and Pearson 1957


@dataclass(frozen=True)
class Tost:
    """Equivalence of a partial rank correlation to zero within ±δ.

    `smallest_delta` is the least δ that these rows would carry; `needed_n` the rows that δ needs at this r
    (infinite if |r| ≥ δ), and `needed_n_at_zero` even at r = 0.
    """

    r: float
    delta: float
    p: float
    equivalent: bool
    smallest_delta: float
    needed_n: float
    needed_n_at_zero: float
    reason: str = ""


def tost(r: float, n: int, k: int, *, delta: float = 0.2, alpha: float = 0.05) -> Tost:
    """Two one-sided tests on Fisher's z with se = 1.06/√(n − k − 3), k control columns.

    p is the larger of the two; at r = 0, δ = .1 asks for n − k − 3 ≥ 302.
    """
    from scipy.special import ndtr, ndtri

    if not 0 < delta < 1:
        raise BadInput(f"δ is {delta}: an equivalence margin lies between 0 and 1.")
    reach = RANK_FACTOR * float(ndtri(1 - alpha))
    at_zero = math.ceil((reach / math.atanh(delta)) ** 2 + k + 3)
    reason = "There is no correlation." if math.isnan(r) else _no_freedom(n, k)
    if reason:
        return Tost(r, delta, math.nan, False, math.nan, math.nan, at_zero, reason)
    z, root = math.atanh(min(abs(r), 1 - 1e-15)), math.sqrt(n - k - 3)
    distance = math.atanh(delta) - z
    p = float(ndtr(-distance * root / RANK_FACTOR))
    needed = math.ceil((reach / distance) ** 2 + k + 3) if distance > 0 else math.inf
    return Tost(r, delta, p, p < alpha, math.tanh(z + reach / root), needed, at_zero)


def minimum_detectable(n: int, k: int, *, alpha: float = 0.05, power: float = 0.8) -> Score:
    """Least |partial rank r| that a two-sided test finds with this power: tanh((z_α/2 + z_β)·se)."""
    from scipy.special import ndtri

    reason = _no_freedom(n, k)
    if reason:
        return Score(math.nan, n, reason)
    reach = RANK_FACTOR * float(ndtri(1 - alpha / 2) + ndtri(power))
    return Score(math.tanh(reach / math.sqrt(n - k - 3)), n)


def _no_freedom(n: int, k: int) -> str:
    return f"{n} rows with {k} controls leave no degree of freedom." if n - k - 3 < 1 else ""


def rank_interval(r: float, n: int, k: int, *, level: float = 0.95) -> tuple[float, float]:
    """Both ends of the interval of a partial rank correlation, by Fisher's z as in `tost`."""
    from scipy.special import ndtri

    if math.isnan(r) or _no_freedom(n, k):
        return math.nan, math.nan
    z = math.copysign(math.atanh(min(abs(r), 1 - 1e-15)), r)
    reach = RANK_FACTOR * float(ndtri((1 + level) / 2)) / math.sqrt(n - k - 3)
    return math.tanh(z - reach), math.tanh(z + reach)
