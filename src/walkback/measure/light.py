"""The light tier: scale, reference and alignment of one trace, cheap enough for every epoch."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from walkback.core.errors import BadInput, WalkbackError
from walkback.core.quantities import QUANTITIES, Measurements
from walkback.measure.rows import CLAMP, ScaledRows, clamped_cosines, exact, row_norms
from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace, feature_axis
from walkback.rules.base import Rule

REFERENCE_BATCH = 128  # at which the paper's threshold on a mean-reduced gradient is read (ours)


def measure_light(
    trace: Trace, credits: Sequence[Tensor] | None, epoch: int, *, float64: bool = True
) -> Measurements:
    """All light quantities. Without credits the alignment is not applicable, never 1 or 0."""
    table = Measurements()
    measure_scale(trace, epoch, table)
    reference = [_scaled(trace, g) for g in trace.reference]
    measure_reference(trace, reference, epoch, table, float64=float64)
    measure_alignment(trace, reference, credits, epoch, table)
    return table


def measure_rule(rule: Rule, epoch: int, table: Measurements) -> None:
    """What a rule measured itself while it gave the credits, as how far its states were from rest."""
    for quantity, value in rule.readings().items():
        if quantity not in QUANTITIES:
            raise BadInput(
                f"The rule {rule.name} reports {quantity!r}, which is not a known quantity.",
                "Add it to walkback.core.quantities.QUANTITIES.",
            )
        table.add(epoch, quantity, value)


def measure_scale(trace: Trace, epoch: int, table: Measurements) -> None:
    """Norms of the states and their growth; growth in RMS, so that down-sampling is not growth.

    Of the stream that flows from block to block, where the blocks return something else.
    """
    stream = trace.stream
    if stream is None:
        _scale_not_applicable(trace, epoch, table)
        return
    rows = [trace.rows(h) for h in stream]
    norms = [row_norms(exact(r)) for r in rows]
    rms = [norm / r.shape[1] ** 0.5 for norm, r in zip(norms, rows, strict=True)]
    for layer, norm in enumerate(norms):
        table.add(epoch, "scale.state_norm@1", _median(norm), layer)
    growth = [_median(above / below) for below, above in pairwise(rms)]
    for layer, ratio in enumerate(growth, start=1):
        table.add(epoch, "scale.growth@1", ratio, layer)
    # max() of Python would drop a NaN that is not first.
    table.add(epoch, "scale.growth_max@1", float(torch.tensor(growth, dtype=torch.float64).amax()))
    table.add(epoch, "scale.growth_total@1", _median(rms[-1] / rms[0]))
    top = exact(stream[-1])
    axis = feature_axis(top, trace.per_token)
    mean_part = row_norms(trace.rows(top.mean(dim=axis, keepdim=True))) * top.shape[axis] ** 0.5
    table.add(epoch, "scale.mean_part@1", _median(mean_part / norms[-1]))


def measure_reference(
    trace: Trace, reference: Sequence[ScaledRows], epoch: int, table: Measurements, *, float64: bool
) -> None:
    """Norms of g_l, and D2's value `r/128`, `r = median ‖g_L‖/‖e‖`, with its companions.

    r does not move with the batch size (g is sum-reduced) nor with the fit (‖e‖ is divided out), so a
    small value means that scale, and nothing else, has swallowed the reference.
    """
    norms = [g.norms for g in reference]
    for layer, norm in enumerate(norms):
        table.add(epoch, "reference.norm@1", _median(norm), layer)
    top = norms[-1]
    error = row_norms(exact(trace.rows(trace.error)))
    table.add(epoch, "reference.error_norm@1", _median(error))
    # A row fitted beyond float32 has e = 0 exactly, hence no ratio; it is left out and counted.
    table.add(epoch, "reference.n_valid@1", float((error != 0).sum()))
    table.add(epoch, "reference.validity@1", _median((top / error)[error != 0]) / REFERENCE_BATCH)
    mean_reduced = top / trace.count
    table.add(epoch, "reference.compat@1", _median(mean_reduced))
    table.add(epoch, "reference.unit_probe@1", _median((mean_reduced / CLAMP).clamp(max=1.0)))
    relerr = _float64_relerr(trace) if float64 else None
    status = "" if relerr is not None else "not_applicable"
    table.add(epoch, "reference.float64_relerr@1", math.nan if relerr is None else relerr, status=status)


def measure_alignment(
    trace: Trace,
    reference: Sequence[ScaledRows],
    credits: Sequence[Tensor] | None,
    epoch: int,
    table: Measurements,
) -> None:
    """cos(a_l, g_l) per layer without a clamp, and what a clamped library would have said."""
    layers = range(trace.depth + 1)
    if credits is None:
        _alignment_not_applicable(layers, epoch, table)
        return
    pairs = [(trace.rows(a), trace.rows(g)) for a, g in zip(credits, trace.reference, strict=True)]
    means, clamped = [], []
    for layer, (a, g) in enumerate(pairs):
        own = credits[layer] is trace.reference[layer]  # as backprop's is
        scaled = reference[layer] if own else _scaled(trace, credits[layer])
        cosines, valid = scaled.cosines(reference[layer])
        means.append(_mean(cosines))
        clamped.append(_mean(clamped_cosines(a, g / trace.count).double()))
        sd = float(cosines.std()) if len(cosines) > 1 else math.nan
        table.add(epoch, "alignment.cosine@1", means[-1], layer)
        table.add(epoch, "alignment.cosine_median@1", _median(cosines), layer)
        table.add(epoch, "alignment.cosine_sd@1", sd, layer)
        table.add(epoch, "alignment.n_valid@1", float(valid.sum()), layer)
        table.add(epoch, "alignment.cosine_compat@1", clamped[-1], layer)
    table.add(epoch, "alignment.deep_cosine@1", sum(means[1:]) / len(means[1:]))
    table.add(epoch, "alignment.gamma_mean@1", sum(clamped) / len(clamped))
    all_a, all_g = (torch.cat([pair[side] for pair in pairs], dim=1) for side in (0, 1))
    concat = _mean(clamped_cosines(all_a, all_g / trace.count).double())
    table.add(epoch, "alignment.gamma_concat@1", concat)


def _scaled(trace: Trace, tensor: Tensor) -> ScaledRows:
    return ScaledRows.of(exact(trace.rows(tensor)))


def _scale_not_applicable(trace: Trace, epoch: int, table: Measurements) -> None:
    for layer in range(trace.depth + 1):
        for name in ("state_norm", "growth") if layer else ("state_norm",):
            table.add(epoch, f"scale.{name}@1", math.nan, layer, status="not_applicable")
    for name in ("growth_max", "growth_total", "mean_part"):
        table.add(epoch, f"scale.{name}@1", math.nan, status="not_applicable")


def _alignment_not_applicable(layers: range, epoch: int, table: Measurements) -> None:
    for layer in layers:
        for name in ("cosine", "cosine_median", "cosine_sd", "n_valid", "cosine_compat"):
            quantity = f"alignment.{name}@1"
            table.add(epoch, quantity, math.nan, layer, status="not_applicable")
    for name in ("deep_cosine", "gamma_mean", "gamma_concat"):
        table.add(epoch, f"alignment.{name}@1", math.nan, status="not_applicable")


def _float64_relerr(trace: Trace) -> float | None:
    """Median of ‖g_L − g_L in float64‖/‖g_L in float64‖: is a tiny reference still a direction?

    None where the model has no float64 twin: it is in float64 already, it cannot be copied, or it draws
    random numbers, which would be others.
    """
    if trace.net.dtype == torch.float64 or trace.random:
        return None
    try:
        twin = float64_twin(trace.net)
        inputs = trace.inputs
        x = {k: v.cpu() for k, v in inputs.items()} if isinstance(inputs, dict) else inputs.cpu()
        precise = twin.probe(x, trace.labels.cpu())
        top64 = exact(precise.rows(precise.top_reference()))
    except (RuntimeError, TypeError, NotImplementedError, WalkbackError):
        return None
    top32 = exact(trace.rows(trace.reference[-1]))
    return _median(row_norms(top32 - top64) / row_norms(top64))


def float64_twin(net: Adapter) -> Adapter:
    """A copy of a net on the CPU in float64, its parts found again."""
    parts = (net.model, net.blocks, net.out_ln, net.head)
    model, blocks, out_ln, head = copy.deepcopy(parts)  # one call, so that the copies share modules
    return Adapter(model.cpu().double(), blocks, out_ln, head)


def _median(values: Tensor) -> float:
    """Median with the two middle values averaged; NaN if empty, and NaN if any value is."""
    if not len(values) or bool(values.isnan().any()):
        return math.nan
    ordered, count = values.sort().values, len(values)
    middle = ordered[(count - 1) // 2], ordered[count // 2]
    return float(middle[0]) if middle[0] == middle[1] else float((middle[0] + middle[1]) / 2)


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan
