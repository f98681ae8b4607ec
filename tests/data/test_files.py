"""Data files as people have them: three layouts of CIFAR-10, idx files; broken and hostile ones too."""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from walkback.core.errors import BadInput
from walkback.core.spec import Call
from walkback.data import cifar10, load_dataset
from walkback.data.dataset import Dataset
from walkback.data.feed import PAD, Feed, crop_and_flip, crop_windows
from walkback.data.safe_pickle import load_plain_pickle


@pytest.fixture
def small(monkeypatch):
    """CIFAR-10's layouts with ten training and four test images, so that fixtures stay small."""
    monkeypatch.setattr(cifar10, "TRAIN", 10)
    monkeypatch.setattr(cifar10, "TEST", 4)
    monkeypatch.delenv("WALKBACK_DATA", raising=False)
    rng = np.random.default_rng(0)
    return {
        split: (rng.integers(256, size=(n, 3, 32, 32), dtype=np.uint8), rng.integers(10, size=n))
        for split, n in (("train", 10), ("test", 4))
    }


def batches(small):
    """File name → images and labels, as the original release splits them."""
    x, y = small["train"]
    parts = {f"data_batch_{i + 1}": (x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2]) for i in range(5)}
    return {**parts, "test_batch": small["test"]}


def write_binary(folder: Path, small) -> Path:
    for name, (x, y) in batches(small).items():
        rows = np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def write_python(folder: Path, small) -> Path:
    for name, (x, y) in batches(small).items():
        batch = {b"data": x.reshape(len(x), -1), b"labels": y.tolist(), b"filenames": [b"a.png"] * len(x)}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def write_parquet(folder: Path, small, jpeg_rows=(), of=("train", "test")) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split, (x, y) in small.items():
        kinds = ("JPEG" if split in of and row in jpeg_rows else "PNG" for row in range(len(x)))
        cells = [{"bytes": coded(image, kind), "path": None} for image, kind in zip(x, kinds, strict=True)]
        table = pa.table({"img": cells, "label": y})
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")
    return folder


def coded(image, kind) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("write", [write_binary, write_python, write_parquet])
@pytest.mark.parametrize("nested", [False, True])
def test_every_layout_of_cifar10_gives_the_same_arrays(tmp_path, small, write, nested):
    folder = tmp_path / "cifar-10" if nested else tmp_path
    folder.mkdir(exist_ok=True)
    write(folder, small)
    data = load_dataset(Call("cifar10"), str(tmp_path))
    for split, (x, y) in small.items():
        assert np.array_equal(getattr(data, f"x_{split}"), x)
        assert np.array_equal(getattr(data, f"y_{split}"), y)


def test_walkback_data_names_the_folder(tmp_path, small, monkeypatch):
    (tmp_path / "cifar10").mkdir()
    write_binary(tmp_path / "cifar10", small)
    monkeypatch.setenv("WALKBACK_DATA", str(tmp_path))
    assert len(load_dataset(Call("cifar10")).y_train) == 10


def test_walkback_data_holds_arrays_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setenv("WALKBACK_DATA", str(tmp_path))
    x, y = np.zeros((4, 3), dtype=np.float32), np.arange(4)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert load_dataset(Call("npz")).classes == 4
    with pytest.raises(BadInput, match="idx"):
        load_dataset(Call("idx"))


def refused(folder, words):
    with pytest.raises(BadInput) as caught:
        load_dataset(Call("cifar10"), str(folder) if folder else None)
    assert words in str(caught.value), str(caught.value)


def test_absent_data_says_where_it_looked_and_what_to_do(tmp_path, small):
    refused(None, "Where CIFAR-10 lies was not said. Give --data-dir")
    refused(tmp_path / "none", f"There is no folder {tmp_path / 'none'}.")
    refused(tmp_path, f"{tmp_path} holds no CIFAR-10")


