"""What goes into a model and comes out of it: a batch, its labels and their logits, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from walkback.core.errors import BadInput, NotApplicable
from walkback.nets.trace import NO_WAY_BACK

if TYPE_CHECKING:
    from walkback.nets.trace import Trace

Batch = Tensor | Mapping[str, Tensor]


def logits_of(output: Any, made: Sequence[Any] = ()) -> Tensor:
    """The logits among what a model returned: the tensor that its head `made`, else the first."""
    logits = getattr(output, "logits", output)
    if isinstance(output, Mapping):
        logits = output.get("logits")
    if isinstance(logits, (tuple, list)):
        logits = _chosen(logits, [tensor for each in made for tensor in _tensors(each)])
    if not isinstance(logits, Tensor) or logits.dim() < 2:
        raise NotApplicable(
            "The model's output is not a batch of logits.",
            "It must return a tensor [batch, classes], or an object with an attribute 'logits'.",
        )
    return logits


def _tensors(output: Any) -> list[Tensor]:
    parts = output if isinstance(output, (tuple, list)) else [output]
    return [part for part in parts if isinstance(part, Tensor)]


def _chosen(parts: Sequence[Any], made: Sequence[Tensor]) -> Any:
    """Of several tensors that could be logits, the first that the head made, or the only one as wide."""
    alike = [part for part in _tensors(parts) if part.dim() >= 2]
    alike = [part for part in alike if part.shape[:-1] == alike[0].shape[:-1]]
    if len(alike) < 2:
        return parts[0] if parts else None
    by_head = [part for part in alike if any(part is each for each in made)]
    as_wide = [part for part in alike if part.shape[-1] in {each.shape[-1] for each in made if each.dim()}]
    if by_head or len(as_wide) == 1:
        return (by_head or as_wide)[0]
    shapes = " and ".join(str(tuple(part.shape)) for part in alike)
    which = "none of them is what its head made" if made else "no head is known that made one of them"
    raise NotApplicable(
        f"The model returns several tensors, of shapes {shapes}, and {which}.",
        "Name the head (head=…), return the logits alone, or an object with an attribute 'logits'.",
    )


def check_labels_are_not_inputs(parts: Mapping[str, Tensor], y: Tensor) -> None:
    """`transformers` takes the tokens as labels and shifts them itself: unshifted, copying would be right.

    Untrained, a GPT-2 whose head is tied to its embedding was right in 95 % of such rows. Labels that do
    not vary tell nothing, and a mask may well be what is to be predicted.
    """
    if y.is_floating_point() or len(y.unique()) < 2:
        return
    for name, part in parts.items():
        if name == "labels" or "mask" in name or part.is_floating_point() or part.shape != y.shape:
            continue
        if torch.equal(part.long().cpu(), y.long().cpu()):
            raise BadInput(
                f"The labels are the inputs ({name}) themselves: a model that copies is always right.",
                "Shift them: row t of y is what position t should predict, as in x[:, :-1] and x[:, 1:].",
            )


def check_label_shape(logits: Tensor, y: Tensor) -> None:
    if logits.shape[:-1] != y.shape:
        raise BadInput(
            f"The logits have shape {tuple(logits.shape)}, so labels of shape "
            f"{tuple(logits.shape[:-1])} are needed, not {tuple(y.shape)}."
        )


def check_label_range(logits: Tensor, y: Tensor) -> None:
    classes, low, high = logits.shape[-1], int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise BadInput(
            f"Labels must lie in 0…{classes - 1} for {classes} logits, found {low}…{high}.",
            "Every row counts: there is no label, such as -100, that leaves one out." if low < 0 else "",
        )


def check_measurable(trace: Trace) -> None:
    """States that belong to the labels row by row, and logits that a gradient can come back from."""
    lead = tuple(trace.labels.shape)
    for layer, h in enumerate(trace.states):
        if tuple(h.shape[: len(lead)]) != lead:
            raise NotApplicable(
                f"h_{layer} has shape {tuple(h.shape)}, which does not begin like the labels {lead}.",
                "States must be batch-first: [batch, …], or [batch, tokens, …] with a label per token.",
            )
    if not trace.logits.requires_grad:
        raise NotApplicable(*NO_WAY_BACK)


def as_tensor(thing: Any, name: str) -> Tensor:
    try:
        tensor = torch.as_tensor(thing)
    except Exception as error:  # a table of pandas is asked for its column 0, and raises what it likes
        told = f"{type(error).__name__}: {error}".rstrip(".")
        raise BadInput(
            f"{name} cannot be read as numbers, as {type(thing).__name__}: {told}.",
            "Give a tensor or an array of numpy.",
        ) from None
    if tensor.dim() == 0:
        raise BadInput(f"{name} must be a batch, not a single number.")
    if tensor.is_complex():
        raise BadInput(f"{name} must not be complex.")
    with torch.inference_mode(False):  # an inference tensor has no gradients; its copy has
        return tensor.clone() if tensor.is_inference() else tensor
