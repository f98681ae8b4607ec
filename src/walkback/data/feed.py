"""Batches of a data set on a device: byte images are cropped, flipped and normalised on the way."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from walkback.data.dataset import Array, Dataset

PAD = 4  # pixels around an image before a random crop of its own size


class Feed:
    """What training and testing read. Images stay bytes in memory; floats exist for one batch at a time."""

    def __init__(self, dataset: Dataset, device: str | torch.device = "cpu") -> None:
        self.dataset, self.device = dataset, torch.device(device)
        self.x_train, self.y_train = (self._put(a) for a in (dataset.x_train, dataset.y_train))
        self.x_test, self.y_test = (self._put(a) for a in (dataset.x_test, dataset.y_test))
        self.augments = dataset.augment != "none"
        self.windows = crop_windows(self.x_train, self._border()) if self.augments else self.x_train
        if dataset.mean is not None and dataset.sd is not None:
            channels = (1, -1, *[1] * (self.x_train.dim() - 2))
            mean, sd = (
                torch.tensor(v, device=self.device).view(channels) for v in (dataset.mean, dataset.sd)
            )
            self.scale, self.shift = 1 / (255 * sd), -mean / sd

    @property
    def items(self) -> int:
        return len(self.y_train)

    def train_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        y = self.y_train[rows]
        if not self.augments:
            return self.normalise(self.x_train[rows]), y
        return self.normalise(crop_and_flip(self.windows, rows, generator)), y

    def test_batch(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        return self.normalise(self.x_test[rows]), self.y_test[rows]

    def eval_batch(self) -> tuple[Tensor, Tensor]:
        return self.test_batch(self._put(self.dataset.eval_rows))

    def normalise(self, x: Tensor) -> Tensor:
        """(x/255 − mean)/sd per channel for bytes; arrays that came as numbers stay as they are."""
        if self.dataset.mean is None:
            return x
        return torch.addcmul(self.shift, x.to(self.shift.dtype), self.scale)

    def _border(self) -> Tensor:
        """The colour around an image that is cropped, in the units of the images."""
        colour = torch.zeros(self.x_train.shape[1])
        if self.dataset.augment == "crop-flip-mean":
            colour = 255 * torch.tensor(self.dataset.mean)
        return colour.round().to(self.x_train)

    def _put(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def crop_windows(
    images: UInt8[Tensor, "n c h w"], border: UInt8[Tensor, " c"]
) -> UInt8[Tensor, "n down right c h w"]:
    """Every crop of the images with a border of this colour, as a view: a batch copies what it takes."""
    n, c, h, w = images.shape
    padded = border.view(1, -1, 1, 1).repeat(n, 1, h + 2 * PAD, w + 2 * PAD)
    padded[:, :, PAD:-PAD, PAD:-PAD] = images
    sn, sc, sh, sw = padded.stride()
    return padded.as_strided((n, 2 * PAD + 1, 2 * PAD + 1, c, h, w), (sn, sh, sw, sc, sh, sw))


def crop_and_flip(
    windows: UInt8[Tensor, "n down right c h w"], rows: Int[Tensor, " batch"], generator: torch.Generator
) -> UInt8[Tensor, "batch c h w"]:
    """One random crop of each image, mirrored with probability one half."""
    down, right = torch.randint(2 * PAD + 1, (2, len(rows)), generator=generator).to(windows.device)
    mirrored = torch.rand(len(rows), generator=generator).to(windows.device) < 0.5
    crops = windows[rows, down, right]
    return torch.where(mirrored.view(-1, 1, 1, 1), crops.flip(-1), crops)
