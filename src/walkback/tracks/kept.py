"""Arms on disk: what has been run once, on the same code, is not run again."""

from __future__ import annotations

import inspect
import json
import platform
from pathlib import Path
from typing import Any

from walkback.core.canonical import content_id, plain
from walkback.store.files import write_atomic
from walkback.store.provenance import LIBRARIES, installed
from walkback.tracks.loaded import hash_as_read, loaded_libraries, own_modules, package_hash, unchanged
from walkback.tracks.runner import Arm
from walkback.tracks.track import Track


def key_of(track: Track, control: str | None, *, seed: int, full: bool) -> str:
    """What an arm is a function of: the track, walkback's code, the libraries, the seed and the mode.

    To be asked for before the arm is run: code may change meanwhile.
    """
    return content_id(
        {
            "track": str(track.id),
            "source": _source_hash(track),
            "declared": repr((track.checks, track.all_controls)),
            "settings": plain(track.settings(full)),
            "walkback": installed("walkback"),
            "code": package_hash(),
            "python": platform.python_version(),
            "libraries": {name: installed(name) for name in LIBRARIES},
            "control": control,
            "seed": seed,
            "full": full,
        }
    )


def _source_hash(track: Track) -> str:
    """Of the file that holds the experiment, or else the track; what was typed lies in none."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(track.function))
    except TypeError:  # an object that can be called
        file = None
    file = file if file and Path(file).is_file() else track.source
    return hash_as_read(file) if file else ""


def find_arm(folder: Path | None, key: str, track: Track, control: str | None) -> Arm | None:
    """The arm that is kept under this key, unless code that it was run with has changed since."""
    if folder is None:
        return None
    try:
        stored = json.loads((folder / f"{key}.json").read_bytes())
        libraries = stored["libraries"]
        if not unchanged(stored["modules"]) or libraries != {name: installed(name) for name in libraries}:
            return None
        arm = Arm.from_dict(stored["arm"])
        reported = {reason.name for reason in arm.reasons}
        complete = control is not None or reported == {check.name for check in track.checks}
        return arm if arm.control == control and reported and complete else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_arm(folder: Path | None, key: str, arm: Arm, started: float) -> None:
    """An arm that ended in an error, or for want of data, is not kept: the cause may be gone next time.

    Nor is one whose code was changed while it ran: nobody could say of which code it is the answer.
    """
    if folder is None or arm.error or arm.skipped:
        return
    modules = own_modules(started)
    if not unchanged(modules):
        return
    stored: dict[str, Any] = {"arm": arm.to_dict(), "modules": modules, "libraries": loaded_libraries()}
    write_atomic(folder / f"{key}.json", json.dumps(stored, indent=1, allow_nan=False).encode())
