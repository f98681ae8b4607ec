"""Data sets as plain arrays with identity hashes. A new one is one file and one line here."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from walkback.core.errors import BadInput
from walkback.core.registry import Registry
from walkback.core.spec import Call
from walkback.data.dataset import Dataset as Dataset
from walkback.data.dataset import DatasetMaker

datasets: Registry[DatasetMaker] = Registry(
    "data set",
    {
        "cifar10": "walkback.data.cifar10:CIFAR10",
        "cifar10-lossless": "walkback.data.cifar10:CIFAR10_LOSSLESS",
        "cifar10-pixels": "walkback.data.cifar10:CIFAR10_PIXELS",
        "digits": "walkback.data.digits:DIGITS",
        "digit-sums": "walkback.data.digits:DIGIT_SUMS",
        "idx": "walkback.data.idx:IDX",
        "npz": "walkback.data.npz:NPZ",
        "teacher": "walkback.data.teacher:TEACHER",
    },
    base=DatasetMaker,
)


def lies_in_files(name: str) -> bool:
    return datasets[name].usual_place is not None


def load_dataset(call: Call, location: str | None = None) -> Dataset:
    """The data set a call names. `location` is a file or folder, for those that lie in one."""
    maker = datasets[call.name]
    full = call.with_defaults(maker.defaults, "data set")
    if maker.usual_place is None:
        if location is not None:
            raise BadInput(
                f"{call.name} has no files, so nothing would be read from {location}.",
                f"Leave --data-dir away, or name one of {', '.join(filter(lies_in_files, datasets))}.",
            )
        return replace(maker.load(**full.params), call=str(full))
    root = os.environ.get("WALKBACK_DATA")
    place = location or (str(Path(root) / maker.usual_place) if root else None)
    return replace(maker.load(place, **full.params), call=str(full))
