"""Knock-out: what one block is worth, by putting it back to how it began and training nothing anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from walkback.core.errors import BadInput, NotApplicable
from walkback.measure.rows import answered_rows, correct_rows
from walkback.run.full import eval_batch, restore_run, stored_checkpoints
from walkback.store import Bundle


def knock_out(bundle: Bundle, epoch: int | None = None) -> dict[str, Any]:
    """Accuracy on the evaluation batch with each block rewound to its initial weights, one at a time.

    A block whose loss costs nothing did not learn anything the net uses: D3 per layer. It is measured on
    the stored batch, so no data set is needed; the rest of the net keeps its trained weights. Where its
    outputs are not numbers, accuracy and worth are None.
    """
    kept = stored_checkpoints(bundle)
    epoch = max(kept) if epoch is None else epoch
    if 0 not in kept or epoch not in kept:
        raise BadInput(f"{bundle.path.name} has no checkpoint of epoch {0 if 0 not in kept else epoch}.")
    net, _, _, _ = restore_run(bundle, epoch)
    if net.shares_weights:
        raise NotApplicable("No block can be rewound alone: the blocks of this net share weights.")
    initial, _, _, _ = restore_run(bundle, 0)
    x, y = eval_batch(bundle)
    whole = _accuracy(net.model, x, y)
    rows = []
    for layer, (block, first) in enumerate(zip(net.blocks, initial.blocks, strict=True), start=1):
        trained = [p.detach().clone() for p in block.parameters()]
        _set(block, first.parameters())
        without = _accuracy(net.model, x, y)
        _set(block, trained)
        worth = None if whole is None or without is None else whole - without
        rows.append({"layer": layer, "accuracy": without, "worth": worth})
    return {
        "rule": bundle.card["rule"]["label"],
        "epoch": epoch,
        "accuracy": whole,
        "items": len(y),
        "blocks": rows,
    }


def _set(block: torch.nn.Module, weights: Iterable[torch.Tensor]) -> None:
    """Weights alone: BatchNorm's moments follow the data, and belong to what the blocks below do now."""
    with torch.no_grad():
        for own, given in zip(block.parameters(), weights, strict=True):
            own.copy_(given)


def _accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float | None:
    """None where outputs are not numbers: a net that answers nothing has no accuracy to lose."""
    model.eval()
    with torch.no_grad():
        logits = model(x)
    return float(correct_rows(logits, y).double().mean()) if bool(answered_rows(logits).all()) else None
