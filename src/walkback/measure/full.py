"""The full tier: what a credit does, not only where it points. Measured at chosen epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from walkback.core.quantities import Measurements
from walkback.measure.directions import (
    Losses,
    fixed_step_correlation,
    nudge,
    perturbation_correlation,
    stable_losses,
)
from walkback.measure.nulls import DRAWS, cosine_null
from walkback.measure.rows import row_cosines
from walkback.nets.by_hand import Workspace, hand_parts
from walkback.nets.trace import Trace
from walkback.rules.base import Rule, repeatable
from walkback.rules.bp import BP


def measure_full(
    trace: Trace,
    rule: Rule,
    epoch: int,
    generator: torch.Generator,
    *,
    draws: int = DRAWS,
    compat: bool = False,
) -> Measurements:
    """Nudging, perturbation correlation, parameter cosine, direction stability and nulls.

    With `compat` also ρ by a fixed step, along the same directions: 64 evaluations of a layer beside 108.
    """
    table = Measurements()
    credits = rule.credits(trace)
    for layer in range(trace.depth + 1):
        _measure_layer(trace, credits[layer], layer, epoch, generator, table, compat)
    _measure_parameters(trace, rule, epoch, table)
    _measure_null(trace, rule, epoch, generator, table, draws)
    return table


def row_losses(trace: Trace, layer: int) -> Losses:
    """Φ_l: a state at `layer` → the loss of every sample (its mean over tokens, where it has several).

    A stack of states goes through a net that was written by hand as one batch.
    """

    def losses(h: Tensor) -> Tensor:
        with torch.no_grad():
            found = stable_losses(trace.tail(layer, h), trace.labels)
        return found if found.dim() == 1 else found.flatten(1).mean(1)

    parts = hand_parts(trace.net)
    if parts is not None:
        turns = (Workspace(), Workspace())  # a part reads what the one before it wrote

        @torch.no_grad()
        def of_stack(stack: Tensor) -> Tensor:
            h = stack.flatten(0, 1)
            for index, part in enumerate(parts[layer + 1 :]):
                h = part.forward(h, turns[index % 2])
            return stable_losses(trace.net.read_out(h), trace.labels.repeat(len(stack))).view(
                len(stack), -1
            )

        losses.of_stack = of_stack  # type: ignore[attr-defined]
    return losses


def _measure_layer(
    trace: Trace,
    a: Tensor,
    layer: int,
    epoch: int,
    generator: torch.Generator,
    table: Measurements,
    compat: bool,
) -> None:
    h, g, losses = trace.states[layer].detach(), trace.reference[layer], row_losses(trace, layer)
    nudged = nudge(losses, h, a, g, generator)
    missing = "not_applicable" if math.isnan(nudged.ratio) else ""
    for name in ("ratio", "band_mean", "band_sd", "eta"):
        table.add(epoch, f"nudge.{name}@1", getattr(nudged, name), layer, missing)
    same = generator.clone_state()
    found = perturbation_correlation(losses, h, a, g, generator)
    for name in ("rho", "rho_spearman", "ceiling", "se"):
        table.add(epoch, f"perturbation.{name}@1", getattr(found, name), layer)
    table.add(epoch, "perturbation.n_valid@1", float(found.n_valid), layer)
    if compat:
        fixed = fixed_step_correlation(losses, h, a, g, same)
        for name in ("rho", "ceiling", "moved"):
            table.add(epoch, f"perturbation.{name}_compat@1", float(getattr(fixed, name)), layer)
    table.add(epoch, "alignment.stability@1", direction_stability(a), layer)


def direction_stability(a: Tensor) -> float:
    """Cosine of the mean credits of two disjoint halves: is there one direction, or noise?"""
    middle = len(a) // 2
    halves = [half.detach().double().mean(0).reshape(1, -1) for half in (a[:middle], a[middle:])]
    cosines, valid = row_cosines(*halves)
    return float(cosines[0]) if bool(valid.all()) and middle else math.nan


def _measure_parameters(trace: Trace, rule: Rule, epoch: int, table: Measurements) -> None:
    """Cosine of the rule's batch gradient with backprop's, for the stem (layer 0) and each block."""
    with repeatable(rule.name):
        mine, exact_ = (block_gradients(which, trace) for which in (rule, BP()))
    for layer, (one, other) in enumerate(zip(mine, exact_, strict=True)):
        value = math.nan
        if len(one) and len(other):
            cosines, valid = row_cosines(one.reshape(1, -1), other.reshape(1, -1))
            value = float(cosines[0]) if bool(valid.all()) else math.nan
        missing = "" if len(other) else "not_applicable"  # the steps of a recurrent net share one block's
        table.add(epoch, "alignment.parameter_cosine@1", value, layer, missing)


def block_gradients(rule: Rule, trace: Trace) -> Sequence[Tensor]:
    """The rule's own training gradient, flattened: below the blocks, then block by block.

    The model's `.grad` and `requires_grad` are put back as they were.
    """
    net = trace.net
    parameters = dict(net.model.named_parameters())
    before = {name: (p.grad, p.requires_grad) for name, p in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.grad = None
            parameter.requires_grad_(True)
        rule.deposit_gradients(net, trace.inputs, trace.labels)
        found = {id(p): p.grad for p in parameters.values()}
        above = [part for part in (net.out_ln, net.head) if part is not None]
        taken = {id(p) for part in (*net.blocks, *above) for p in part.parameters()}
        groups = [[p for p in parameters.values() if id(p) not in taken]]
        groups += [list(block.parameters()) for block in net.blocks]
        return [_flat([found[id(p)] for p in group], trace.logits) for group in groups]
    finally:
        for name, parameter in parameters.items():
            parameter.grad, wanted = before[name]
            parameter.requires_grad_(wanted)


def _flat(gradients: Sequence[Tensor | None], like: Tensor) -> Tensor:
    known = [g.detach().flatten() for g in gradients if g is not None]
    return torch.cat(known) if known else like.new_zeros(0)


def _measure_null(
    trace: Trace, rule: Rule, epoch: int, generator: torch.Generator, table: Measurements, draws: int
) -> None:
    null = cosine_null(rule, trace, generator, draws)
    for layer in range(trace.depth + 1):
        for name in ("mean", "sd", "p", "z"):
            table.add(epoch, f"alignment.null_{name}@1", getattr(null, name)[layer], layer)
    for name in ("mean", "sd", "p", "z"):
        table.add(epoch, f"alignment.deep_null_{name}@1", getattr(null, f"deep_{name}"))
    for name in ("mean", "sd"):
        table.add(epoch, f"alignment.deep_null20_{name}@1", getattr(null, f"few_{name}"))
    table.add(epoch, "alignment.null_draws@1", float(null.draws))
