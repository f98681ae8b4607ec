"""What chance alone gives: feedback drawn anew, or credits given to the wrong samples."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from walkback.measure.rows import row_cosines
from walkback.nets.trace import Trace
from walkback.rules.base import Rule

DRAWS = 199  # the smallest rank p is then 1/200
FEW = 20  # what the FA paper draws: its mean and spread are kept beside those of all draws


@dataclass(frozen=True)
class Null:
    """Mean cosine per layer under the null, and where the observed one lies: rank p (two-sided) and z."""

    kind: str
    mean: list[float]
    sd: list[float]
    p: list[float]
    z: list[float]
    deep_mean: float
    deep_sd: float
    deep_p: float
    deep_z: float
    few_mean: float
    few_sd: float
    draws: int


def cosine_null(rule: Rule, trace: Trace, generator: torch.Generator, draws: int = DRAWS) -> Null:
    """Fresh feedback for rules with a fixed one, shuffled samples for those that learn it or have none, and
    at layers that the feedback does not reach: a credit that no draw changes would always equal its null.

    Do not replace it by a formula: the batch mean under fresh B has neither sd 1/√d nor 1/√(dN).
    """
    observed = mean_cosines(rule.credits(trace), trace)
    fresh = rule.has_feedback and not rule.learns_feedback
    kind = "fresh feedback" if fresh else "shuffled samples"
    sample = _fresh_credits if fresh else _shuffled_credits
    drawn = _table([mean_cosines(sample(rule, trace, generator), trace) for _ in range(draws)])
    unreached = (drawn == _table(observed)).all(0)
    if fresh and unreached.any():
        shuffled = [mean_cosines(_shuffled_credits(rule, trace, generator), trace) for _ in range(draws)]
        drawn = torch.where(unreached, _table(shuffled), drawn)
    columns = [_place(value, drawn[:, layer]) for layer, value in enumerate(observed)]
    deep, deep_drawn = _mean(observed[1:]), drawn[:, 1:].mean(1)
    few = _place(deep, deep_drawn[:FEW])[:2] if draws >= FEW else (math.nan, math.nan)
    mean, sd, p, z = (list(column) for column in zip(*columns, strict=True))
    return Null(kind, mean, sd, p, z, *_place(deep, deep_drawn), *few, draws)


def mean_cosines(credits: list[Tensor], trace: Trace) -> list[float]:
    """Mean over valid rows of cos(a_l, g_l) at each layer."""
    pairs = zip(credits, trace.reference, strict=True)
    return [_mean(row_cosines(trace.rows(a), trace.rows(g))[0].tolist()) for a, g in pairs]


def _fresh_credits(rule: Rule, trace: Trace, generator: torch.Generator) -> list[Tensor]:
    fresh = copy.deepcopy(rule)
    fresh.draw_anew(trace, generator)
    return fresh.credits(trace)


def _shuffled_credits(rule: Rule, trace: Trace, generator: torch.Generator) -> list[Tensor]:
    order = torch.randperm(len(trace.labels), generator=generator).to(trace.labels.device)
    return [a[order] for a in rule.credits(trace)]


def _table(values: list[float] | list[list[float]]) -> Tensor:
    """In full precision: a draw that equals what was observed must not differ from it by rounding."""
    return torch.tensor(values, dtype=torch.float64)


def _place(observed: float, drawn: Tensor) -> tuple[float, float, float, float]:
    """Mean and sd of the null, rank p of |observed − mean| (counting itself), and z."""
    mean, sd = float(drawn.mean()), float(drawn.std())
    distance = abs(observed - mean)
    as_far = int(((drawn - mean).abs() >= distance).sum())
    p = (as_far + 1) / (len(drawn) + 1) if math.isfinite(distance) else math.nan
    return mean, sd, p, (observed - mean) / sd if sd > 0 else math.nan


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
