"""SmallResNet: convolutions with BatchNorm and skips, and no LayerNorm anywhere."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.core.spec import Value
from walkback.nets.images import BlockPlan, MapMean, image_shape, plan_stages


class SmallResNet(nn.Module):
    """`h_0 = relu(BN(K_e * x))`; `h_l = relu(s_l(h_{l−1}) + f_l(h_{l−1}))`; `logits = W_o mean(h_L) + b_o`.

    `f_l(h) = BN(K2 * relu(BN(K1 * h)))`, 3×3 kernels. The skip s_l is the identity, or where a stage
    begins a 1×1 convolution of stride 2 with BatchNorm: the basic block with projection shortcuts of
    He et al. 2016, arXiv:1512.03385. The sizes are ours. Measured in eval mode, where BatchNorm uses its
    running moments and a gradient belongs to its own sample.
    """

    defaults: ClassVar[dict[str, Value]] = {"depth": 6, "width": 16, "stages": 3}

    def __init__(
        self, features: int, classes: int, depth: int = 6, width: int = 16, stages: int = 3
    ) -> None:
        super().__init__()
        self.image = image_shape(features, "small-resnet")
        plan = plan_stages(self.image, depth, width, stages, "small-resnet")
        self.stem = ConvNorm(self.image.channels, width, kernel=3, stride=1)
        self.blocks = nn.ModuleList(ConvResBlock(block) for block in plan)
        self.out_ln = MapMean()  # the pool only: there is no terminal norm
        self.out_head = nn.Linear(plan[-1].out, classes)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        h = F.relu(self.stem(self.image.read(x)))
        for block in self.blocks:
            h = block(h)
        return self.out_head(self.out_ln(h))


class ConvNorm(nn.Module):
    """A convolution and its BatchNorm, which makes a bias of the convolution pointless."""

    def __init__(self, inside: int, out: int, *, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, out, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(
        self, h: Float[Tensor, "batch inside height width"]
    ) -> Float[Tensor, "batch out down right"]:
        return self.norm(self.conv(h))


class ConvResBlock(nn.Module):
    def __init__(self, plan: BlockPlan) -> None:
        super().__init__()
        self.first = ConvNorm(plan.inside, plan.out, kernel=3, stride=plan.stride)
        self.second = ConvNorm(plan.out, plan.out, kernel=3, stride=1)
        same = plan.inside == plan.out and plan.stride == 1
        self.skip: nn.Module = (
            nn.Identity() if same else ConvNorm(plan.inside, plan.out, kernel=1, stride=plan.stride)
        )

    def forward(
        self, h: Float[Tensor, "batch inside height width"]
    ) -> Float[Tensor, "batch out down right"]:
        return F.relu(self.skip(h) + self.second(F.relu(self.first(h))))
