"""The code that is loaded. A file counts as it was when Python read it, not as it is now.

A track may import a model from the file next to it, and that file is what is on trial.
"""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

from walkback.core.canonical import hash_code, sha256
from walkback.store.provenance import installed

PACKAGE = Path(__file__).resolve().parents[1]
UNKNOWN = "changed as it was read"
_READ: dict[str, str] = {}  # files and their hashes, when they were first seen loaded


def note_read(file: Path) -> None:
    """This file is about to be read, perhaps not for the first time."""
    _READ[str(file.resolve())] = hash_of(file)


def own_modules(since: float) -> dict[str, str]:
    """Files of the loaded modules that are neither installed nor Python's or walkback's own, with hashes.

    Of a file that is younger than `since`, and was loaded after that, nobody knows what was read.
    """
    files = _own_files()
    for file in files:
        if str(file) not in _READ:
            _READ[str(file)] = hash_of(file) if file.stat().st_mtime < since else UNKNOWN
    return {str(file): _READ[str(file)] for file in files}


def hash_as_read(file: str | Path) -> str:
    path = Path(file).resolve()
    return _READ.get(str(path)) or hash_of(path)


def unchanged(modules: Mapping[str, str]) -> bool:
    return all(hash_of(file) == known for file, known in modules.items())


def loaded_libraries() -> dict[str, str]:
    """The installed packages that any loaded module is part of, with versions."""
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    found = {owner for top, owners in _owners().items() if top in tops for owner in owners}
    return {name: installed(name) for name in sorted(found)}


def hash_of(file: str | Path) -> str:
    return sha256(Path(file).read_bytes())


@functools.cache
def package_hash() -> str:
    """Of all of walkback."""
    return hash_code(PACKAGE)


@functools.cache
def _owners() -> Mapping[str, list[str]]:
    return packages_distributions()


def _own_files() -> list[Path]:
    paths = sysconfig.get_paths()
    places = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    elsewhere = [PACKAGE, *(Path(place).resolve() for place in places)]
    files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    found = [Path(file).resolve() for file in files - {"None"}]
    own = [file for file in found if not any(file.is_relative_to(place) for place in elsewhere)]
    return sorted(file for file in own if file.is_file())
