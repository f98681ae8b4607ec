"""Finds tracks: walkback's own by id, and those of a file that somebody wrote."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from walkback.core.canonical import sha256
from walkback.core.errors import BadInput, WalkbackError
from walkback.core.outside import stdout_kept
from walkback.core.registry import Registry
from walkback.tracks import Track, tracks
from walkback.tracks.loaded import note_read, own_modules
from walkback.tracks.track import MADE


def find_tracks(wanted: Sequence[int | str] = (), file: str | Path | None = None) -> list[Track]:
    """The tracks with these ids, in the order asked for; all of them in the order of their ids if none.

    With a file, those that are defined in it; else walkback's own, and what other packages registered.
    """
    held = tracks if file is None else Registry(f"track of {file}", {})
    if file is not None:
        for name, track in read_tracks(Path(file)).items():
            held.register(name)(track)
    names = [str(name) for name in wanted] or sorted(held, key=natural)
    found = {name: held[name] for name in names}
    for name, track in found.items():
        if str(track.id) != name:
            raise BadInput(
                f"The track registered as {name!r} has the id {track.id!r}.", "Name it by its id."
            )
    return list(found.values())


def read_tracks(path: Path) -> dict[str, Track]:
    """Every track that a file defines, by id; those that it imported from elsewhere are not its own."""
    source = str(path.resolve())  # before the file is run, which may go elsewhere
    own = tracks_made_in(_import(path).__name__)
    if not own:
        raise BadInput(
            f"{path} defines no track.", "A track is a walkback.Track; see walkback verify --new NAME."
        )
    twice = [name for name, count in Counter(str(track.id) for track in own).items() if count > 1]
    if twice:
        raise BadInput(f"{path} defines two tracks with the id {twice[0]!r}.")
    for track in own:
        track.source = source
    return {str(track.id): track for track in own}


def tracks_made_in(module: str) -> list[Track]:
    """All that were made as this module was run, whether or not a name of it still leads to them."""
    own = list(MADE.get(module, ()))
    for track in own:
        _ = track.function  # one without an experiment is refused, not passed over
    return own


def _import(path: Path) -> ModuleType:
    """A file as a module of its own, whatever it is called; its folder is where it imports from."""
    if not path.is_file():
        raise BadInput(f"There is no file {path}.", "Write one: walkback verify --new NAME.")
    name = f"walkback_tracks_{sha256(str(path.resolve()).encode())[:12]}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python file.", "Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    MADE.pop(name, None)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that nothing in it hides a library
    note_read(path)
    started, here = time.time(), Path.cwd()
    try:
        with stdout_kept():
            spec.loader.exec_module(module)
    except WalkbackError as error:
        del sys.modules[name]
        raise BadInput(f"{path} cannot be imported: {error.message}", error.hint) from None
    except KeyboardInterrupt:
        del sys.modules[name]
        raise
    except BaseException as error:  # sys.exit and pytest's skips are not Exceptions
        del sys.modules[name]
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(f"{path} cannot be imported: {told}.") from None
    finally:
        os.chdir(here)
    own_modules(started)
    return module


def natural(name: str) -> tuple[int, float, str]:
    """2 before 10, numbers before names."""
    return (0, float(name), "") if name.isdecimal() else (1, 0.0, name)
