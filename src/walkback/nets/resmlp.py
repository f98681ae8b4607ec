"""ResMLP: the main audited net, a residual MLP with pre-norm blocks and a terminal norm."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.core.errors import BadInput
from walkback.core.spec import Value


class ResMLP(nn.Module):
    """`h_0 = W_e x + b_e`; `h_l = h_{l−1} + f_l(h_{l−1})`; `logits = W_o LN_out(h_L) + b_o`.

    `f_l(h) = W2 gelu(W1 LN(h) + b1) + b2`. With `terminal_norm=none` LN_out is the identity, a
    control: without it nothing hides the scale of h_L from the loss.
    """

    defaults: ClassVar[dict[str, Value]] = {
        "depth": 4,
        "width": 256,
        "expansion": 4,
        "terminal_norm": "layer",
    }

    def __init__(
        self,
        features: int,
        classes: int,
        depth: int = 4,
        width: int = 256,
        expansion: int = 4,
        terminal_norm: str = "layer",
    ) -> None:
        super().__init__()
        if min(depth, width, expansion) < 1:
            raise BadInput("resmlp needs a depth, width and expansion of at least 1.")
        if terminal_norm not in ("layer", "none"):
            raise BadInput(f"terminal_norm is 'layer' or 'none', not {terminal_norm!r}.")
        self.stem = nn.Linear(features, width)
        self.blocks = nn.ModuleList(ResBlock(width, expansion) for _ in range(depth))
        self.out_ln = nn.LayerNorm(width) if terminal_norm == "layer" else nn.Identity()
        self.out_head = nn.Linear(width, classes)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        return self.out_head(self.out_ln(h))


class ResBlock(nn.Module):
    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, expansion * width)
        self.fc2 = nn.Linear(expansion * width, width)

    def forward(self, h: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        return h + self.fc2(F.gelu(self.fc1(self.ln(h))))
