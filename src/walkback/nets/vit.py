"""ViT-Mini: a small vision transformer with a norm before each branch and one before the head."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.core.errors import BadInput
from walkback.core.spec import Value
from walkback.nets.images import ImageShape, image_shape

SMALL = 0.02  # sd of the class token and the positions at initialisation


class ViT(nn.Module):
    """`h_0 = [token; patches W_e + b_e] + positions`; blocks; `logits = W_o pool(LN_out(h_L)) + b_o`.

    A block is `u = h + attention(LN(h))`, then `u + W2 gelu(W1 LN(u) + b1) + b2`: Dosovitskiy et al.
    2021, arXiv:2010.11929. `pool=token` reads the class token; `pool=mean` has none and reads the mean
    of the patches. The sizes are ours.
    """

    defaults: ClassVar[dict[str, Value]] = {
        "depth": 4,
        "width": 128,
        "heads": 4,
        "patch": 4,
        "expansion": 4,
        "pool": "token",
    }

    def __init__(
        self,
        features: int,
        classes: int,
        depth: int = 4,
        width: int = 128,
        heads: int = 4,
        patch: int = 4,
        expansion: int = 4,
        pool: str = "token",
    ) -> None:
        super().__init__()
        if min(depth, width, heads, patch, expansion) < 1:
            raise BadInput("vit needs a depth, width, heads, patch and expansion of at least 1.")
        if pool not in ("token", "mean"):
            raise BadInput(f"pool is 'token' or 'mean', not {pool!r}.")
        if width % heads:
            raise BadInput(f"vit: a width of {width} cannot be shared equally by {heads} heads.")
        image = image_shape(features, "vit")
        self.stem = PatchStem(image, width, patch, token=pool == "token")
        self.blocks = nn.ModuleList(ViTBlock(width, heads, expansion) for _ in range(depth))
        self.out_ln = PooledNorm(width, pool)
        self.out_head = nn.Linear(width, classes)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.out_head(self.out_ln(h))


class PatchStem(nn.Module):
    """An image as a row of tokens: its patches, each projected, and perhaps a class token before them."""

    def __init__(self, image: ImageShape, width: int, patch: int, *, token: bool) -> None:
        super().__init__()
        if image.size % patch:
            raise BadInput(f"vit: patches of {patch} do not tile an image of {image.size}×{image.size}.")
        self.image, self.patch = image, patch
        self.fc = nn.Linear(image.channels * patch**2, width)
        self.token = nn.Parameter(SMALL * torch.randn(1, width)) if token else None
        count = (image.size // patch) ** 2 + token
        self.positions = nn.Parameter(SMALL * torch.randn(count, width))

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch tokens width"]:
        patches = F.unfold(self.image.read(x), self.patch, stride=self.patch).transpose(1, 2)
        tokens = self.fc(patches)
        if self.token is not None:
            tokens = torch.cat([self.token.expand(len(x), 1, -1), tokens], dim=1)
        return tokens + self.positions


class ViTBlock(nn.Module):
    def __init__(self, width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.fc1 = nn.Linear(width, expansion * width)
        self.fc2 = nn.Linear(expansion * width, width)

    def forward(self, h: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        h = h + self.attention(self.ln1(h))
        return h + self.fc2(F.gelu(self.fc1(self.ln2(h))))


class Attention(nn.Module):
    """`softmax(q kᵀ / √d_head) v` per head. Every matrix is an nn.Linear: layer-form rules reach it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, h: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        q_BHTd, k_BHTd, v_BHTd = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores_BHTT = q_BHTd @ k_BHTd.transpose(-1, -2) * q_BHTd.shape[-1] ** -0.5
        mixed_BTHd = (scores_BHTT.softmax(-1) @ v_BHTd).transpose(1, 2)
        return self.out(mixed_BTHd.flatten(2))


class PooledNorm(nn.Module):
    """The terminal LayerNorm of every token, then the one vector that the head reads."""

    def __init__(self, width: int, pool: str) -> None:
        super().__init__()
        self.ln, self.pool = nn.LayerNorm(width), pool

    def forward(self, h: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch width"]:
        return self.ln(h[:, 0]) if self.pool == "token" else self.ln(h).mean(1)
