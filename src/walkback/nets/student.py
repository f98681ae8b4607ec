"""StudentNet: a residual MLP without any norm, for tasks made by a random teacher of its own kind."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from walkback.core.errors import BadInput
from walkback.core.spec import Value


class StudentNet(nn.Module):
    """`h_0 = W_e x + b_e`; `h_{l+1} = h_l + W2 tanh(W1 h_l + b1) + b2`; `logits = W_o h_L + b_o`.

    Ours. Nothing hides the scale of h_L from the loss, and what it is taught (data set `teacher`) can
    be expressed: the teacher is the same formula with other weights.
    """

    defaults: ClassVar[dict[str, Value]] = {"depth": 4, "width": 128, "expansion": 2}

    def __init__(
        self, features: int, classes: int, depth: int = 4, width: int = 128, expansion: int = 2
    ) -> None:
        super().__init__()
        if min(depth, width, expansion) < 1:
            raise BadInput("student needs a depth, width and expansion of at least 1.")
        self.stem = nn.Linear(features, width)
        self.blocks = nn.ModuleList(TanhResBlock(width, expansion) for _ in range(depth))
        self.out_ln = nn.Identity()
        self.out_head = nn.Linear(width, classes)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        return self.out_head(h)


class TanhResBlock(nn.Module):
    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, expansion * width)
        self.fc2 = nn.Linear(expansion * width, width)

    def forward(self, h: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        return h + self.fc2(self.fc1(h).tanh())