def test_missing_truncated_and_short_files_are_named(tmp_path, small):
    write_binary(tmp_path, small)
    (tmp_path / "data_batch_3.bin").write_bytes((tmp_path / "data_batch_3.bin").read_bytes()[:-5])
    refused(tmp_path, "data_batch_3.bin is truncated")
    (tmp_path / "data_batch_3.bin").write_bytes(b"")
    refused(tmp_path, "data_batch_3.bin is truncated")
    (tmp_path / "data_batch_3.bin").unlink()
    refused(tmp_path, "data_batch_3.bin is missing")
    (tmp_path / "data_batch_3.bin").write_bytes((tmp_path / "test_batch.bin").read_bytes())
    refused(tmp_path, "12 train images, where CIFAR-10 has 10")


class Evil:
    def __reduce__(self):
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, small, protocol, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path, small)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Evil()}, protocol=protocol))
    refused(tmp_path, "data_batch_2: It asks for")
    assert not (tmp_path / "pwned").exists()


def test_pickles_of_plain_data_are_read_and_others_refused():
    plain = {b"a": [1, 2.5, b"x", "text", None, True], b"b": np.arange(6).reshape(2, 3)}
    for protocol in range(5):
        found = load_plain_pickle(pickle.dumps(plain, protocol=protocol), "f")
        assert found[b"a"][:3] == [1, 2.5, b"x"] and np.array_equal(found[b"b"], plain[b"b"])
    for other in (Path("x"), np.float64, print, complex, np.random.default_rng(0)):
        with pytest.raises(BadInput):
            load_plain_pickle(pickle.dumps(other), "f")
    for junk in (b"", b"junk", pickle.dumps(plain)[:-3]):
        with pytest.raises(BadInput, match="f cannot be read"):
            load_plain_pickle(junk, "f")


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((2, 100), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((2, 3072), np.uint8)},
        [1, 2],
    ],
)
def test_a_python_batch_of_another_shape_is_named(tmp_path, small, batch):
    write_python(tmp_path, small)
    (tmp_path / "data_batch_4").write_bytes(pickle.dumps(batch, protocol=2))
    refused(tmp_path, "data_batch_4 is not a CIFAR-10 batch")


def test_broken_parquet_files_are_named(tmp_path, small):
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = write_parquet(tmp_path, small) / "train-00000-of-00001.parquet"
    sound = file.read_bytes()
    file.write_bytes(sound[: len(sound) // 2])
    refused(tmp_path, f"{file} is not a sound parquet file")
    pq.write_table(pa.table({"pixels": [1], "label": [2]}), file)
    refused(tmp_path, f"{file} has columns ['label', 'pixels']")
    for cell, words in (
        ({"bytes": b"no image"}, "row 0: the image cannot be decoded"),
        ({"bytes": coded(np.zeros((3, 8, 8), np.uint8), "PNG")}, "row 0: the image is 8×8, not 32×32"),
        ({"bytes": None, "path": "x"}, "row 0: there are no image bytes"),
    ):
        pq.write_table(pa.table({"img": [cell], "label": [2]}), file)
        refused(tmp_path, words)
    good = {"bytes": coded(small["train"][0][0], "PNG")}
    pq.write_table(pa.table({"img": [good], "label": [0.5]}), file)
    refused(tmp_path, "labels must be whole numbers")


def write_idx(file: Path, array, kind=0x08, zipped=False):
    data = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()
    file.write_bytes(gzip.compress(data) if zipped else data)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read_plain_and_gzipped(tmp_path, zipped):
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(6, 8, 8), dtype=np.uint8), np.array([0, 1, 2, 0, 1, 2], np.uint8)
    for split in ("train", "t10k"):
        write_idx(tmp_path / f"{split}-images-idx3-ubyte", x, zipped=zipped)
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte", y, zipped=zipped)
    data = load_dataset(Call("idx"), str(tmp_path))
    assert data.x_train.shape == (6, 1, 8, 8) and data.classes == 3
    fed = Feed(data).normalise(torch.from_numpy(data.x_train))
    assert abs(float(fed.mean())) < 1e-5 and float(fed.std(unbiased=False)) == pytest.approx(1, abs=1e-4)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0\0")
    with pytest.raises(BadInput, match="truncated in its header"):
        load_dataset(Call("idx"), str(tmp_path))
    write_idx(tmp_path / "t10k-images-idx3-ubyte", x)
    short = (tmp_path / "t10k-images-idx3-ubyte").read_bytes()[:-1]
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(short)
    with pytest.raises(BadInput, match=r"t10k-images-idx3-ubyte is truncated"):
        load_dataset(Call("idx"), str(tmp_path))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"hello")
    with pytest.raises(BadInput, match="is not an idx file"):
        load_dataset(Call("idx"), str(tmp_path))


