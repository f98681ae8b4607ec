"""Reads old pickled data files without running anything in them: plain data only."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct

from walkback.core.errors import BadInput


def load_plain_pickle(data: bytes, name: str) -> Any:
    """The object in a pickle, if it is made of plain data; anything else is refused, not executed."""
    try:
        return _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except BadInput as error:
        raise BadInput(f"{name}: {error.message}", error.hint) from None
    except Exception as error:
        raise BadInput(f"{name} cannot be read as a data file: {type(error).__name__}.") from None


def _encode(text: str, encoding: str) -> bytes:
    """What Python 2's byte strings become when Python 3 pickles them again."""
    if encoding != "latin1":
        raise BadInput("It uses an encoding that no data file needs.")
    return text.encode("latin1")


_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise BadInput(f"It asks for {module}.{name}, which no data file needs.", "It was not opened.")
        return _ALLOWED[module, name]
