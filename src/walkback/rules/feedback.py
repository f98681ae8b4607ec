"""Feedback drawn for another seed: how much of what a seed does is its draw of the feedback alone?"""

from __future__ import annotations

import torch

from walkback.core.errors import NotApplicable
from walkback.nets.trace import Trace
from walkback.rules.base import Modifier, feedback_stream


class Feedback(Modifier):
    """The rule with the feedback that a run of `seed` has; weights and batches stay the run's own."""

    name = "feedback"
    citation = "a control of walkback's own"
    about = "any rule that draws feedback, with the draw of another seed"
    ours = "the whole control"
    defaults = {"seed": 0}  # noqa: RUF012
    on_backprop = False

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        if not self.has_feedback:
            raise NotApplicable(f"{self.inner.name} draws no feedback that could be another seed's.")
        self.inner.setup(trace, feedback_stream(int(self.params["seed"])))

    def draw_anew(self, trace: Trace, generator: torch.Generator) -> None:
        """Of no seed: a null in which every draw were the same would be none."""
        self.inner.draw_anew(trace, generator)
