"""MNIST-style idx files, plain or gzipped: images and labels as the original release has them."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from walkback.core.errors import BadInput
from walkback.data.dataset import Array, Dataset, DatasetMaker

KINDS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
STEMS = {
    "x_train": "train-images*",
    "y_train": "train-labels*",
    "x_test": "t10k-images*",
    "y_test": "t10k-labels*",
}


def idx(location: str | None = None, augment: str = "none") -> Dataset:
    """Four files in one folder; grey images as bytes, normalised by the training split's moments."""
    if location is None or not Path(location).is_dir():
        where = f"There is no folder {location}." if location else "Where the idx files lie was not said."
        raise BadInput(where, "Give --data-dir their folder, or put it at idx under WALKBACK_DATA.")
    arrays = {key: read_idx(_find(Path(location), pattern)) for key, pattern in STEMS.items()}
    for key in ("x_train", "x_test"):
        if arrays[key].ndim != 3 or arrays[key].dtype != np.uint8:
            raise BadInput(f"{location}: {key} must hold grey images as bytes.")
        arrays[key] = arrays[key][:, None]
    y_train, y_test = (arrays[key].astype(np.int64).reshape(-1) for key in ("y_train", "y_test"))
    scaled = arrays["x_train"] / 255.0
    classes = max(int(y_train.max(initial=1)), int(y_test.max(initial=1))) + 1
    return Dataset(
        "idx",
        arrays["x_train"],
        y_train,
        arrays["x_test"],
        y_test,
        classes,
        mean=(float(scaled.mean()),),
        sd=(float(scaled.std()) or 1.0,),
        augment=augment,
    )


IDX = DatasetMaker({"augment": "none"}, idx, "MNIST-style idx files, .gz or plain; --data-dir DIR", "idx")


def read_idx(file: Path) -> Array:
    """One idx file: two zero bytes, a type, the number of axes, the axes, then the numbers."""
    data = _bytes_of(file)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in KINDS:
        raise BadInput(f"{file} is not an idx file.")
    axes, start = data[3], 4 + 4 * data[3]
    if len(data) < start:
        raise BadInput(f"{file} is truncated in its header.")
    shape = struct.unpack(f">{axes}I", data[4:start])
    kind = np.dtype(KINDS[data[2]])
    if len(data) - start != math.prod(shape) * kind.itemsize:
        raise BadInput(f"{file} is truncated: it promises {shape}, and holds {len(data) - start} bytes.")
    return np.frombuffer(data, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def _find(folder: Path, pattern: str) -> Path:
    found = sorted(file for file in folder.glob(pattern) if file.is_file())
    if not found:
        raise BadInput(f"{folder} has no {pattern} file.")
    return found[0]


def _bytes_of(file: Path) -> bytes:
    data = file.read_bytes()
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError) as error:
        raise BadInput(f"{file} is not a sound gzip file: {error}.") from None
