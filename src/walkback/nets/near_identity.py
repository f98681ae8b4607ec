"""A ResMLP whose blocks begin near the identity: the FA paper's own block, as its public code has it."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from walkback.core.errors import BadInput
from walkback.core.spec import Value
from walkback.nets.resmlp import ResBlock, ResMLP


class NearIdentityMLP(ResMLP):
    """`resmlp` with `W2 ~ N(0, start²)`, `b2 = 0` and, by default, no expansion: W1 is square.

    At first a branch has a tenth of its state's length, so that a stem and a head under frozen blocks are
    all but a linear model, and backprop's blocks are small beside the stream.
    """

    defaults: ClassVar[dict[str, Value]] = {**ResMLP.defaults, "expansion": 1, "start": 0.01}

    def __init__(
        self,
        features: int,
        classes: int,
        depth: int = 4,
        width: int = 256,
        expansion: int = 1,
        terminal_norm: str = "layer",
        start: float = 0.01,
    ) -> None:
        super().__init__(features, classes, depth, width, expansion, terminal_norm)
        if not start >= 0:
            raise BadInput(f"near-identity begins with a deviation of 0 or more, not {start}.")
        for block in self.blocks:
            assert isinstance(block, ResBlock)
            nn.init.normal_(block.fc2.weight, std=start)
            nn.init.zeros_(block.fc2.bias)
