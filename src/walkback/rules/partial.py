"""Nets trained in part by backprop: the head alone, or the head and the last blocks."""

from __future__ import annotations

from torch import nn

from walkback.core.errors import BadInput, NotApplicable
from walkback.nets.adapter import Adapter
from walkback.rules.bp import BP


class Shallow(BP):
    name = "shallow"
    citation = "random features with a trained read-out; shallow control of the FA paper"
    about = "only the head and the terminal norm are trained"
    role = "baseline"

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        return _reaching_from(net, net.depth)


class Ladder(BP):
    """`ladder(k)`: the last k blocks, the terminal norm and the head; what lies below stays random."""

    name = "ladder"
    citation = "walkback"
    about = "the last k blocks, the terminal norm and the head, by backprop"
    ours = "a scale of how much depth a task can use"
    defaults = {"k": 1}  # noqa: RUF012

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        k = int(self.params["k"])
        if not 0 <= k <= net.depth:
            raise BadInput(f"ladder(k={k}) does not fit a net of {net.depth} blocks.")
        return _reaching_from(net, net.depth - k)


def _reaching_from(net: Adapter, first: int) -> dict[str, nn.Parameter]:
    """The parameters of blocks `first`, `first` + 1, …, and of the parts above them."""
    if net.head is None:
        raise NotApplicable("Which part is the head is not known.", "Name it: head='classifier'.")
    if first < net.depth and net.shares_weights:
        raise NotApplicable(
            "The last blocks cannot be trained alone: the blocks of this net share weights."
        )
    parts = [*net.blocks[first:], net.head, *([net.out_ln] if net.out_ln is not None else [])]
    wanted = {id(p) for part in parts for p in part.parameters()}
    found = {name: p for name, p in net.trainable.items() if id(p) in wanted}
    if not found:
        raise NotApplicable("This net has no weights above its blocks, so that nothing would be trained.")
    return found
