"""Files that are either wholly written or not there, and paths that stay where they belong."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from walkback.core.errors import UnsafePath


def write_atomic(path: Path, data: bytes) -> None:
    """All of it or nothing, in a folder that is made where it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Write beside the target, flush to disk, rename over it: a kill leaves the old file or the new."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
        _sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def inside(root: Path, name: str) -> Path:
    """`root/name`, refused unless it stays below root: names come from files that others wrote."""
    pure = PurePosixPath(name)
    odd = not name or "\\" in name or "\0" in name or ":" in name
    if odd or pure.is_absolute() or ".." in pure.parts:
        raise UnsafePath(f"The member name {name!r} leaves its folder.", "This bundle is not safe.")
    path = root / pure
    if not path.resolve().is_relative_to(root.resolve()):
        raise UnsafePath(f"The member {name!r} is a link out of its folder.", "This bundle is not safe.")
    return path


def _sync_folder(folder: Path) -> None:
    """A rename survives power loss only once its folder is on disk (not possible on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
