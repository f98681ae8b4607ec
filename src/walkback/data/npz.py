"""One's own data: an .npz file with x_train, y_train, x_test and y_test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from walkback.core.errors import BadInput
from walkback.data.dataset import Array, Dataset, DatasetMaker

MOST_CLASSES = 1_000_000
KEYS = ("x_train", "y_train", "x_test", "y_test")


def npz(location: str | None = None) -> Dataset:
    arrays = read_npz(location, KEYS)
    y_train, y_test = (as_labels(arrays[key], f"{location}: {key}") for key in ("y_train", "y_test"))
    numbers = (as_numbers(arrays[key], f"{location}: {key}") for key in ("x_train", "x_test"))
    x_train, x_test = (array.astype(np.float32) for array in numbers)
    classes = max(int(y_train.max(initial=1)), int(y_test.max(initial=1))) + 1
    return Dataset("npz", x_train, y_train, x_test, y_test, classes)


def read_batch(location: str) -> tuple[dict[str, Array], Array]:
    """Inputs, every array beside y by its name, and labels of one batch."""
    arrays = read_npz(location, ("y",), others=True)
    y = as_labels(arrays.pop("y"), f"{location}: y")
    if not arrays:
        raise BadInput(f"{location} has no x.", "Nor does it have inputs by name, such as input_ids.")
    return {name: as_numbers(array, f"{location}: {name}") for name, array in arrays.items()}, y


def read_npz(location: str | None, keys: tuple[str, ...], *, others: bool = False) -> dict[str, Array]:
    """The named arrays of an .npz file, or all that it holds; pickled objects are never loaded."""
    if location is None:
        raise BadInput("No file was given.", f"Name an .npz file that holds {', '.join(keys)}.")
    if not Path(location).is_file():
        raise BadInput(f"There is no file {location}.")
    try:
        with np.load(location, allow_pickle=False) as file:
            missing = [key for key in keys if key not in file.files]
            if missing:
                raise BadInput(f"{location} has no {', '.join(missing)}.", f"It has {file.files}.")
            return {key: file[key] for key in (file.files if others else keys)}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile):
        raise BadInput(
            f"{location} cannot be read as plain arrays: no sound .npz file, or one of Python objects.",
            "Write it with numpy.savez(file, x=…, y=…), of numbers alone.",
        ) from None


def as_labels(y: Array, name: str) -> Array:
    if not np.issubdtype(y.dtype, np.integer):
        raise BadInput(f"{name} must hold whole-number labels, not {y.dtype}.")
    if y.max(initial=0) >= MOST_CLASSES:
        raise BadInput(f"{name} holds the label {y.max()}; labels count classes from 0.")
    return y.astype(np.int64)


def as_numbers(x: Array, name: str) -> Array:
    """In this machine's byte order, so that torch takes it."""
    if not (np.issubdtype(x.dtype, np.integer) or np.issubdtype(x.dtype, np.floating)) or x.ndim < 2:
        raise BadInput(f"{name} must hold numbers as [items, …], not {x.dtype} of shape {x.shape}.")
    return np.ascontiguousarray(x.astype(x.dtype.newbyteorder("=")))


NPZ = DatasetMaker({}, npz, "one's own arrays: --data npz --data-dir FILE.npz", "data.npz")
