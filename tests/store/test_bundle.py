from __future__ import annotations

import errno
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from walkback.core.errors import BadInput, CorruptBundle, NewerSchema, StoreBusy, UnsafePath, WalkbackError
from walkback.store import Bundle, Store
from walkback.store import bundle as bundle_module
from walkback.store.bundle import Member, _write_manifest, import_zip, pack_arrays, pack_items
from walkback.store.files import inside, write_atomic


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    made = Bundle.create(
        tmp_path / "store" / "run-1", id="abc", spec={"seed": 1}, card={"rule": {"name": "bp"}}
    )
    arrays = pack_arrays({"w": np.arange(6, dtype=np.float32)})
    made.commit(
        [Member("checkpoints/epoch-0000.safetensors", "checkpoint", arrays, 0)], status={"state": "running"}
    )
    made.commit([Member("measurements.csv", "measurements", b"epoch,layer,quantity,value,status\n")])
    return made


def test_a_bundle_reads_back_what_was_committed(bundle):
    again = Bundle.open(bundle.path)
    assert again.verify() == 2
    assert again.checkpoint_epochs() == {0: "checkpoints/epoch-0000.safetensors"}
    assert again.arrays("checkpoints/epoch-0000.safetensors")["w"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_flipped_byte_anywhere_is_noticed(bundle):
    files = [file for file in bundle.path.rglob("*") if file.is_file()]
    assert len(files) == 3
    for file in files:
        before = file.read_bytes()
        for place in range(0, len(before), max(1, len(before) // 60)):
            changed = bytearray(before)
            changed[place] ^= 0x01
            file.write_bytes(changed)
            with pytest.raises(WalkbackError):
                Bundle.open(bundle.path).verify()
        file.write_bytes(before)
    Bundle.open(bundle.path).verify()


def test_a_missing_member_is_corruption_not_emptiness(bundle):
    (bundle.path / "measurements.csv").unlink()
    with pytest.raises(CorruptBundle, match=r"measurements\.csv is missing"):
        Bundle.open(bundle.path).measurements()


def test_a_full_tier_that_is_measured_anew_while_one_looks_is_read_in_its_new_place(bundle):
    header = "epoch,layer,quantity,value,status\n"
    tiers = [f"{header}0,1,perturbation.rho@1,{value},ok\n".encode() for value in (0.25, 0.5)]
    bundle.commit([Member("full/one.csv", "full", tiers[0], 0)])
    seen = Bundle.open(bundle.path)
    bundle.commit([Member("full/two.csv", "full", tiers[1], 0)], drop=["full/one.csv"])
    assert seen.measurements().number("perturbation.rho@1", 0, 1) == 0.5
    (bundle.path / "full/two.csv").unlink()
    with pytest.raises(CorruptBundle, match=r"full/two\.csv is missing"):
        seen.measurements()


def test_an_export_that_is_broken_off_leaves_the_file_that_was_there(bundle, tmp_path, monkeypatch):
    target = bundle.export(tmp_path / "run.zip")
    before = target.read_bytes()
    monkeypatch.setattr(zipfile.ZipFile, "writestr", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        bundle.export(target)
    assert target.read_bytes() == before and [f.name for f in tmp_path.glob("*.zip")] == ["run.zip"]
    assert not list(tmp_path.glob(".tmp-*"))


def test_an_export_refuses_what_is_no_file_and_what_has_no_folder(bundle, tmp_path):
    with pytest.raises(BadInput, match="is there and is no file"):
        bundle.export(tmp_path)
    with pytest.raises(BadInput, match="There is no folder"):
        bundle.export(tmp_path / "none" / "run.zip")


def test_a_newer_schema_says_update(bundle):
    manifest = json.loads((bundle.path / "bundle.json").read_text())
    (bundle.path / "bundle.json").write_bytes(_write_manifest({**manifest, "schema": 99}))
    with pytest.raises(NewerSchema, match="schema 99"):
        Bundle.open(bundle.path)


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/passwd", "a\\b", "C:evil", "", "x\0y"])
def test_a_member_that_climbs_out_is_refused(bundle, name):
    manifest = json.loads((bundle.path / "bundle.json").read_text())
    manifest["members"][name] = {"role": "eval", "sha256": "0", "bytes": 0}
    (bundle.path / "bundle.json").write_bytes(_write_manifest(manifest))
    with pytest.raises(UnsafePath):
        Bundle.open(bundle.path)


def test_a_link_out_of_the_folder_is_refused(bundle, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    (bundle.path / "link").symlink_to(secret)
    with pytest.raises(UnsafePath, match="link"):
        inside(bundle.path, "link")


def test_a_commit_killed_at_any_write_leaves_a_sound_bundle(bundle, monkeypatch):
    """Members first, manifest last, removal after: whatever is cut off, the old or the new state stands."""
    old = bundle.one("measurements")
    for survived in range(4):
        writes = 0

        def dying(path, data, limit=survived):
            nonlocal writes
            writes += 1
            if writes > limit:
                raise KeyboardInterrupt
            write_atomic(path, data)

        current = Bundle.open(bundle.path)
        new = [Member(f"working/m-{survived}.csv", "measurements", b"epoch,layer,quantity,value,status\n")]
        new += [Member(f"working/r-{survived}.safetensors", "resume", pack_arrays({"a": np.ones(2)}))]
        monkeypatch.setattr(bundle_module, "write_atomic", dying)
        try:
            current.commit(new, drop=[current.one("measurements")])
        except KeyboardInterrupt:
            assert survived < 3
        monkeypatch.undo()
        after = Bundle.open(bundle.path)
        after.verify()
        assert after.one("measurements") == (old if survived < 3 else f"working/m-{survived}.csv")
        after.sweep()
        after.verify()


def test_sweeping_removes_scraps_and_leaves_what_is_listed_and_what_is_not_ours(bundle):
    for name in ("working/left-over.csv", ".tmp-x", "notes.txt"):
        (bundle.path / name).parent.mkdir(exist_ok=True)
        (bundle.path / name).write_text("x")
    bundle.sweep()
    assert not (bundle.path / "working").exists() and not (bundle.path / ".tmp-x").exists()
    assert (bundle.path / "notes.txt").exists()
    bundle.verify()


def test_a_reader_follows_a_run_that_moves_on_while_it_looks(tmp_path):
    table = b"epoch,layer,quantity,value,status\n%d,,loss.test@1,1.0,ok\n"
    writer = Bundle.create(tmp_path / "run", id="x", spec={}, card={})
    writer.commit([Member("working/m-1.csv", "measurements", table % 1)], status={"state": "running"})
    reader = Bundle.open(tmp_path / "run")
    new = [Member("working/m-2.csv", "measurements", table % 2)]
    writer.commit(new, drop=["working/m-1.csv"], status={"state": "running"})
    assert reader.measurements().epochs == [2]


def test_a_failed_write_leaves_the_old_file_and_no_scraps(tmp_path, monkeypatch):
    target = tmp_path / "f"
    write_atomic(target, b"old")
    monkeypatch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


def test_equal_arrays_pack_to_equal_bytes_whatever_their_order():
    one = pack_arrays({"a": np.ones(3), "b": np.zeros((2, 2), dtype=np.float32)})
    other = pack_arrays({"b": np.zeros((2, 2), dtype=np.float32), "a": np.ones(3)})
    assert one == other


def test_correctness_is_kept_one_bit_an_item(tmp_path):
    rows = {0: np.array([True, False, True] * 5), 7: np.array([False] * 15)}
    made = Bundle.create(tmp_path / "b", id="x", spec={}, card={})
    made.commit([Member("items.safetensors", "items", pack_items(rows, np.arange(30).reshape(15, 2)))])
    assert {epoch: row.tolist() for epoch, row in made.correct().items()} == {
        epoch: row.tolist() for epoch, row in rows.items()
    }
    assert made.sources().shape == (15, 2)


def test_a_light_copy_keeps_the_items_of_the_epochs_with_a_checkpoint_and_of_the_last(tmp_path):
    made = Bundle.create(tmp_path / "b", id="x", spec={}, card={})
    rows = {epoch: np.arange(9) < epoch for epoch in range(6)}
    weights = pack_arrays({"w": np.zeros(2)})
    kept = [Member(f"checkpoints/{epoch}.safetensors", "checkpoint", weights, epoch) for epoch in (0, 3)]
    made.commit([Member("items.safetensors", "items", pack_items(rows)), *kept], status={"epoch": 5})
    light = made.lighten(tmp_path / "light")
    assert {e: row.tolist() for e, row in light.correct().items()} == {
        e: rows[e].tolist() for e in (0, 3, 5)
    }
    assert light.members("checkpoint") == []


def test_a_light_copy_of_a_light_copy_loses_nothing(tmp_path):
    """Runs that were imported light and published again lost what epochs before the last had known."""
    made = Bundle.create(tmp_path / "b", id="x", spec={}, card={})
    rows = {epoch: np.arange(9) < epoch for epoch in range(6)}
    kept = Member("checkpoints/3.safetensors", "checkpoint", pack_arrays({"w": np.zeros(2)}), 3)
    made.commit([Member("items.safetensors", "items", pack_items(rows)), kept], status={"epoch": 5})
    first = made.export(tmp_path / "first.zip", light=True)
    again = import_zip(first, tmp_path / "elsewhere").export(tmp_path / "again.zip", light=True)
    assert again.read_bytes() == first.read_bytes()


def test_export_gives_the_same_bytes_and_import_gives_the_bundle_back(bundle, tmp_path):
    one, other = bundle.export(tmp_path / "1.zip"), bundle.export(tmp_path / "2.zip")
    assert one.read_bytes() == other.read_bytes()
    back = import_zip(one, tmp_path / "elsewhere")
    assert back.path.name == bundle.path.name and back.verify() == 2
    assert import_zip(one, tmp_path / "elsewhere").verify() == 2, "what is there already is no mistake"
    damaged = next(file for file in back.path.rglob("*") if file.is_file() and file.name != "bundle.json")
    sound = damaged.read_bytes()
    damaged.write_bytes(b"x")
    with pytest.raises(CorruptBundle, match="altered"):
        import_zip(one, tmp_path / "elsewhere")
    damaged.write_bytes(sound)
    light = bundle.export(tmp_path / "light.zip", light=True)
    with pytest.raises(BadInput, match="there already, and another copy"):
        import_zip(light, tmp_path / "elsewhere")


def test_a_folder_of_exported_bundles_is_read_as_the_store_they_came_from(bundle, tmp_path):
    bundle.export(tmp_path / "run.zip")
    found = Store.existing(tmp_path)
    assert found.path != tmp_path and [one.id for one in found.bundles()] == ["abc"]
    assert found.bundles()[0].verify() == 2
    assert Store.existing(bundle.path.parent).path == bundle.path.parent
    bundle.export(bundle.path.parent / f"{bundle.path.name}.zip")
    assert Store.existing(bundle.path.parent).path == bundle.path.parent, "folders come before their zips"
    (bundle.path.parent / "other.zip").write_bytes((tmp_path / "run.zip").read_bytes())
    with pytest.raises(BadInput, match=r"the name of none of them: other\.zip"):
        Store.existing(bundle.path.parent)


def test_a_zip_that_climbs_out_of_the_store_is_refused_and_leaves_nothing(bundle, tmp_path):
    evil = tmp_path / "evil.zip"
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("run/bundle.json", "{}")
        archive.writestr("run/../../evil.txt", "x")
    with pytest.raises(UnsafePath):
        import_zip(evil, tmp_path / "in" / "store")
    assert not (tmp_path / "evil.txt").exists() and not (tmp_path / "in" / "evil.txt").exists()
    assert list((tmp_path / "in" / "store").iterdir()) == []


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (lambda data: data.replace(b"epoch", b"epocj"), "has been altered"),
        (lambda data: data + b"0" * 10_000_000, "has not the size it is listed with"),
    ],
)
def test_a_sound_zip_with_an_altered_member_gets_no_place_in_the_store(bundle, tmp_path, alter, words):
    bundle.export(tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as sound, zipfile.ZipFile(tmp_path / "t.zip", "w") as forged:
        for name in sound.namelist():
            data = sound.read(name)
            forged.writestr(name, alter(data) if name.endswith(".csv") else data)
    with pytest.raises(CorruptBundle, match=words):
        import_zip(tmp_path / "t.zip", tmp_path / "s")
    assert list((tmp_path / "s").iterdir()) == []


def test_a_damaged_or_foreign_zip_is_refused(bundle, tmp_path):
    packed = bundle.export(tmp_path / "b.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(CorruptBundle):
        import_zip(tmp_path / "cut.zip", tmp_path / "s")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(BadInput, match="not an exported bundle"):
        import_zip(tmp_path / "other.zip", tmp_path / "s")


@pytest.mark.parametrize("writes", [0, 1])
def test_a_full_disk_is_not_called_a_fault_of_the_zip(bundle, tmp_path, monkeypatch, writes):
    bundle.export(tmp_path / "b.zip")
    room = [bundle_module.write_atomic] * writes  # for the manifest, and no member

    def full(path, data):
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room.pop()(path, data)

    monkeypatch.setattr("walkback.store.bundle.write_atomic", full)
    with pytest.raises(OSError, match="No space left"):
        import_zip(tmp_path / "b.zip", tmp_path / "s")


def test_a_flipped_bit_in_a_mailed_zip_is_an_error_never_a_traceback(bundle, tmp_path):
    packed = bundle.export(tmp_path / "b.zip").read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(150):
        damaged = bytearray(packed)
        damaged[rng.integers(len(packed))] ^= 1 << rng.integers(8)
        (tmp_path / "d.zip").write_bytes(damaged)
        try:
            import_zip(tmp_path / "d.zip", tmp_path / f"s{trial}").verify()
        except WalkbackError:
            continue


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"schema": 1, "x": NaN}',
        '{"schema": 1}',
        '{"schema": "one"}',
        '{"schema":1,"x":' + "[" * 200_000,
        '{"schema":1,"x":' + "[" * 200_000 + "]" * 200_000 + "}",
    ],
    ids=range(7),
)
def test_a_manifest_that_is_not_one_is_refused(bundle, text):
    (bundle.path / "bundle.json").write_text(text)
    with pytest.raises(CorruptBundle):
        Bundle.open(bundle.path)


def test_the_hint_for_an_altered_bundle_leads_out(bundle):
    """A run whose folder is there is not trained again: the folder has to go first."""
    (bundle.path / "measurements.csv").write_text("other")
    with pytest.raises(CorruptBundle) as refused:
        bundle.verify()
    assert "remove its folder and train the run again" in refused.value.hint


def test_a_sealed_manifest_without_its_parts_is_refused(bundle):
    (bundle.path / "bundle.json").write_bytes(_write_manifest({"schema": 1}))
    with pytest.raises(CorruptBundle):
        Bundle.open(bundle.path)


@pytest.mark.parametrize(
    "forge",
    [
        lambda sealed: sealed | {"members": []},
        lambda sealed: sealed | {"status": None},
        lambda sealed: sealed | {"card": "bp"},
        lambda sealed: sealed | {"members": {"a.csv": {"role": "measurements"}}},
        lambda sealed: sealed | {"members": {"a.csv": "measurements"}},
        lambda sealed: sealed | {"members": {"a": {"role": "checkpoint", "sha256": "0", "bytes": 1}}},
    ],
)
def test_a_sealed_manifest_with_parts_of_another_kind_is_refused(bundle, forge):
    file = bundle.path / "bundle.json"
    file.write_bytes(_write_manifest(forge(json.loads(file.read_bytes()))))
    with pytest.raises(CorruptBundle, match="lacks what a bundle has"):
        Bundle.open(bundle.path)


def test_a_name_that_could_not_be_imported_is_not_exported(bundle, tmp_path):
    moved = bundle.path.rename(bundle.path.parent / "lr:0.1")
    with pytest.raises(BadInput, match="Give it another name"):
        Bundle.open(moved).export(tmp_path / "b.zip")


@pytest.mark.parametrize("name", [".hidden", ".locks"])
def test_a_folder_that_no_listing_would_show_is_neither_exported_nor_imported(bundle, tmp_path, name):
    zipped = bundle.export(tmp_path / "run.zip")
    hidden = bundle.path.rename(bundle.path.parent / name)
    for light in (False, True):
        with pytest.raises(BadInput, match="must not begin with a dot"):
            Bundle.open(hidden).export(tmp_path / "hidden.zip", light=light)
    with zipfile.ZipFile(zipped) as whole, zipfile.ZipFile(tmp_path / "forged.zip", "w") as forged:
        for entry in whole.namelist():
            forged.writestr(entry.replace("run-1/", f"{name}/"), whole.read(entry))
    with pytest.raises(BadInput, match="must not begin with a dot"):
        import_zip(tmp_path / "forged.zip", tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_two_zips_of_one_run_are_both_named(bundle, tmp_path):
    folder = tmp_path / "mailed"
    folder.mkdir()
    first, second = bundle.export(folder / "a.zip"), bundle.export(folder / "b.zip")
    with pytest.raises(BadInput) as refused:
        Store.existing(folder)
    assert str(refused.value).startswith(f"{first} and {second} hold the same run run-1.")


def test_a_run_held_by_another_is_refused_by_name(tmp_path):
    store = Store(tmp_path)
    with store.hold("run-1"):
        with pytest.raises(StoreBusy, match="run-1"), Store(tmp_path).hold("run-1"):
            pass
        with store.hold("run-2"):
            pass
    with store.hold("run-1"):
        pass


def test_a_run_that_has_lost_its_manifest_is_refused_and_one_that_only_started_is_not(bundle, tmp_path):
    store = Store(bundle.path.parent)
    started = store.path / "just-started" / "working"
    started.mkdir(parents=True)
    (started / "measurements-0000.csv").write_text("epoch\n")
    assert [held.path for held in store.bundles()] == [bundle.path]
    (started / "measurements-0001.csv").write_text("epoch\n")
    with pytest.raises(
        CorruptBundle, match=r"just-started holds the measurements of a run, but no bundle.json"
    ):
        store.bundles()
    shutil.rmtree(started.parent)
    (bundle.path / "measurements.csv").write_text("epoch\n")
    (bundle.path / "bundle.json").unlink()
    with pytest.raises(CorruptBundle, match="would be left out"):
        store.bundles()


def test_a_run_without_its_manifest_is_refused_beside_zips_too(bundle, tmp_path):
    folder = tmp_path / "mixed"
    (folder / "lost").mkdir(parents=True)
    bundle.export(folder / "run-1.zip")
    assert [held.path.name for held in Store.existing(folder).bundles()] == ["run-1"]
    (folder / "lost" / "measurements.csv").write_text("epoch\n")
    with pytest.raises(CorruptBundle, match="lost holds the measurements"):
        Store.existing(folder)
