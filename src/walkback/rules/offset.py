"""Blocks that learn by the credit of the state below them: what an index that is off by one does."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.core.errors import NotApplicable
from walkback.nets.trace import Trace
from walkback.rules.base import Modifier


class Offset(Modifier):
    """Block l, which makes h_l, is given a_{l−1}, the credit of the state it reads; the stem keeps a_0.

    That is a rule like any other, as long as it is read as it is used: `read=use` diagnoses at h_l the
    credit that trained it, a_{l−1}. `read=label` diagnoses a_l there, by the number that both have: then
    no deep layer is compared with what it learned by. No block is given a_L. `read=reuse` is `label` where
    there is no a_L, for there are as many feedback matrices as blocks: at h_L it has a_{L−1} once more,
    which is what the last block did learn by.
    """

    name = "offset"
    citation = "a control of walkback's own"
    about = "any rule with a credit for each block, given to the block above the one it belongs to"
    ours = "the whole control"
    defaults = {"read": "use"}  # noqa: RUF012
    choices = {"read": ("use", "label", "reuse")}  # noqa: RUF012
    on_backprop = False
    _unread: frozenset[str] = frozenset()  # feedback of the last state, once a net is known

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        if self.wiring != "cut":
            raise NotApplicable(f"{self.inner.name} gives its blocks no credit that another could have.")
        if len({h.shape for h in trace.states}) > 1:
            raise NotApplicable("A credit fits the block above only where all states have one shape.")
        self.inner.setup(trace, generator)
        held = self.named_buffers()
        self._unread = frozenset(name for name, one in held if self._serves_the_last_alone(one, trace))

    def draw_anew(self, trace: Trace, generator: torch.Generator) -> None:
        self.inner.draw_anew(trace, generator)

    def credits(self, trace: Trace) -> list[Tensor]:
        credits = self.inner.credits(trace)
        if self.params["read"] == "use":
            return _raised(credits)
        return credits if self.params["read"] == "label" else [*credits[:-1], credits[-2]]

    def training_credits(self, trace: Trace) -> list[Tensor]:
        return _raised(self.inner.training_credits(trace))

    def idle_feedback(self) -> set[str]:
        """What makes a_L and nothing else."""
        return {*self._unread, *super().idle_feedback()}

    def _serves_the_last_alone(self, held: Tensor, trace: Trace) -> bool:
        """Whether a_L, and no credit below it, changes with a tensor; it is put back."""
        if not held.is_floating_point():
            return False
        before, saved = self.inner.credits(trace), held.clone()
        # Not by one factor: a rule that gives its credits one length would take it back out.
        held.mul_(torch.linspace(2, 3, held.numel(), dtype=held.dtype, device=held.device).view_as(held))
        after = self.inner.credits(trace)
        held.copy_(saved)
        same = [torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        return all(same[:-1]) and not same[-1]


def _raised(credits: list[Tensor]) -> list[Tensor]:
    return [credits[0], *credits[:-1]]
