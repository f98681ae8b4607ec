"""Data sets as plain arrays with identity hashes. A new one is one file and one line here."""

from __future__ import annotations

from walkback.core.registry import Registry
from walkback.core.spec import Call
from walkback.data.dataset import Dataset as Dataset
from walkback.data.dataset import DatasetMaker

datasets: Registry[DatasetMaker] = Registry(
    "data set",
    {
        "cifar10": "walkback.data.cifar10:CIFAR10",
        "digits": "walkback.data.digits:DIGITS",
        "digit-sums": "walkback.data.digits:DIGIT_SUMS",
        "idx": "walkback.data.idx:IDX",
        "npz": "walkback.data.npz:NPZ",
        "teacher": "walkback.data.teacher:TEACHER",
    },
)


def load_dataset(call: Call, location: str | None = None) -> Dataset:
    """The data set a call names. `location` is a file or folder, for those that live in one."""
    maker = datasets[call.name]
    params = call.with_defaults(maker.defaults, "data set").params
    return maker.load(location, **params)
