"""What the image nets share: the shape of an image from its number of features, and the plan of stages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from walkback.core.errors import BadInput

CHANNELS = (1, 2, 3)  # grey, a pair of grey images as in digit-sums, colour
SMALLEST_MAP = 2  # BatchNorm has no variance for one sample of one position


@dataclass(frozen=True)
class ImageShape:
    channels: int
    size: int

    @property
    def features(self) -> int:
        return self.channels * self.size**2

    def read(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch channels size size"]:
        """Flat rows or images as images; any other shape is refused, since reshaping would scramble it.

        On a CPU their channels lie side by side, and so do those of all maps made of them: the order in
        which convolutions are computed there, so that none is brought into it and back again.
        """
        whole, given = (self.channels, self.size, self.size), tuple(x.shape[1:])
        if given not in (whole, whole[self.channels == 1 :], (self.features,)):
            raise BadInput(
                f"This net reads images {whole} or rows of {self.features} numbers, not items {given}."
            )
        image = x.reshape(len(x), *whole)
        return image.contiguous(memory_format=torch.channels_last) if x.device.type == "cpu" else image


def image_shape(features: int, net: str) -> ImageShape:
    """The square image with `features` numbers. c·s² for c = 1, 2, 3 are never equal, so there is one."""
    for channels in CHANNELS:
        size = math.isqrt(features // channels)
        if features > 0 and channels * size**2 == features:
            return ImageShape(channels, size)
    raise BadInput(
        f"{net} reads square images, and {features} numbers are none of 1, 2 or 3 channels.",
        "Use mlp or resmlp for inputs that are not images.",
    )


@dataclass(frozen=True)
class BlockPlan:
    """Channels in and out of a block, and the stride that halves the map where it is 2."""

    inside: int
    out: int
    stride: int


def plan_stages(image: ImageShape, depth: int, width: int, stages: int, net: str) -> list[BlockPlan]:
    """`depth` blocks in `stages` equal groups; each group after the first halves the map and doubles the
    channels, as in He et al. 2016, arXiv:1512.03385, section 4.2."""
    if min(depth, width, stages) < 1:
        raise BadInput(f"{net} needs a depth, width and number of stages of at least 1.")
    if depth % stages:
        raise BadInput(f"{net}: {depth} blocks cannot be shared equally by {stages} stages.")
    last = -(-image.size // 2 ** (stages - 1))
    if last < SMALLEST_MAP:
        raise BadInput(
            f"{net}: after {stages} stages nothing is left of an image of {image.size}×{image.size}.",
            "Use fewer stages.",
        )
    plan, channels = [], width
    for index in range(depth):
        first = index > 0 and index % (depth // stages) == 0
        plan.append(BlockPlan(channels, channels * 2 if first else channels, 2 if first else 1))
        channels = plan[-1].out
    return plan


class MapMean(nn.Module):
    """The mean over all positions of a map: what the head of an image net reads."""

    def forward(self, h: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels"]:
        return h.mean((2, 3))
