"""CIFAR-10 from any of the layouts people have: parquet, the original binary files, the Python batches."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from walkback.core.errors import BadInput
from walkback.data.dataset import Array, Dataset, DatasetMaker
from walkback.data.safe_pickle import load_plain_pickle

SHAPE, TRAIN, TEST, CLASSES = (3, 32, 32), 50_000, 10_000, 10
RECORD = 1 + 3 * 32 * 32
BATCHES = [f"data_batch_{number}" for number in range(1, 6)]
# Channel moments of the original 50,000 training images, in 0…1: fixed, so that every layout and
# every subset is normalised alike (Krizhevsky 2009 gives the data; these are its moments).
MEAN, SD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

Split = tuple[Array, Array]


def cifar10(location: str | None = None, augment: str = "crop-flip") -> Dataset:
    """50,000 train and 10,000 test images as bytes, normalised and augmented as batches are made."""
    return _scaled("cifar10", location, augment, MEAN, SD)


def cifar10_pixels(location: str | None = None, augment: str = "crop-flip") -> Dataset:
    """The same images as pixels in 0…1, for those who do not normalise."""
    if augment == "crop-flip-mean":
        raise BadInput(
            "cifar10-pixels is not normalised, so it has no mean colour.",
            "Use augment=crop-flip, or cifar10.",
        )
    return _scaled("cifar10-pixels", location, augment, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def cifar10_lossless(location: str | None = None, augment: str = "crop-flip") -> Dataset:
    """The same images from files that hold their very pixels: JPEG is passed over."""
    return _scaled("cifar10-lossless", location, augment, MEAN, SD, lossless=True)


def _scaled(
    name: str,
    location: str | None,
    augment: str,
    mean: tuple[float, ...],
    sd: tuple[float, ...],
    lossless: bool = False,
) -> Dataset:
    folder = _folder(location, "cifar10-lossless" if lossless else "cifar10")
    read = _layout(folder, lossless)
    (x_train, y_train), (x_test, y_test) = read(folder, "train"), read(folder, "test")
    return Dataset(name, x_train, y_train, x_test, y_test, CLASSES, mean=mean, sd=sd, augment=augment)


CIFAR10 = DatasetMaker(
    {"augment": "crop-flip"},
    cifar10,
    "60,000 colour images (Krizhevsky 2009); augment=crop-flip, crop-flip-mean or none; --data-dir DIR",
    usual_place="cifar10",
)
CIFAR10_PIXELS = DatasetMaker(
    {"augment": "crop-flip"},
    cifar10_pixels,
    "the same images, not normalised: pixels in 0…1; augment=crop-flip or none; --data-dir DIR",
    usual_place="cifar10",
)
CIFAR10_LOSSLESS = DatasetMaker(
    {"augment": "crop-flip"},
    cifar10_lossless,
    "the same images, refused where they are JPEG; augment as for cifar10; --data-dir DIR",
    usual_place="cifar10-lossless",
)


def _folder(location: str | None, usual_place: str) -> Path:
    if location is None or not Path(location).is_dir():
        where = f"There is no folder {location}." if location else "Where CIFAR-10 lies was not said."
        raise BadInput(
            f"{where}",
            "Give --data-dir a folder with the parquet files, the binary files or the Python batches, "
            f"or set WALKBACK_DATA to the folder that holds {usual_place}.",
        )
    return Path(location)


def _layout(folder: Path, lossless: bool) -> Callable[[Path, str], Split]:
    """How the first layout in a folder, or one folder below, is read; `lossless` passes over JPEG."""
    jpeg = False
    for inner in (folder, *(child for child in sorted(folder.iterdir()) if child.is_dir())):
        for pattern, read in _LAYOUTS.items():
            if not any(inner.glob(pattern)):
                continue
            if not lossless or not (read is _read_parquet and _holds_jpeg(inner)):
                return lambda _, split, inner=inner, read=read: read(inner, split)  # type: ignore[misc]
            jpeg = True
    if jpeg:
        raise BadInput(
            f"{folder} holds CIFAR-10 as JPEG, which changes its pixels.",
            "cifar10-lossless needs the binary files, the Python batches or parquet files of PNG; cifar10 "
            "reads JPEG too.",
        )
    raise BadInput(
        f"{folder} holds no CIFAR-10 that walkback knows.",
        "It looks for train-*.parquet, data_batch_1.bin or data_batch_1.",
    )


def _read_parquet(folder: Path, split: str) -> Split:
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        raise BadInput(f"{folder} has no {split}-*.parquet.")
    parts = [_parquet_part(file) for file in files]
    return _checked(files[0], split, *(np.concatenate(column) for column in zip(*parts, strict=True)))


def _holds_jpeg(folder: Path) -> bool:
    """Whether any of its images, of either split, is a JPEG file by its first bytes."""
    return any(
        _bytes_in(cell, f"{file}, row {row}")[:3] == b"\xff\xd8\xff"
        for file in sorted(folder.glob("t*-*.parquet"))
        for row, cell in enumerate(_parquet_cells(file)[0])
    )


def _parquet_cells(file: Path) -> tuple[list[object], Array]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{file} is not a sound parquet file: {str(error).splitlines()[0]}") from None
    names = set(table.column_names)
    image = next((name for name in ("img", "image") if name in names), None)
    if image is None or "label" not in names:
        raise BadInput(f"{file} has columns {sorted(names)}; img (or image) and label are needed.")
    return table.column(image).to_pylist(), table.column("label").to_numpy()


def _parquet_part(file: Path) -> Split:
    cells, labels = _parquet_cells(file)
    pixels = np.empty((len(cells), *SHAPE), dtype=np.uint8)
    for index, cell in enumerate(cells):
        pixels[index] = _decode(cell, f"{file}, row {index}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise BadInput(f"{file}: labels must be whole numbers, not {labels.dtype}.")
    return pixels, labels.astype(np.int64)


def _decode(cell: object, where: str) -> Array:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(_bytes_in(cell, where)), formats=("PNG", "JPEG")) as image:
            if image.size != SHAPE[1:]:
                raise BadInput(f"{where}: the image is {image.size[0]}×{image.size[1]}, not 32×32.")
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise BadInput(f"{where}: the image cannot be decoded: {error}.") from None


def _bytes_in(cell: object, where: str) -> bytes:
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(data, bytes):
        raise BadInput(f"{where}: there are no image bytes.")
    return data


def _read_binary(folder: Path, split: str) -> Split:
    """The original binary release: records of one label byte and 3,072 pixel bytes, planes R, G, B."""
    names = BATCHES if split == "train" else ["test_batch"]
    parts = []
    for file in (folder / f"{name}.bin" for name in names):
        data = _bytes_of(file)
        if not data or len(data) % RECORD:
            raise BadInput(f"{file} is truncated: {len(data)} bytes are not whole records of {RECORD}.")
        records = np.frombuffer(data, dtype=np.uint8).reshape(-1, RECORD)
        parts.append((records[:, 1:].reshape(-1, *SHAPE), records[:, 0].astype(np.int64)))
    return _checked(
        folder / f"{names[0]}.bin", split, *(np.concatenate(c) for c in zip(*parts, strict=True))
    )


def _read_python(folder: Path, split: str) -> Split:
    """The original Python batches. They are pickles, so only plain data is let in."""
    names = BATCHES if split == "train" else ["test_batch"]
    parts = []
    for file in (folder / name for name in names):
        batch = load_plain_pickle(_bytes_of(file), str(file))
        parts.append(_python_part(batch, file))
    return _checked(folder / names[0], split, *(np.concatenate(c) for c in zip(*parts, strict=True)))


def _python_part(batch: object, file: Path) -> Split:
    found = batch if isinstance(batch, dict) else {}
    data, labels = (found.get(key.encode(), found.get(key)) for key in ("data", "labels"))
    whole = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (RECORD - 1,)
    if data is None or not whole or not isinstance(labels, list) or len(labels) != len(data):
        raise BadInput(f"{file} is not a CIFAR-10 batch: it needs data of 3,072 bytes a row, and labels.")
    return data.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64)


_LAYOUTS: dict[str, Callable[[Path, str], Split]] = {
    "train-*.parquet": _read_parquet,
    "data_batch_1.bin": _read_binary,
    "data_batch_1": _read_python,
}


def _bytes_of(file: Path) -> bytes:
    if not file.is_file():
        raise BadInput(f"{file} is missing.", "CIFAR-10 has five training batches and one test batch.")
    return file.read_bytes()


def _checked(file: Path, split: str, x: Array, y: Array) -> Split:
    wanted = TRAIN if split == "train" else TEST
    if len(y) != wanted:
        raise BadInput(f"{file.parent}: {len(y)} {split} images, where CIFAR-10 has {wanted}.")
    return np.ascontiguousarray(x), y