@pytest.mark.parametrize("border", [(0, 0, 0), (125, 0, 200)])
def test_a_crop_is_a_shifted_window_of_the_padded_image_and_half_are_mirrored(border):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=rng)
    rows = torch.arange(50).repeat(40)
    windows = crop_windows(images, torch.tensor(border, dtype=torch.uint8))
    crops = crop_and_flip(windows, rows, torch.Generator().manual_seed(1))
    draws = torch.Generator().manual_seed(1)
    down, right = torch.randint(2 * PAD + 1, (2, 2000), generator=draws)
    mirrored = torch.rand(2000, generator=draws) < 0.5
    channels = [
        torch.nn.functional.pad(images[:, c], (PAD,) * 4, value=colour) for c, colour in enumerate(border)
    ]
    padded = torch.stack(channels, dim=1)
    for i in range(0, 2000, 7):
        slow = padded[rows[i], :, down[i] : down[i] + 8, right[i] : right[i] + 8]
        assert torch.equal(crops[i], slow.flip(-1) if mirrored[i] else slow)
    assert 900 < int(mirrored.sum()) < 1100
    assert set(down.tolist()) == set(right.tolist()) == set(range(9))


def test_normalising_bytes_is_the_documented_formula_and_test_items_are_never_augmented():
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(20, 3, 32, 32), dtype=np.uint8), rng.integers(10, size=20)
    mean, sd = cifar10.MEAN, cifar10.SD
    data = Dataset("c", x, y, x, y, 10, mean=mean, sd=sd, augment="crop-flip")
    fed, labels = Feed(data).test_batch(slice(0, 20))
    slow = (x / 255 - np.array(mean)[:, None, None]) / np.array(sd)[:, None, None]
    assert np.allclose(fed.numpy(), slow, atol=1e-5) and (labels.numpy() == y).all()
    batch, _ = Feed(data).train_batch(torch.arange(20), torch.Generator().manual_seed(0))
    assert batch.shape == fed.shape and not torch.allclose(batch, fed)


@pytest.mark.parametrize("augment", ["crop-flip", "crop-flip-mean"])
def test_the_border_of_a_crop_is_black_or_the_mean_colour(augment):
    x, y = np.full((64, 3, 8, 8), 255, dtype=np.uint8), np.zeros(64, np.int64)
    mean, sd = cifar10.MEAN, cifar10.SD
    data = Dataset("c", x, y, x, y, 10, mean=mean, sd=sd, augment=augment)
    batch, _ = Feed(data).train_batch(torch.arange(64), torch.Generator().manual_seed(0))
    for channel in range(3):
        inside = (1 - mean[channel]) / sd[channel]
        border = -mean[channel] / sd[channel] if augment == "crop-flip" else 0.0
        found = batch[:, channel].unique()
        assert found.tolist() == pytest.approx([border, inside], abs=1 / (255 * sd[channel]))


def test_cifar10_as_pixels_is_the_same_images_between_zero_and_one(tmp_path, small):
    write_binary(tmp_path, small)
    usual, pixels = (load_dataset(Call(name), str(tmp_path)) for name in ("cifar10", "cifar10-pixels"))
    assert usual.identity == pixels.identity and usual.call != pixels.call
    fed, _ = Feed(pixels).test_batch(slice(0, 4))
    assert np.allclose(fed.numpy(), pixels.x_test[:4] / 255, atol=1e-6)
    colour = Call.parse("cifar10-pixels(augment=crop-flip-mean)")
    with pytest.raises(BadInput, match="no mean colour"):
        load_dataset(colour, str(tmp_path))


