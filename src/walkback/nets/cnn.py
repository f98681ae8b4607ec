"""CNN: plain convolutions without skips or norms."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.core.spec import Value
from walkback.nets.images import BlockPlan, MapMean, image_shape, plan_stages


class CNN(nn.Module):
    """`h_0 = relu(K_e * x + b_e)`; `h_{l+1} = relu(K_l * h_l + b_l)`; `logits = W_o mean(h_L) + b_o`.

    3×3 kernels; a stage begins with stride 2 and twice the channels. Kernels are drawn after He et al.
    2015, arXiv:1502.01852, so that signals keep their size at any depth; the biases start at zero. The
    sizes are ours.
    """

    defaults: ClassVar[dict[str, Value]] = {"depth": 4, "width": 32, "stages": 2}

    def __init__(
        self, features: int, classes: int, depth: int = 4, width: int = 32, stages: int = 2
    ) -> None:
        super().__init__()
        self.image = image_shape(features, "cnn")
        plan = plan_stages(self.image, depth, width, stages, "cnn")
        self.stem = ReluConv(BlockPlan(self.image.channels, width, 1))
        self.blocks = nn.ModuleList(ReluConv(block) for block in plan)
        self.out_ln = MapMean()  # the pool only: there is no terminal norm
        self.out_head = nn.Linear(plan[-1].out, classes)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        h = self.stem(self.image.read(x))
        for block in self.blocks:
            h = block(h)
        return self.out_head(self.out_ln(h))


class ReluConv(nn.Module):
    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.conv = nn.Conv2d(plan.inside, plan.out, 3, plan.stride, padding=1)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")
        assert self.conv.bias is not None
        nn.init.zeros_(self.conv.bias)

    def forward(
        self, h: Float[Tensor, "batch inside height width"]
    ) -> Float[Tensor, "batch out down right"]:
        return F.relu(self.conv(h))
