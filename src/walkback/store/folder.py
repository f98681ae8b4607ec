"""A store: a folder of bundles, with one lock per run; a folder of exported bundles can be read as one."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from walkback.core.errors import BadInput, CorruptBundle, FileTrouble, StoreBusy
from walkback.store.bundle import MANIFEST, Bundle, import_zip


class Store:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def existing(cls, path: str | Path) -> Store:
        """The store at a path, to be read. Where only zipped bundles lie, it is a scratch copy of them.

        Beside unpacked bundles a zip must bear the name of one, as its export does; any other would be
        left out.
        """
        if not Path(path).is_dir():
            raise BadInput(f"There is no store at {path}.", "Train something first: walkback train --help.")
        zipped = sorted(Path(path).glob("*.zip"))
        unpacked = {folder.name for folder in _runs(Path(path))}
        if not unpacked:
            return cls(_unpack(zipped) if zipped else path)
        if others := [archive.name for archive in zipped if archive.stem not in unpacked]:
            listed = ", ".join(others)
            raise BadInput(
                f"The store {path} holds bundles, and zips that bear the name of none of them: {listed}.",
                "Unpack them with walkback bundle import, or move them away.",
            )
        return cls(path)

    @classmethod
    def to_train(cls, path: str | Path) -> Store:
        """The store at a path, to be written; it need not exist yet."""
        if Path(path).exists() and not Path(path).is_dir():
            raise BadInput(f"The store {path} is a file, not a folder.", "Choose another --store.")
        return cls(path)

    def bundles(self) -> list[Bundle]:
        """Every bundle in name order; half-finished ones are in it too. A run that has lost its manifest
        is refused: without it a verdict would be that of the other seeds."""
        return [Bundle.open(path) for path in _runs(self.path)]

    def find(self, name: str) -> Bundle | None:
        path = self.path / name
        return Bundle.open(path) if (path / MANIFEST).is_file() else None

    def refuse_zipped(self, names: Sequence[str]) -> None:
        """Training reads no zip: a run that lies in one would be trained once more."""
        zipped = [n for n in names if (self.path / f"{n}.zip").is_file() and self.find(n) is None]
        if zipped:
            raise BadInput(
                f"{len(zipped)} of {len(names)} runs lie zipped in the store {self.path}, and training "
                f"reads no zips; the first is {zipped[0]}.zip.",
                f"Unpack them where it shall go on: walkback bundle import {self.path}/*.zip --store DIR.",
            )

    @contextlib.contextmanager
    def hold(self, name: str, wait: float = 0.0) -> Iterator[None]:
        """Hold one run. The lock dies with its process, so a kill never leaves a run locked."""
        folder = self.path / ".locks"
        lock = FileLock(folder / f"{name}.lock", timeout=wait)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise StoreBusy(
                f"Another process is training {name} in the store {self.path}.",
                "Wait for it to end, or choose another --store.",
            ) from None
        except OSError as error:
            raise FileTrouble(
                f"The store {self.path} cannot be written: {error.strerror or error}.",
                "Choose another --store, or copy what is there to a place of your own.",
            ) from None
        try:
            yield
        finally:
            lock.release()


def _runs(store: Path) -> list[Path]:
    """The folders of a store that have a manifest, in the order of their names; a lost one is refused."""
    folders = sorted(path for path in store.glob("*") if path.is_dir() and not path.name.startswith("."))
    for folder in folders:
        _refuse_lost(folder)
    return [folder for folder in folders if (folder / MANIFEST).is_file()]


def _refuse_lost(folder: Path) -> None:
    """A folder without a manifest that has what is written after the first one alone: a run can be killed,
    or looked at, before that."""
    later = (file for file in folder.glob("working/measurements-*.csv") if "-0000." not in file.name)
    measured = (folder / "measurements.csv").is_file() or next(later, None) is not None
    if measured and not (folder / MANIFEST).is_file():
        raise CorruptBundle(
            f"{folder} holds the measurements of a run, but no {MANIFEST}: it would be left out.",
            "Copy the run again, or move the folder out of the store.",
        )


def _unpack(archives: Sequence[Path]) -> Path:
    """Bundles are read when they are asked for, so the copy stays until the process ends."""
    scratch = Path(tempfile.mkdtemp(prefix="walkback-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    held: dict[str, Path] = {}
    for archive in archives:
        bundle = import_zip(archive, scratch / ".one-by-one" / archive.stem)
        name = bundle.path.name
        if name in held:
            raise BadInput(
                f"{held[name]} and {archive} hold the same run {name}.", "Move one of them away."
            )
        held[name] = archive
        shutil.move(bundle.path, scratch / name)
    return scratch


def same_but_rule(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two specs differ in nothing but the rule: the same net, data, seed and recipe.

    Under a declared grid each rule has the rate that was chosen for it, so the rates may differ.
    """
    free = {"rule": "", "lr": 0} if one.get("lr_grid") else {"rule": ""}
    return {**one, **free} == {**other, **free}
