"""PEPITA: a second forward pass on an input that the error has changed, and no backward pass at all."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from walkback.core.errors import NotApplicable
from walkback.nets.trace import Trace
from walkback.nets.wrappers import statistics_kept
from walkback.rules.base import Rule


class Pepita(Rule):
    """`x' = x + F e`; the credit of a block is what its branch did on x, less what it does on x'.

    The stem's credit is the difference of its outputs. Blocks learn on the activations of the second pass
    (the presynaptic factor), head and terminal norm from the exact error of the first.
    """

    name = "pepita"
    citation = "Dellaferrera & Kreiman 2022, arXiv:2201.11665"
    about = "two forward passes, the second on an input modulated by the error"
    ours = "branches instead of layers, exact chain inside a block; F is scale · N(0, 1)/√features"
    wiring = "cut"
    has_feedback = True
    defaults = {"scale": 1.0}  # noqa: RUF012

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        if not isinstance(trace.inputs, Tensor) or not trace.inputs.is_floating_point():
            raise NotApplicable("pepita changes the input, which must be one tensor of numbers.")
        if len({h.shape for h in trace.states}) > 1 or trace.states[0].dim() != 2:
            raise NotApplicable(
                "pepita needs states that are vectors of one width: it compares branches, and a token that "
                "does not come from the input would never be changed by it."
            )
        features = trace.inputs[0].numel()
        drawn = torch.randn(trace.logits.shape[-1], features, generator=generator, dtype=torch.float64)
        scale = float(self.params["scale"])
        self.register_buffer("feedback", (scale * drawn / features**0.5).to(trace.logits.detach()))

    def credits(self, trace: Trace) -> list[Tensor]:
        return _differences(trace, self._second(trace, "probe"))

    def training_credits(self, trace: Trace) -> list[Tensor]:
        self._pass = self._second(trace, "cut")
        return _differences(trace, self._pass)

    def local_trace(self, trace: Trace) -> Trace:
        second: Trace = self.__dict__.pop("_pass")  # not kept: a rule is copied, and a pass cannot be
        return second

    def _second(self, trace: Trace, wiring: str) -> Trace:
        change = trace.error.to(self.get_buffer("feedback")) @ self.get_buffer("feedback")
        modulated = trace.inputs + change.view_as(trace.inputs)
        with statistics_kept(trace.net.model):
            return trace.net.trace(modulated, trace.labels, wiring)  # type: ignore[arg-type]


def _differences(first: Trace, second: Trace) -> list[Tensor]:
    """Of the stems' outputs, then of what each block adds."""
    one, two = ([h.detach() for h in trace.states] for trace in (first, second))
    added = [[above - below for below, above in pairwise(h)] for h in (one, two)]
    return [one[0] - two[0], *(a - b for a, b in zip(*added, strict=True))]
