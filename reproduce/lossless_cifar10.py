"""Writes CIFAR-10's own pixels in the order of files that hold the same images as JPEG.

python reproduce/lossless_cifar10.py JPEG_DIR ORIGINAL_DIR OUT_DIR

Runs on both then see the same batches, so that JPEG is all that differs between them. Every image is found
by what JPEG leaves of it, means over squares of 4×4 pixels; it is refused unless each is found exactly once
and has the same label in both.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from walkback.core.errors import BadInput
from walkback.core.spec import Call
from walkback.data import load_dataset

SQUARE, CHUNK = 4, 1000


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("jpeg", "original", "out"):
        options.add_argument(name)
    given = options.parse_args(arguments)
    jpeg = load_dataset(Call("cifar10"), given.jpeg)
    original = load_dataset(Call("cifar10-lossless"), given.original)
    found = {}
    for split in ("train", "test"):
        coded, labels = getattr(jpeg, f"x_{split}"), getattr(jpeg, f"y_{split}")
        pixels, own = getattr(original, f"x_{split}"), getattr(original, f"y_{split}")
        order = match(coded, pixels)
        if not np.array_equal(own[order], labels):
            raise BadInput(f"{split}: some images have another label in {given.original}.")
        found[split] = pixels[order], labels
        off = np.sqrt(np.square(coded.astype(np.float32) - pixels[order]).mean(dtype=np.float64))
        sys.stdout.write(f"{split}: {len(order)} images found; JPEG is off by {off:.2f} of 255 (rms)\n")
    Path(given.out).mkdir(parents=True, exist_ok=True)
    for split, (pixels, labels) in found.items():
        write(Path(given.out) / f"{split}-00000-of-00001.parquet", pixels, labels)


def match(coded: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """For each coded image the place of the original that is nearest to it."""
    wanted, known = _squares(coded), _squares(pixels)
    sizes = (known**2).sum(axis=1)
    parts = range(0, len(wanted), CHUNK)
    nearest = [(sizes - 2 * wanted[start : start + CHUNK] @ known.T).argmin(axis=1) for start in parts]
    order = np.concatenate(nearest)
    if len(np.unique(order)) != len(pixels):
        raise BadInput(
            f"Only {len(np.unique(order))} of {len(pixels)} images were found: not the same ones."
        )
    return order


def _squares(images: np.ndarray) -> np.ndarray:
    n, channels, height, width = images.shape
    cut = images.reshape(n, channels, height // SQUARE, SQUARE, width // SQUARE, SQUARE)
    return cut.mean(axis=(3, 5), dtype=np.float32).reshape(n, -1)


def write(file: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    cells = [{"bytes": _png(image), "path": None} for image in pixels]
    pq.write_table(pa.table({"img": cells, "label": labels}), file)


def _png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(out, "PNG")
    return out.getvalue()


if __name__ == "__main__":
    main()
