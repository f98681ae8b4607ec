"""A penalty on what the blocks add: the intervention that asks whether scale alone breaks a rule."""

from __future__ import annotations

from torch import Tensor

from walkback.nets.trace import Trace
from walkback.rules.base import Modifier


class Penalty(Modifier):
    """`λ Σ_l ‖f_l(h_l)‖²`, summed (or averaged) over features and averaged over samples.

    Where the rule cuts the graph, h_l is detached and each block pays for itself. Where it does not, as
    in backprop, the penalty travels end to end: that is the matched control, not the same intervention.
    """

    name = "penalty"
    citation = "penalty intervention of the FA paper, validation 5"
    about = "any rule, with a cost on the size of each block's branch"
    ours = "end to end for rules that do not cut the graph"
    defaults = {"weight": 1e-2, "over": "sum"}  # noqa: RUF012
    choices = {"over": ("sum", "mean")}  # noqa: RUF012

    def extra_loss(self, trace: Trace) -> Tensor:
        total = trace.logits.new_zeros(())
        for below, above in zip(trace.states[:-1], trace.outputs[1:], strict=True):
            squares = (above - below).square()
            total = total + (squares.sum() if self.params["over"] == "sum" else squares.mean(-1).sum())
        own = float(self.params["weight"]) * total / trace.count
        inner = self.inner.extra_loss(trace)
        return own if inner is None else own + inner
