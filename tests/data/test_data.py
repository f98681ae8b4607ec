from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from walkback.core.errors import BadInput
from walkback.core.spec import Call
from walkback.data import Dataset, load_dataset
from walkback.data.dataset import hash_arrays
from walkback.data.digits import _images
from walkback.data.npz import read_batch


def test_digits_split_is_a_partition_of_the_1797_images():
    x_train, y_train, x_test, y_test = _images()
    assert (len(y_train), len(y_test)) == (1347, 450)
    everything = np.concatenate([x_train, x_test])
    source = load_digits().data / 16
    assert sorted(map(bytes, everything)) == sorted(map(bytes, source))
    assert sorted(np.concatenate([y_train, y_test])) == sorted(load_digits().target)


def test_digit_sums_are_sums_of_their_two_images_and_share_none_with_training():
    data = load_dataset(Call("digit-sums"))
    _, _, images, labels = _images()
    assert data.x_train.shape == (50_000, 128) and data.x_test.shape == (5_000, 128)
    left, right = data.test_sources.T
    assert (data.y_test == (labels[left] + labels[right]) % 10).all()
    shown = data.x_test.reshape(-1, 2, 64)
    for side, chosen in enumerate((left, right)):
        order = np.argsort(chosen, kind="stable")
        same = chosen[order][1:] == chosen[order][:-1]
        equal = (shown[order, side][1:] == shown[order, side][:-1]).all(axis=1)
        assert same.sum() > 4000 and (equal == same).all(), "one image, one picture"
    assert data.test_sources.max() < 450
    train_images = {bytes(image) for image in _images()[0]}
    assert not any(bytes(image) in train_images for image in images)


def test_rows_are_held_out_with_their_images_so_none_of_those_was_trained_on():
    data = load_dataset(Call("digit-sums"))
    smaller, validation = data.hold_out(0.1)
    total = len(smaller.y_train) + len(validation.y_test)
    assert total == len(data.y_train) and abs(len(validation.y_test) / total - 0.1) < 0.01
    strange = ~np.isin(validation.test_sources, smaller.train_sources)
    assert strange.any(axis=1).all()
    _, labels, _, _ = _images()
    assert (validation.y_test == labels[validation.test_sources].sum(axis=1) % 10).all()
    assert (smaller.y_train == labels[smaller.train_sources].sum(axis=1) % 10).all()


def test_a_data_set_without_files_refuses_a_folder():
    with pytest.raises(BadInput, match=r"digits has no files.*\n?.*cifar10-lossless, cifar10-pixels, idx"):
        load_dataset(Call("digits"), "somewhere")


def test_training_moments_standardise_both_splits():
    data = load_dataset(Call("digits"))
    assert abs(data.x_train.mean()) < 1e-6
    assert 0.3 < data.x_train.std() < 1.0
    assert data.x_train.dtype == np.float32 and data.y_train.dtype == np.int64


def test_identity_hashes_see_every_change():
    data = load_dataset(Call("digits"))
    again = load_dataset(Call("digits"))
    assert data.identities() == again.identities()
    changed = data.x_test.copy()
    changed[0, 0] += 1e-3
    other = Dataset("digits", data.x_train, data.y_train, changed, data.y_test, 10)
    assert other.identity != data.identity and other.split_identity != data.split_identity
    assert (
        hash_arrays(np.zeros(4))
        != hash_arrays(np.zeros((2, 2)))
        != hash_arrays(np.zeros(4, dtype=np.float32))
    )


def arrays(**changes):
    x, y = np.zeros((6, 3)), np.array([0, 1, 2, 0, 1, 2])
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y, **changes}


def test_ones_own_npz_is_loaded(tmp_path):
    np.savez(tmp_path / "d.npz", **arrays())
    data = load_dataset(Call("npz"), str(tmp_path / "d.npz"))
    assert data.classes == 3 and data.x_train.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_train": np.array([0, 1])}, "6 inputs but 2 labels"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "labels must lie in"),
        ({"y_train": np.zeros(6)}, "whole-number labels"),
        ({"x_test": np.full((6, 3), np.nan)}, "NaN or infinite"),
        ({"x_test": np.zeros((6, 4))}, "a test item"),
        ({"x_test": np.zeros((0, 3)), "y_test": np.zeros(0, dtype=int)}, "is empty"),
        ({"x_train": np.array([{}] * 6, dtype=object)}, r"or one of Python objects\. Write it"),
    ],
)
def test_a_wrong_npz_is_refused_in_one_sentence(tmp_path, change, words):
    np.savez(tmp_path / "d.npz", **arrays(**change))
    with pytest.raises(BadInput, match=words):
        load_dataset(Call("npz"), str(tmp_path / "d.npz"))


def test_a_missing_array_or_file_is_named(tmp_path):
    with pytest.raises(BadInput, match="There is no file"):
        load_dataset(Call("npz"), str(tmp_path / "none.npz"))
    with pytest.raises(BadInput, match="No file was given"):
        load_dataset(Call("npz"))
    np.savez(tmp_path / "d.npz", x_train=np.zeros(3))
    with pytest.raises(BadInput, match="has no y_train, x_test, y_test"):
        load_dataset(Call("npz"), str(tmp_path / "d.npz"))
    (tmp_path / "e.npz").write_bytes(b"not a zip")
    with pytest.raises(BadInput, match="cannot be read"):
        load_dataset(Call("npz"), str(tmp_path / "e.npz"))


def test_a_batch_holds_x_or_inputs_by_name(tmp_path):
    file, x, y = tmp_path / "b.npz", np.zeros((2, 3)), np.array([0, 1])
    np.savez(file, x=x, y=y, mask=x)
    assert set(read_batch(str(file))[0]) == {"x", "mask"}, "nothing is left out without a word"
    np.savez(file, input_ids=x.astype(int), attention_mask=x.astype(int), y=y)
    inputs, labels = read_batch(str(file))
    assert set(inputs) == {"input_ids", "attention_mask"} and labels.tolist() == [0, 1]
    assert inputs["input_ids"].dtype == np.int64, "ids stay whole numbers"
    np.savez(file, y=y)
    with pytest.raises(BadInput, match="has no x"):
        read_batch(str(file))
