"""Frozen blocks: the matched baseline of D3. Stem, terminal norm and head learn; the blocks never move."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from walkback.core.spec import Value
from walkback.nets.adapter import Adapter
from walkback.rules.base import Modifier, Rule, with_labels


class Frozen(Modifier):
    """With `stem=bp` the stem learns by backprop through the frozen blocks; else by that rule's credit.

    The null matters: a stem trained by DFA can be far worse than one trained by backprop, so a gain
    over `frozen(stem=bp)` and one over `frozen(stem=dfa)` are two different statements. BatchNorm's
    moments are not learned from a loss: inside frozen blocks they follow the data, as in any forward pass.
    """

    name = "frozen"
    citation = "architecture-matched random blocks, diagnostic (d) of the FA paper"
    about = "blocks fixed at initialisation; the rest trained, the stem by the rule given"
    ours = "BatchNorm's moments in the blocks follow the data; its scale and shift are fixed"
    role = "baseline"
    defaults = {"stem": "bp"}  # noqa: RUF012

    @classmethod
    def normalise(cls, params: Mapping[str, Value]) -> Mapping[str, Value]:
        return with_labels(params, ("stem",))

    @classmethod
    def build(cls, **params: Value) -> Rule:
        from walkback.rules import make_rule

        return cls(make_rule(str(params["stem"])), **params)

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        fixed = net.block_parameters()
        return {name: p for name, p in self.inner.trained(net).items() if name not in fixed}