@pytest.mark.parametrize("rows, of", [(range(10), ("train", "test")), ([3], ("train",)), ([3], ("test",))])
def test_lossless_cifar10_refuses_jpeg_wherever_it_stands(tmp_path, small, rows, of):
    write_parquet(tmp_path, small, jpeg_rows=rows, of=of)
    with pytest.raises(BadInput, match="as JPEG, which changes its pixels"):
        load_dataset(Call("cifar10-lossless"), str(tmp_path))
    changed = load_dataset(Call("cifar10"), str(tmp_path))
    assert not np.array_equal(getattr(changed, f"x_{of[0]}"), small[of[0]][0])


def test_lossless_cifar10_passes_over_jpeg_where_the_pixels_lie_beside_it(tmp_path, small):
    write_parquet(tmp_path, small, jpeg_rows=range(10))
    (tmp_path / "original").mkdir()
    write_binary(tmp_path / "original", small)
    found = load_dataset(Call("cifar10-lossless"), str(tmp_path))
    assert np.array_equal(found.x_train, small["train"][0])
    assert found.call == "cifar10-lossless(augment=crop-flip)"
    with pytest.raises(BadInput, match="holds no CIFAR-10"):
        (tmp_path / "empty").mkdir()
        load_dataset(Call("cifar10-lossless"), str(tmp_path / "empty"))


def test_the_originals_pixels_are_put_in_the_order_of_their_jpeg_copies(tmp_path, small):
    script = load_script("lossless_cifar10")
    rng, shuffled = np.random.default_rng(1), {}
    for split, (x, y) in small.items():
        x[:] = np.repeat(np.repeat(x[:, :, ::8, ::8], 8, axis=2), 8, axis=3)
        order = rng.permutation(len(x))
        shuffled[split] = (x[order], y[order])
    folders = {name: tmp_path / name for name in ("jpeg", "original", "out")}
    for name in ("jpeg", "original"):
        folders[name].mkdir()
    write_parquet(folders["jpeg"], shuffled, jpeg_rows=range(10))
    write_binary(folders["original"], small)
    script.main([str(folder) for folder in folders.values()])
    found = load_dataset(Call("cifar10-lossless"), str(folders["out"]))
    for split, (x, y) in shuffled.items():
        assert np.array_equal(getattr(found, f"x_{split}"), x)
        assert np.array_equal(getattr(found, f"y_{split}"), y)
    small["test"] = (small["test"][0], (small["test"][1] + 1) % 10)
    write_binary(folders["original"], small)
    with pytest.raises(BadInput, match="test: some images have another label"):
        script.main([str(folder) for folder in folders.values()])
    x, _ = small["train"]
    with pytest.raises(BadInput, match="Only 1 of 10 images were found"):
        script.match(np.repeat(x[:1], 10, axis=0), x)


def load_script(name: str):
    file = Path(__file__).parents[2] / "reproduce" / f"{name}.py"
    found = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_an_augmentation_that_does_not_exist_is_refused():
    x, y = np.zeros((4, 3, 8, 8), dtype=np.uint8), np.zeros(4, np.int64)
    with pytest.raises(BadInput, match="not 'crop_flip'"):
        Dataset("c", x, y, x, y, 10, augment="crop_flip")
    with pytest.raises(BadInput, match="no mean colour"):
        Dataset("c", x, y, x, y, 10, augment="crop-flip-mean")


CIFAR = Path(os.environ.get("WALKBACK_DATA", "data")) / "cifar10"


@pytest.mark.skipif(not CIFAR.is_dir(), reason="CIFAR-10 is not under WALKBACK_DATA")
def test_the_real_cifar10_has_balanced_classes_and_the_known_moments():
    data = load_dataset(Call("cifar10"), str(CIFAR))
    assert (np.bincount(data.y_train) == 5000).all() and (np.bincount(data.y_test) == 1000).all()
    scaled = data.x_train[::10] / 255
    assert scaled.mean(axis=(0, 2, 3)) == pytest.approx(cifar10.MEAN, abs=5e-3)
    assert scaled.std(axis=(0, 2, 3)) == pytest.approx(cifar10.SD, abs=5e-3)
