"""Arms on disk: what has been run once, on the same code, is not run again."""

from __future__ import annotations

import functools
import inspect
import json
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

from walkback.core.canonical import content_id, plain, sha256
from walkback.store.files import write_atomic
from walkback.store.provenance import LIBRARIES, installed
from walkback.tracks.runner import Arm
from walkback.tracks.track import Track

PACKAGE = Path(__file__).resolve().parents[1]


def key_of(track: Track, control: str | None, *, seed: int, full: bool) -> str:
    """What an arm is a function of: the track, walkback's code, the libraries, the seed and the mode."""
    return content_id(
        {
            "track": str(track.id),
            "source": _source_hash(track),
            "settings": plain(track.settings(full)),
            "walkback": installed("walkback"),
            "code": _package_hash(),
            "libraries": {name: installed(name) for name in LIBRARIES},
            "control": control,
            "seed": seed,
            "full": full,
        }
    )


def _source_hash(track: Track) -> str:
    """Of the file that holds the experiment, wherever that is."""
    file = inspect.getsourcefile(inspect.unwrap(track.function)) or track.source
    return _hash_of(file) if file else ""


def find_arm(folder: Path | None, key: str, track: Track, control: str | None) -> Arm | None:
    """The arm that is kept under this key, unless a module that it was run with has changed since."""
    if folder is None:
        return None
    try:
        stored = json.loads((folder / f"{key}.json").read_bytes())
        if any(_hash_of(name) != known for name, known in stored["modules"].items()):
            return None
        arm = Arm.from_dict(stored["arm"])
        reported = {reason.name for reason in arm.reasons}
        complete = control is not None or reported == {check.name for check in track.checks}
        return arm if arm.control == control and reported and complete else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_arm(folder: Path | None, key: str, arm: Arm) -> None:
    """An arm that ended in an error, or for want of data, is not kept: the cause may be gone next time."""
    if folder is None or arm.error or arm.skipped:
        return
    stored: dict[str, Any] = {"arm": arm.to_dict(), "modules": own_modules()}
    write_atomic(folder / f"{key}.json", json.dumps(stored, indent=1, allow_nan=False).encode())


def own_modules() -> dict[str, str]:
    """Files of the loaded modules that are neither installed nor Python's or walkback's own, with hashes.

    A track may import a model from the file next to it, and that file is what is on trial.
    """
    places: list[str] = [
        *sysconfig.get_paths().values(),
        *site.getsitepackages(),
        site.getusersitepackages(),
    ]
    elsewhere = [PACKAGE, *(Path(place).resolve() for place in places)]
    files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    found = [Path(file).resolve() for file in files if file.endswith(".py")]
    own = [file for file in found if not any(file.is_relative_to(place) for place in elsewhere)]
    return {str(file): _hash_of(str(file)) for file in sorted(own) if file.is_file()}


def _hash_of(file: str) -> str:
    return sha256(Path(file).read_bytes())


@functools.cache
def _package_hash() -> str:
    files = sorted(PACKAGE.rglob("*.py"))
    return sha256(
        "".join(f"{f.relative_to(PACKAGE).as_posix()} {_hash_of(str(f))}\n" for f in files).encode()
    )
