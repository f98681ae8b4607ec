"""Credits of one length: what is left of a rule where each sample's credit weighs the same."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from walkback.core.errors import NotApplicable
from walkback.nets.trace import Trace
from walkback.rules.base import Modifier


class Normalise(Modifier):
    """`a_l / rms(a_l)`, the root mean square taken over the features of each sample, or over a batch.

    Over a batch it is one number a step. AdamW takes back out what of it is constant; it rises as errors
    shrink, so late steps weigh more in its moments, and a penalty beside it less. Over a sample it changes
    the rule. A calibrated head has errors that cancel on average, in every direction that it can read;
    with one length for all they no longer do, and blocks are driven on where there is nothing left to
    learn. A credit of zero stays zero. Where a rule sends credits inside a block too (`dfa(form=layer)`),
    those keep their length.
    """

    name = "normalise"
    citation = "rms-normalised local losses, public code of the FA paper"
    about = "any rule with a credit for each block, its credits brought to a root mean square of 1"
    ours = "whether over a sample or over the batch, which the notes of that code do not say"
    defaults = {"over": "sample"}  # noqa: RUF012
    choices = {"over": ("sample", "batch")}  # noqa: RUF012
    on_backprop = False

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        if self.wiring != "cut":
            raise NotApplicable(f"{self.inner.name} gives its blocks no credit that could be normalised.")
        self.inner.setup(trace, generator)

    def draw_anew(self, trace: Trace, generator: torch.Generator) -> None:
        self.inner.draw_anew(trace, generator)

    def credits(self, trace: Trace) -> list[Tensor]:
        return [self._brought_to_one(credit, trace) for credit in self.inner.credits(trace)]

    def training_credits(self, trace: Trace) -> list[Tensor]:
        return list(self.training_credits_upwards(trace))

    def training_credits_upwards(self, trace: Trace) -> Iterator[Tensor]:
        upwards = self.inner.training_credits_upwards(trace)
        return (self._brought_to_one(credit, trace) for credit in upwards)

    def _brought_to_one(self, credit: Tensor, trace: Trace) -> Tensor:
        rows = credit.reshape(trace.count, -1)
        if self.params["over"] == "batch":
            rows = rows.reshape(1, -1)
        return (rows / _root_mean_square(rows)).view_as(credit)


def _root_mean_square(rows: Float[Tensor, "rows features"]) -> Float[Tensor, "rows 1"]:
    """Of each row, by its largest entry first: squares of a small credit would be zero. 1 for zero rows."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    size = largest * (rows / largest).square().mean(dim=1, keepdim=True).sqrt()
    return torch.where(size > 0, size, 1.0)
