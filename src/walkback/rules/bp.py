"""Backpropagation: the exact chain, and so the reference itself."""

from __future__ import annotations

from torch import Tensor

from walkback.nets.trace import Trace
from walkback.rules.base import ChainRule


class BP(ChainRule):
    name = "bp"
    citation = "Rumelhart, Hinton & Williams 1986, Nature 323"
    about = "the exact gradient, by autograd"
    exact = True

    def top_credit(self, trace: Trace) -> Tensor:
        return trace.top_reference()

    def credits(self, trace: Trace) -> list[Tensor]:
        return trace.reference
