"""A bundle: one run as a folder that can be zipped, mailed, verified and judged again.

`bundle.json` is the commit point. It lists every member with its sha256, members are never changed
once listed, and a new state is new members followed by one atomic rewrite of `bundle.json`. A process
killed at any moment leaves a bundle that verifies. No member holds a time, a host or a path, and none
is a pickle: the same run gives the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from walkback.core.canonical import canonical_json, sha256
from walkback.core.errors import BadInput, CorruptBundle, NewerSchema, UnsafePath
from walkback.core.quantities import Measurements, join
from walkback.store.files import atomic_file, inside, write_atomic

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
MANIFEST = "bundle.json"
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Member:
    """A file to be added to a bundle; `role` says what it is for."""

    name: str
    role: str
    data: bytes
    epoch: int | None = None


class Bundle:
    """One run on disk. `spec` says what it is, `card` describes its parts, `status` how far it came."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self._manifest = manifest

    @classmethod
    def create(cls, path: Path, *, id: str, spec: Mapping[str, Any], card: Mapping[str, Any]) -> Bundle:
        """A new, empty bundle. It exists on disk from its first `commit` on."""
        manifest = {"schema": SCHEMA, "id": id, "spec": dict(spec), "card": dict(card)}
        return cls(path, {**manifest, "provenance": [], "status": {}, "members": {}})

    @classmethod
    def open(cls, path: str | Path) -> Bundle:
        path = Path(path)
        file = path / MANIFEST
        if not file.is_file():
            hint = "Unpack it first: walkback bundle import FILE --store DIR." if path.is_file() else ""
            raise BadInput(f"{path} is not a bundle: it has no {MANIFEST}.", hint)
        return cls(path, _read_manifest(file.read_bytes(), str(file)))

    def refresh(self) -> None:
        """Read the manifest again, as it is on disk now."""
        self._manifest = Bundle.open(self.path)._manifest

    @property
    def id(self) -> str:
        return str(self._manifest["id"])

    @property
    def spec(self) -> dict[str, Any]:
        return self._manifest["spec"]

    @property
    def card(self) -> dict[str, Any]:
        return self._manifest["card"]

    @property
    def provenance(self) -> list[dict[str, Any]]:
        """The environments the run was computed in; more than one if it was resumed elsewhere."""
        return self._manifest["provenance"]

    @property
    def status(self) -> dict[str, Any]:
        return self._manifest["status"]

    @property
    def finished(self) -> bool:
        return self.status.get("state") in ("finished", "diverged", "captured")

    def members(self, role: str | None = None) -> list[str]:
        listed = self._manifest["members"].items()
        return sorted(name for name, about in listed if role in (None, about["role"]))

    def checkpoint_epochs(self) -> dict[int, str]:
        members = self._manifest["members"]
        return {members[name]["epoch"]: name for name in self.members("checkpoint")}

    def read(self, name: str) -> bytes:
        """A member's bytes, checked against the hash it was listed with."""
        about = self._manifest["members"].get(name)
        if about is None:
            raise BadInput(f"{self.path.name} has no member {name!r}.")
        file = inside(self.path, name)
        if not file.is_file():
            raise CorruptBundle(f"{name} is missing from bundle {self.path.name}.", _RESTORE)
        data = file.read_bytes()
        if sha256(data) != about["sha256"]:
            raise CorruptBundle(f"{name} in bundle {self.path.name} has been altered.", _RESTORE)
        return data

    def arrays(self, name: str) -> Arrays:
        return unpack_arrays(self.read(name))

    def one(self, role: str) -> str | None:
        """The member with this role, or None; the newest where a role has several."""
        names = self.members(role)
        return names[-1] if names else None

    def measurements(self) -> Measurements:
        """The light tier of every epoch, and the full tier where it was measured.

        A tier that is measured anew while we look takes the place of the one that was listed.
        """
        for _ in range(_LOOKS):
            if all((self.path / name).is_file() for name in self.members("full")):
                break
            self.refresh()
        full = [Measurements.from_csv(self.read(name).decode()) for name in self.members("full")]
        return join([*full, self.light_tier()])

    def light_tier(self) -> Measurements:
        data = self._read_role("measurements")
        return Measurements() if data is None else Measurements.from_csv(data.decode())

    def frame(self) -> pd.DataFrame:
        """The measurements as a long table with a `run` column."""
        frame = self.measurements().to_frame()
        frame.insert(0, "run", self.id)
        return frame

    def correct(self) -> dict[int, NDArray[np.bool_]]:
        """By epoch, which test items were classified correctly; empty if that was not stored."""
        items = self._items()
        return {
            int(name.removeprefix("correct_")): np.unpackbits(row, count=int(items["count"][0])).astype(
                bool
            )
            for name, row in items.items()
            if name.startswith("correct_")
        }

    def sources(self) -> NDArray[np.int64] | None:
        """What each test item is made of, where items share sources."""
        return self._items().get("sources")

    def _items(self) -> Arrays:
        data = self._read_role("items")
        return {} if data is None else unpack_arrays(data)

    def _read_role(self, role: str) -> bytes | None:
        """The member with this role. A run that is being trained may replace it while we look."""
        name = self.one(role)
        for _ in range(_LOOKS):
            if name is None or self.finished or (self.path / name).is_file():
                break
            self._manifest = Bundle.open(self.path)._manifest
            name = self.one(role)
        return None if name is None else self.read(name)

    def verify(self) -> int:
        """Check every member's hash; the number of members checked."""
        for name in self.members():
            self.read(name)
        return len(self.members())

    def commit(
        self,
        members: Iterable[Member] = (),
        *,
        drop: Iterable[str] = (),
        status: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        """Add members, then switch to the new state in one step, then remove what it dropped."""
        listed = dict(self._manifest["members"])
        for member in members:
            write_atomic(inside(self.path, member.name), member.data)
            about = {"role": member.role, "sha256": sha256(member.data), "bytes": len(member.data)}
            listed[member.name] = about | ({} if member.epoch is None else {"epoch": member.epoch})
        gone = [name for name in drop if listed.pop(name, None)]
        manifest = {**self._manifest, "members": listed}
        if status is not None:
            manifest["status"] = dict(status)
        if environment is not None and environment not in manifest["provenance"]:
            manifest["provenance"] = [*manifest["provenance"], dict(environment)]
        write_atomic(self.path / MANIFEST, _write_manifest(manifest))
        self._manifest = manifest
        for name in gone:
            inside(self.path, name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what an interrupted commit left behind: unlisted working files and half-written ones."""
        listed = {self.path / name for name in self.members()}
        working = self.path / "working"
        scraps = [*working.glob("*"), *self.path.rglob(".tmp-*")]
        for file in scraps:
            if file.is_file() and file not in listed:
                file.unlink()
        if working.is_dir() and not any(working.iterdir()):
            working.rmdir()

    def lighten(self, target: Path) -> Bundle:
        """A copy that can be judged, but not measured again: no weights and no batch.

        Which items were right stays for the epochs whose checkpoints the bundle keeps; at others only the
        accuracy is known. A light copy has no checkpoints, and its own copy is the same to the byte.
        """
        listed = self._manifest["members"]
        members = [
            Member(name, listed[name]["role"], self.read(name), listed[name].get("epoch"))
            for role in ("measurements", "full")
            for name in self.members(role)
        ]
        kept, correct = self.checkpoint_epochs(), self.correct()
        if kept:
            epochs = {*kept, self.status.get("epoch")}
            correct = {epoch: row for epoch, row in correct.items() if epoch in epochs}
        if correct:
            members.append(Member("items.safetensors", "items", pack_items(correct, self.sources())))
        copy = Bundle(target, {**self._manifest, "members": {}})
        target.mkdir(parents=True)
        copy.commit(members)
        return copy

    def export(self, target: Path, *, light: bool = False) -> Path:
        """Write the bundle, or its light copy, as one zip file: same bundle, same bytes."""
        if light:
            import tempfile

            with tempfile.TemporaryDirectory() as scratch:
                return self.lighten(Path(scratch) / self.path.resolve().name).export(target)
        self.verify()
        top = self.path.resolve().name
        if set(top) & set(":\\"):
            raise BadInput(f"Not every system can unpack a folder named {top!r}.", "Give it another name.")
        _refuse_hidden(top)
        if target.exists() and not target.is_file():
            raise BadInput(f"{target} is there and is no file.", "Give the name of a zip file.")
        if not target.parent.is_dir():
            raise BadInput(f"There is no folder {target.parent}.", "Make it first.")
        with atomic_file(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in (MANIFEST, *self.members()):
                data = (self.path / MANIFEST).read_bytes() if name == MANIFEST else self.read(name)
                entry = zipfile.ZipInfo(f"{top}/{name}", (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data)
        return target


_LOOKS = 5
_RESTORE = "Take a fresh copy of the bundle, or remove its folder and train the run again."
_MAILED = "Take a fresh copy of the file."


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """safetensors bytes, tensors in name order and no metadata: equal arrays give equal bytes."""
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)})


def pack_items(correct: Mapping[int, NDArray[np.bool_]], sources: NDArray[np.int64] | None = None) -> bytes:
    """Which items were right at which epoch, one bit each, and what the items are made of."""
    rows = {f"correct_{epoch:04d}": np.packbits(row) for epoch, row in correct.items()}
    counts = {len(row) for row in correct.values()}
    assert len(counts) == 1, "every epoch is tested on the same items"
    arrays: Arrays = {**rows, "count": np.array([*counts], dtype=np.int64)}
    return pack_arrays(arrays if sources is None else {**arrays, "sources": sources})


def unpack_arrays(data: bytes) -> Arrays:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(data)
    except (SafetensorError, ValueError) as error:
        raise CorruptBundle(f"A tensor file cannot be read: {error}.", _RESTORE) from None


def import_zip(archive: Path, store: Path) -> Bundle:
    """Unpack a mailed bundle into a store: names are checked first, hashes before it gets its place.

    What is there already is left as it is, if it is whole.
    """
    import shutil
    import tempfile

    if not archive.is_file():
        raise BadInput(f"There is no file {archive}.")
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix=".import-") as scratch:
        folder = _unpack(archive, Path(scratch))
        Bundle.open(folder).verify()
        target = store / folder.name
        if not target.exists():
            shutil.move(folder, target)
        elif not _same_manifest(folder, target):
            raise BadInput(
                f"{target} is there already, and another copy of that run.",
                "Import into another store, or remove it first.",
            )
        else:
            Bundle.open(target).verify()
    return Bundle.open(target)


def _same_manifest(one: Path, other: Path) -> bool:
    """Whether two folders hold the same bundle: a manifest has the hash of every member."""
    manifests = (one / MANIFEST, other / MANIFEST)
    return all(file.is_file() for file in manifests) and len({f.read_bytes() for f in manifests}) == 1


def _unpack(archive: Path, scratch: Path) -> Path:
    with _reading(archive):
        zipped = zipfile.ZipFile(archive)
    with zipped:
        names = [name for name in zipped.namelist() if not name.endswith("/")]
        tops = {name.split("/")[0] for name in names}
        for name in names:
            inside(scratch, name)
        if len(tops) != 1 or f"{next(iter(tops))}/{MANIFEST}" not in names:
            raise BadInput(f"{archive} is not an exported bundle.")
        top = tops.pop()
        _refuse_hidden(top)
        with _reading(archive):
            data = zipped.read(f"{top}/{MANIFEST}")
        members = _read_manifest(data, str(archive))["members"]
        write_atomic(scratch / top / MANIFEST, data)
        for name in sorted(set(members) & {name.removeprefix(f"{top}/") for name in names}):
            if zipped.getinfo(f"{top}/{name}").file_size != members[name]["bytes"]:
                raise CorruptBundle(f"{archive}: {name} has not the size it is listed with.", _MAILED)
            with _reading(archive):
                data = zipped.read(f"{top}/{name}")
            write_atomic(inside(scratch / top, name), data)
        return scratch / top


@contextlib.contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """What goes wrong within is the zip's fault; a full disk, when its members are written, is not."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
        raise CorruptBundle(f"{archive} is not a sound zip file: {error}.", _MAILED) from None


def _refuse_hidden(name: str) -> None:
    """No listing shows a folder whose name begins with a dot, and a store keeps its locks in one."""
    if name.startswith("."):
        raise BadInput(
            f"A bundle's folder must not begin with a dot, as {name!r} does: no store would list it.",
            "Give the folder another name, and export it again.",
        )


_PARTS = {"id": str, "spec": dict, "card": dict, "provenance": list, "status": dict, "members": dict}


def _write_manifest(manifest: Mapping[str, Any]) -> bytes:
    body = {key: value for key, value in manifest.items() if key != "seal"}
    sealed = {**body, "seal": sha256(canonical_json(body).encode())}
    return (json.dumps(sealed, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _read_manifest(data: bytes, where: str) -> dict[str, Any]:
    try:
        manifest = json.loads(data)
        schema = int(manifest["schema"])
        body = {key: value for key, value in manifest.items() if key != "seal"}
        seal = sha256(canonical_json(body).encode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptBundle(f"{where} cannot be read as a bundle.", _RESTORE) from None
    if schema > SCHEMA:
        raise NewerSchema(
            f"{where} has schema {schema}; this walkback reads up to {SCHEMA}.", "Update walkback."
        )
    if manifest.get("seal") != seal:
        raise CorruptBundle(f"{where} has been altered.", _RESTORE)
    if not _has(manifest, _PARTS) or not all(map(_is_member, manifest["members"].values())):
        raise CorruptBundle(f"{where} lacks what a bundle has.", _RESTORE)
    for name in manifest["members"]:
        if name == MANIFEST:
            raise UnsafePath(f"{where} lists itself as a member.", "This bundle is not safe.")
        inside(Path(where).parent, name)
    return manifest


def _is_member(found: object) -> bool:
    wanted: dict[str, type] = {"role": str, "sha256": str, "bytes": int}
    whole = _has(found, wanted)
    return whole and (found["role"] != "checkpoint" or _has(found, {"epoch": int}))  # type: ignore[index]


def _has(found: object, wanted: Mapping[str, type]) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in wanted.items())
