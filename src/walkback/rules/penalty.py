"""A penalty on what the blocks add: the intervention that asks whether scale alone breaks a rule."""

from __future__ import annotations

import math

from walkback.core.errors import BadInput, NotApplicable
from walkback.core.spec import Call
from walkback.nets.trace import Trace, feature_axis
from walkback.rules.base import Modifier


class Penalty(Modifier):
    """`λ Σ_l ‖f_l(h_{l−1})‖²`, summed (or averaged) over features and averaged over samples.

    Where the rule cuts the graph, or sends its own credit through a block, h_l is detached and each block
    pays for itself, by its exact gradient. Where it does neither, as in backprop, the penalty travels end
    to end: that is the matched control, not the same intervention.
    """

    name = "penalty"
    citation = "penalty intervention of the FA paper, validation 5"
    about = "any rule, with a cost on the size of each block's branch"
    ours = "end to end for rules that neither cut the graph nor send credit of their own through a block"
    defaults = {"weight": 1e-2, "over": "sum"}  # noqa: RUF012
    choices = {"over": ("sum", "mean")}  # noqa: RUF012

    @classmethod
    def check_choices(cls, call: Call) -> None:
        super().check_choices(call)
        if not 0 <= float(call.params["weight"]) < math.inf:
            raise BadInput(f"A penalty has a weight of 0 or more, not {call.params['weight']}.")

    def branch_weight(self, trace: Trace) -> float:
        if len({h.shape for h in trace.states}) > 1:
            raise NotApplicable("A penalty on branches needs blocks that keep the shape of their state.")
        top = trace.states[-1]
        width = top.shape[feature_axis(top, trace.per_token)]
        features = 1 if self.params["over"] == "sum" else width
        own = 2 * float(self.params["weight"]) / (features * trace.count)
        return own + self.inner.branch_weight(trace)
