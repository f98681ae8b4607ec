"""The two embedded data sets: plain 8×8 digits, and pairs of them labelled by their sum modulo 10.

Plain digits leave no room for depth (frozen random blocks come within a point or two of
backprop). Digit sums were chosen because depth matters there and block DFA fails there;
`docs/explanation/digit-sums.md` says so and shows the other case.
"""

from __future__ import annotations

import numpy as np

from walkback.core.streams import stream_seed
from walkback.data.dataset import Array, Dataset, DatasetMaker, standardise

TEST_IMAGES = 450
TRAIN_PAIRS = 50_000
TEST_PAIRS = 5_000
SOFTENING = 0.1  # some border pixels never vary; without it they would be divided by zero


def digits() -> Dataset:
    """1,347 train and 450 test images, pixels standardised."""
    x_train, y_train, x_test, y_test = _images()
    x_train, x_test = standardise(x_train, x_test, SOFTENING)
    return Dataset("digits", x_train, y_train, x_test, y_test, classes=10)


def digit_sums() -> Dataset:
    """50,000 train and 5,000 test pairs from disjoint images; an item's sources are its two images."""
    x_train, y_train, x_test, y_test = _images()
    rng = np.random.default_rng(stream_seed(0, "digit-sums", "pairs"))
    train = rng.integers(len(y_train), size=(TRAIN_PAIRS, 2))
    test = rng.integers(len(y_test), size=(TEST_PAIRS, 2))
    pairs_train, pairs_test = _side_by_side(x_train, train), _side_by_side(x_test, test)
    pairs_train, pairs_test = standardise(pairs_train, pairs_test, SOFTENING)
    return Dataset(
        "digit-sums",
        pairs_train,
        y_train[train].sum(axis=1) % 10,
        pairs_test,
        y_test[test].sum(axis=1) % 10,
        classes=10,
        train_sources=train.astype(np.int64),
        test_sources=test.astype(np.int64),
    )


def _images() -> tuple[Array, Array, Array, Array]:
    """The images as [items, 64] in 0…1, in a fixed shuffle, the last 450 held out."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(stream_seed(0, "digits", "split")).permutation(len(bunch.target))
    x, y = bunch.data[order] / 16.0, bunch.target[order].astype(np.int64)
    return x[:-TEST_IMAGES], y[:-TEST_IMAGES], x[-TEST_IMAGES:], y[-TEST_IMAGES:]


def _side_by_side(images: Array, pairs: Array) -> Array:
    return images[pairs].reshape(len(pairs), -1)


DIGITS = DatasetMaker({}, digits, "8×8 handwritten digits (UCI, shipped with scikit-learn)")
DIGIT_SUMS = DatasetMaker({}, digit_sums, "two digits side by side, label (a + b) mod 10")
