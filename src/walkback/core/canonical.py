"""One way to write a thing as JSON, so that equal things have equal bytes and equal hashes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any


def canonical_json(thing: Any) -> str:
    """Sorted keys, no spaces, no NaN: the text that is hashed."""
    return json.dumps(thing, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_id(thing: Any) -> str:
    return sha256(canonical_json(thing).encode())[:12]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hash_code(folder: Path) -> str:
    """Of every Python file in a folder and below, by place and content."""
    files = sorted(folder.rglob("*.py"))
    return sha256(
        "".join(f"{f.relative_to(folder).as_posix()} {sha256(f.read_bytes())}\n" for f in files).encode()
    )


def plain(thing: Any) -> Any:
    """Dictionaries, lists, numbers and strings only; a number JSON cannot hold becomes null.

    A null is always accompanied by a status or a sentence that says why, so nothing is lost.
    """
    if isinstance(thing, Enum):
        return thing.value
    if isinstance(thing, Mapping):
        return {str(key): plain(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [plain(value) for value in thing]
    if hasattr(thing, "to_dict"):
        return plain(thing.to_dict())
    if hasattr(thing, "item") and not isinstance(thing, (str, bytes)):
        thing = thing.item()
    if isinstance(thing, float) and not math.isfinite(thing):
        return None
    return thing
