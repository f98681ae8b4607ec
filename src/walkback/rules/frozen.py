"""Frozen blocks: the matched baseline of D3. Stem, terminal norm and head learn through fixed blocks."""

from __future__ import annotations

from torch import nn

from walkback.nets.adapter import Adapter
from walkback.rules.bp import BP


class Frozen(BP):
    name = "frozen"
    citation = "architecture-matched random blocks, diagnostic (d) of the FA paper"
    about = "blocks fixed at initialisation; the rest trained by backprop through them"
    role = "baseline"

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        fixed = net.block_parameters()
        return {name: p for name, p in super().trained(net).items() if name not in fixed}
