"""Direct random target projection: the label itself, not the error, reaches every block."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from walkback.nets.trace import Trace
from walkback.rules.broadcast import to_state
from walkback.rules.dfa import DFA


class DRTP(DFA):
    """`a_l = B_lᵀ onehot(y)`: what DFA sends if the error is replaced by the target's place.

    It needs no forward pass to the output before a block can learn, and never stops pushing: a fitted
    sample is pushed as much as any other. The sign is in B.
    """

    name = "drtp"
    citation = "Frenkel, Lefebvre & Bol 2021, Frontiers in Neuroscience 15:629892"
    about = "the one-hot label sent to every block by a fixed random matrix"
    ours = "credit at a block's output, exact chain inside it"
    defaults = {}  # noqa: RUF012
    choices = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(form="block", skip="cut")

    def _credit(self, layer: int, trace: Trace) -> Tensor:
        feedback = self.get_buffer(f"feedback_{layer}")
        target = F.one_hot(trace.labels, trace.logits.shape[-1]).to(feedback)
        return to_state(target @ feedback, trace.states[layer])
