"""A data set: train and test arrays, what its items share, and hashes that say exactly which it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from walkback.core.errors import BadInput
from walkback.core.spec import RunSpec, Value
from walkback.core.streams import stream_seed

EVAL_SIZE = 512
AUGMENTATIONS = {
    "none": "items as they are",
    "crop-flip": "random crops of the image with a black border, half of them mirrored",
    "crop-flip-mean": "the same with a border of the mean colour, which is zero after normalising",
}
Array = NDArray[Any]


class DatasetMaker(NamedTuple):
    """How to make one data set: its parameters with their defaults, and the function that loads it.

    One that lies in files takes their place first, and `usual_place` is its name under `WALKBACK_DATA`.
    """

    defaults: Mapping[str, Value]
    load: Callable[..., Dataset]
    about: str
    usual_place: str | None = None


@dataclass(frozen=True)
class Dataset:
    """`x` float32 [items, …] or bytes [items, channels, height, width]; `y` int64 [items].

    Bytes are normalised by `mean` and `sd` (per channel, in 0…1) when a batch is made, and augmented in
    training as `augment` says. `train_sources[i]` and `test_sources[i]` name what an item is made of, where
    items share it. `call` is how a run names it; a data set made by hand has none.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: int
    train_sources: Array | None = None
    test_sources: Array | None = None
    mean: tuple[float, ...] | None = None
    sd: tuple[float, ...] | None = None
    augment: str = "none"
    call: str = ""

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTATIONS:
            raise BadInput(f"augment is one of {', '.join(AUGMENTATIONS)}, not {self.augment!r}.")
        if self.augment == "crop-flip-mean" and self.mean is None:
            raise BadInput(f"{self.name} has no mean colour to make a border of.", "Use augment=crop-flip.")
        for split in ("train", "test"):
            x, y = getattr(self, f"x_{split}"), getattr(self, f"y_{split}")
            _check_split(f"{self.name} {split}", x, y, self.classes)
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise BadInput(
                f"{self.name}: a training item has shape {self.x_train.shape[1:]}, "
                f"a test item {self.x_test.shape[1:]}."
            )

    @cached_property
    def identity(self) -> str:
        """The whole data set: every array, its shape and its type."""
        return hash_arrays(self.x_train, self.y_train, self.x_test, self.y_test)

    def serves(self, spec: RunSpec) -> bool:
        """Whether a run was planned on it: the same arrays, fed as its call says."""
        return self.identity == spec.data_identity and self.call in ("", str(spec.data))

    @cached_property
    def split_identity(self) -> str:
        """The test items and their order: two accuracies are paired only if these agree."""
        return hash_arrays(self.x_test, self.y_test)

    @cached_property
    def eval_rows(self) -> Array:
        """The fixed test items that diagnostics are measured on; quantities at N=128 use the first 128."""
        order = np.random.default_rng(stream_seed(0, "evaluation batch")).permutation(len(self.y_test))
        return order[:EVAL_SIZE]

    def hold_out(self, share: float) -> tuple[Dataset, Dataset]:
        """The same data without about this share of its training rows, and those rows as a test split.

        Which rows is fixed. Where rows are made of sources, some sources are held out with every row that
        has one of them: a net that knows the others by heart does not know these.
        """
        rng = np.random.default_rng(stream_seed(0, "validation rows"))
        sources = np.arange(len(self.y_train)) if self.train_sources is None else self.train_sources
        sources = sources.reshape(len(self.y_train), -1)
        names = np.unique(sources)
        drawn = max(1, round((1 - (1 - share) ** (1 / sources.shape[1])) * len(names)))
        held = np.asarray(np.isin(sources, rng.permutation(names)[:drawn]).any(axis=1))
        smaller = replace(self, **self._training_rows(~held, "train"))
        return smaller, replace(smaller, **self._training_rows(held, "test"))

    def _training_rows(self, rows: Array, split: str) -> dict[str, Any]:
        """These rows of the training split, as the fields of `split`."""
        sources = None if self.train_sources is None else self.train_sources[rows]
        x, y = self.x_train[rows], self.y_train[rows]
        return {f"x_{split}": x, f"y_{split}": y, f"{split}_sources": sources}

    @property
    def eval_batch(self) -> tuple[Array, Array]:
        return self.x_test[self.eval_rows], self.y_test[self.eval_rows]

    def identities(self) -> dict[str, str]:
        """What a bundle records."""
        batch = hash_arrays(*self.eval_batch)
        return {"dataset": self.identity, "split": self.split_identity, "eval_batch": batch}


def hash_arrays(*arrays: Array) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def standardise(train: Array, test: Array, softening: float) -> tuple[Array, Array]:
    """`(x − mean) / (sd + softening)` with the training split's moments, so nothing leaks from test."""
    mean, sd = train.mean(axis=0), train.std(axis=0)
    train, test = ((x - mean) / (sd + softening) for x in (train, test))
    return train.astype(np.float32), test.astype(np.float32)


def _check_split(name: str, x: Array, y: Array, classes: int) -> None:
    if len(x) != len(y):
        raise BadInput(f"{name}: {len(x)} inputs but {len(y)} labels.")
    if len(x) == 0:
        raise BadInput(f"{name} is empty.")
    if x.dtype not in (np.float32, np.uint8) or y.dtype != np.int64:
        raise BadInput(
            f"{name}: float32 or bytes and int64 labels are needed, not {x.dtype} and {y.dtype}."
        )
    if not np.isfinite(x).all():
        raise BadInput(f"{name}: the inputs contain NaN or infinite values.")
    if y.min() < 0 or y.max() >= classes:
        raise BadInput(f"{name}: labels must lie in 0…{classes - 1}, found {y.min()}…{y.max()}.")
