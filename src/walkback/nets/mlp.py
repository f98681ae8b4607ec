"""MLP: a plain deep net without skips or norms, the setting in which DFA was proposed."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from walkback.core.errors import BadInput
from walkback.core.spec import Value


class MLP(nn.Module):
    """`h_0 = relu(W_e x + b_e)`; `h_{l+1} = relu(W_l h_l + b_l)`; `logits = W_o h_L + b_o`.

    Hidden weights are drawn after He et al. 2015, arXiv:1502.01852, so that signals keep their size at
    any depth; the biases start at zero.
    """

    defaults: ClassVar[dict[str, Value]] = {"depth": 4, "width": 256}

    def __init__(self, features: int, classes: int, depth: int = 4, width: int = 256) -> None:
        super().__init__()
        if min(depth, width) < 1:
            raise BadInput("mlp needs a depth and width of at least 1.")
        self.stem = ReluLayer(features, width)
        self.blocks = nn.ModuleList(ReluLayer(width, width) for _ in range(depth))
        self.out_ln = nn.Identity()
        self.out_head = nn.Linear(width, classes)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        return self.out_head(h)


class ReluLayer(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, width)
        nn.init.kaiming_normal_(self.fc.weight, nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, h: Float[Tensor, "batch features"]) -> Float[Tensor, "batch width"]:
        return self.fc(h).relu()
