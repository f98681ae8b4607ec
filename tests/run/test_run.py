"""Runs as a person meets them: stopped, killed, resumed, diverged, held by another."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from walkback.core.errors import BadInput, FileTrouble, NotApplicable, StoreBusy
from walkback.core.spec import Call
from walkback.data import Dataset, cifar10, load_dataset
from walkback.judge.assemble import judge_bundles
from walkback.run import cost, one
from walkback.run.cost import costs_of
from walkback.run.many import run_many
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.run.pool import work_off
from walkback.store import Bundle, Store
from walkback.store.bundle import import_zip

COMMAND = [sys.executable, "-c", "from walkback.cli.main import main; main()"]
TINY = "resmlp(width=16,expansion=1,depth=2)"


@pytest.fixture(scope="module")
def digits():
    return load_dataset(Call("digits"))


def specs(digits, rules, *, epochs=2, seeds=(1,), **recipe):
    return plan_runs(
        net=TINY,
        rules=rules,
        seeds=seeds,
        data="digits",
        dataset=digits,
        epochs=epochs,
        **{"batch": 64, **recipe},
    )


def hashes(store: Path) -> dict[str, str]:
    files = [file for file in store.rglob("*") if file.is_file() and ".locks" not in file.parts]
    return {str(f.relative_to(store)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_a_run_is_measured_from_initialisation_to_the_last_epoch(digits, tmp_path):
    (spec,) = specs(digits, ["dfa"])
    bundle = run_one(spec, digits, Store(tmp_path))
    bundle.verify()
    table = bundle.measurements()
    assert table.epochs == [0, 1, 2] and bundle.status["state"] == "finished"
    assert sorted(bundle.checkpoint_epochs()) == [0, 1, 2]
    assert bundle.one("resume") is None
    for epoch, correct in bundle.correct().items():
        assert correct.mean() == table.number("accuracy.test@1", epoch)
    checkpoint = bundle.arrays(bundle.checkpoint_epochs()[2])
    assert {name.split("/")[0] for name in checkpoint} == {"net", "rule"}
    assert "rule/feedback_2" in checkpoint
    assert bundle.arrays("eval.safetensors")["x"].shape[0] == 450


def test_the_same_run_gives_the_same_bytes(digits, tmp_path):
    for name in ("one", "two"):
        run_one(specs(digits, ["fa"])[0], digits, Store(tmp_path / name))
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")


def test_a_stored_checkpoint_gives_back_the_measured_accuracy(digits, tmp_path):
    from walkback.nets import build_net

    (spec,) = specs(digits, ["bp"])
    bundle = run_one(spec, digits, Store(tmp_path))
    arrays = bundle.arrays(bundle.checkpoint_epochs()[2])
    model = build_net(spec.net, 64, 10)
    weights = {
        k.removeprefix("net/"): torch.from_numpy(v) for k, v in arrays.items() if k.startswith("net/")
    }
    model.load_state_dict(weights)
    right = model(torch.from_numpy(digits.x_test)).argmax(1) == torch.from_numpy(digits.y_test)
    assert float(right.double().mean()) == bundle.measurements().number("accuracy.test@1", 2)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("rule", ["bp", "fa", "dfa", "frozen"])
def test_a_run_stopped_in_any_epoch_resumes_to_the_same_bytes(digits, tmp_path, rule):
    (spec,) = specs(digits, [rule], epochs=3)
    run_one(spec, digits, Store(tmp_path / "whole"))

    def stop_at(step):
        def watch(progress):
            if progress.step == step:
                raise Stopped

        return watch

    for step in (1, 30, 64, 66):
        with pytest.raises(Stopped):
            run_one(spec, digits, Store(tmp_path / "parts"), on_progress=stop_at(step))
        half = Bundle.open(tmp_path / "parts" / spec.name)
        half.verify()
        assert not half.finished
    run_one(spec, digits, Store(tmp_path / "parts"))
    assert hashes(tmp_path / "whole") == hashes(tmp_path / "parts")


def test_a_finished_run_is_not_trained_again(digits, tmp_path):
    (spec,) = specs(digits, ["bp"])
    run_one(spec, digits, Store(tmp_path))
    before = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")}
    run_one(spec, digits, Store(tmp_path), on_progress=lambda p: pytest.fail("trained again"))
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")} == before


def test_rules_share_initial_weights_and_batches_but_not_feedback(digits, tmp_path):
    store = Store(tmp_path)
    bundles = {
        s.rule.name: run_one(s, digits, store) for s in specs(digits, ["bp", "dfa", "frozen"], epochs=1)
    }
    first = {name: b.arrays(b.checkpoint_epochs()[0]) for name, b in bundles.items()}
    for key in (k for k in first["bp"] if k.startswith("net/")):
        assert (first["bp"][key] == first["dfa"][key]).all()
    last = {name: b.arrays(b.checkpoint_epochs()[1]) for name, b in bundles.items()}
    for key in (k for k in first["frozen"] if k.startswith("net/blocks")):
        assert (first["frozen"][key] == last["frozen"][key]).all(), "frozen blocks never move"
        assert (first["bp"][key] != last["bp"][key]).any() or "ln.bias" in key
    assert (last["frozen"]["net/stem.weight"] != first["frozen"]["net/stem.weight"]).any()
    assert (last["dfa"]["rule/feedback_1"] == first["dfa"]["rule/feedback_1"]).all()


def test_divergence_is_an_outcome_that_is_recorded_and_judged(digits, tmp_path):
    store = Store(tmp_path)
    for spec in specs(digits, ["bp", "frozen"], epochs=4, lr=1e25, seeds=(1,)):
        run_one(spec, digits, store)
    bundles = store.bundles()
    bp = next(b for b in bundles if b.card["rule"]["name"] == "bp")
    assert bp.status["state"] == "diverged" and "not finite" in bp.status["reason"]
    bp.verify()
    verdict = judge_bundles([bp])[0].verdict
    assert any("diverged" in note for note in verdict.notes)
    assert verdict.outcome.value != "PASS"


def test_a_diverged_run_that_was_killed_before_it_said_so_still_says_so(digits, tmp_path, monkeypatch):
    (spec,) = specs(digits, ["bp"], epochs=4, lr=1e25)
    from walkback.run import one

    monkeypatch.setattr(one._Run, "finish", lambda self, status: (_ for _ in ()).throw(Stopped))
    with pytest.raises(Stopped):
        run_one(spec, digits, Store(tmp_path))
    monkeypatch.undo()
    bundle = run_one(spec, digits, Store(tmp_path), on_progress=lambda p: pytest.fail("it had diverged"))
    assert bundle.status["state"] == "diverged"


def test_a_kill_after_the_last_commit_leaves_nothing_behind_once_the_command_is_run_again(
    digits, tmp_path, monkeypatch
):
    (spec,) = specs(digits, ["bp"], epochs=1)
    run_one(spec, digits, Store(tmp_path / "whole"))
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: (_ for _ in ()).throw(Stopped))
    for _ in range(2):  # the first stop is in the first epoch's own removal, if there is one
        try:
            run_one(spec, digits, Store(tmp_path / "parts"))
        except Stopped:
            continue
    monkeypatch.undo()
    assert run_many([spec], Store(tmp_path / "parts"), [digits]) == []
    assert hashes(tmp_path / "whole") == hashes(tmp_path / "parts")


def test_data_that_changed_after_planning_is_refused(digits, tmp_path):
    (spec,) = specs(digits, ["bp"])
    other = replace(digits, y_train=digits.y_train[::-1].copy())
    with pytest.raises(BadInput, match="planned on other data"):
        run_one(spec, other, Store(tmp_path))


def test_siblings_share_the_seed(digits, tmp_path):
    """The frozen run of another seed is no sibling: its initial blocks are others."""
    store = Store(tmp_path)
    for rule, seed in (("bp", 1), ("frozen", 2)):
        run_one(specs(digits, [rule], epochs=1, seeds=(seed,))[0], digits, store)
    (bp, _) = judge_bundles(store.bundles())
    assert bp.verdict.verdict == "INCOMPLETE(D3)"


def test_a_baseline_that_stopped_early_is_compared_at_its_own_epoch_or_not_at_all(digits, tmp_path):
    store = Store(tmp_path)
    run_one(specs(digits, ["bp"], epochs=3)[0], digits, store)

    def stop(progress):
        if progress.epoch == 1:
            raise Stopped

    with pytest.raises(Stopped):
        run_one(specs(digits, ["frozen"], epochs=3)[0], digits, store, on_progress=stop)
    verdict = judge_bundles(store.bundles())[0].verdict
    assert verdict.verdict == "INCOMPLETE(D3)"
    assert (
        "measured at epoch 1, the run at epoch 3" in verdict["diagnostics"]["D3_depth_utility"]["sentence"]
    )


def test_the_same_bundle_is_not_several_seeds(digits, tmp_path):
    bundle = run_one(specs(digits, ["bp"], epochs=1)[0], digits, Store(tmp_path))
    with pytest.raises(BadInput, match="more than once"):
        judge_bundles([bundle, bundle, bundle])


def test_long_runs_keep_a_checkpoint_every_fifty_epochs(digits, tmp_path):
    from walkback.run.one import _Run

    (spec,) = specs(digits, ["bp"], epochs=260)
    run = _Run.start(spec, digits, Store(tmp_path), "cpu")
    assert {0, 1, 2, 5, 10, 20, 50, 100, 150, 200, 250} <= run.kept


def test_logits_that_are_not_finite_are_never_correct(digits):
    from walkback.data.feed import Feed
    from walkback.nets import Adapter
    from walkback.nets.resmlp import ResMLP
    from walkback.protocol import FAProtocol
    from walkback.run.one import test_items as count_items

    model = ResMLP(64, 10, 1, 8)
    with torch.no_grad():
        model.out_head.bias.fill_(float("nan"))
    correct, _ = count_items(Adapter(model), Feed(digits))
    assert correct.sum() == 0
    x, y = torch.from_numpy(digits.x_test), torch.from_numpy(digits.y_test)
    assert FAProtocol(model, x, y).measure().accuracy == 0


def test_the_full_tier_is_added_from_the_checkpoint_and_reproducible(digits, tmp_path):
    from walkback.run.full import measure_stored

    (spec,) = specs(digits, ["dfa"])
    for name in ("one", "two"):
        bundle = run_one(spec, digits, Store(tmp_path / name))
        assert measure_stored(bundle, [0, 2], draws=9) == [0, 2]
        bundle.verify()
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")
    table = Bundle.open(bundle.path).measurements()
    assert table.number("alignment.null_draws@1", 2) == 9
    assert table.number("nudge.ratio@1", 0, 2) is not None and table.number("nudge.ratio@1", 1, 2) is None
    cosine = table.number("alignment.cosine@1", 2, 2)
    assert cosine is not None and table.number("perturbation.ceiling@1", 2, 2) > 0.95
    with pytest.raises(BadInput, match="no checkpoint of epoch 7"):
        measure_stored(bundle, [7])


def test_a_run_names_the_code_that_its_process_began_with(digits, tmp_path, monkeypatch):
    from walkback.store import provenance

    asked = []
    monkeypatch.setattr(provenance, "_git", lambda root, *words: asked.append(words) or str(len(asked)))
    provenance.commit.cache_clear()
    bundle = run_one(specs(digits, ["bp"])[0], digits, Store(tmp_path))
    provenance.commit.cache_clear()
    assert asked and len(bundle.provenance) == 1, "a commit that is made meanwhile is not what it runs"


def test_the_end_of_a_run_is_reported_however_fast_it_comes():
    from walkback.run.pool import _throttled

    here, there = multiprocessing.Pipe()
    report = _throttled(there)
    for done in range(1, 101):
        report(done, 100)
    heard = []
    while here.poll():
        heard.append(here.recv())
    assert heard[-1] == ("progress", (100, 100)) and len(heard) < 100


def test_a_full_tier_of_an_older_walkback_is_measured_again_where_its_checkpoint_is(digits, tmp_path):
    from walkback.run import full

    bundle = run_one(specs(digits, ["dfa"])[0], digits, Store(tmp_path))
    full.measure_stored(bundle, [1, 2], draws=9)
    (now,) = (name for name in bundle.members("full") if "0001" in name)
    lines = (bundle.path / now).read_text(encoding="utf-8").splitlines(keepends=True)
    older = "".join(line for line in lines if "_compat@1" not in line)
    full._store_tier(bundle, 1, older.encode())
    assert Bundle.open(bundle.path).measurements().number("perturbation.rho_compat@1", 1, 1) is None
    assert full.measure_missing(bundle, [1, 2], draws=9) == [1]
    assert full.measure_missing(bundle, [1, 2], draws=9) == []
    bundle.verify()
    (again,) = (name for name in bundle.members("full") if "0001" in name)
    assert (bundle.path / again).read_text(encoding="utf-8") == "".join(lines)


def test_a_restored_run_is_the_run_that_was_trained(digits, tmp_path):
    from walkback.measure import measure_light
    from walkback.run.full import restore_run

    for rule in ("dfa(form=layer)", "fa", "frozen(stem=dfa)", "dfa+penalty(0.1)"):
        bundle = run_one(specs(digits, [rule], epochs=1)[0], digits, Store(tmp_path))
        net, restored, x, y = restore_run(bundle, 1)
        with net.evaluating():
            trace = net.probe(x, y)
            again = measure_light(trace, restored.credits(trace), 1)
        stored = bundle.measurements()
        for reading in again:
            assert stored.get(reading.quantity, 1, reading.layer).value == reading.value, reading


def test_the_stem_blocks_table_is_found_in_the_store(digits, tmp_path):
    store = Store(tmp_path)
    arms = ["dfa", "mixed(stem=bp,blocks=dfa(form=block))", "frozen", "frozen(stem=dfa)"]
    for spec in specs(digits, arms, epochs=1):
        run_one(spec, digits, store)
    judged = {item.label: item for item in judge_bundles(store.bundles())}
    shown = judged["dfa"].verdict["evidence"]["stem_blocks"]
    assert len(shown["cells"]) == 4 and set(shown["contrasts"]) == {"stem by bp", "stem by dfa"}
    accuracies = {(c["stem"], c["blocks"]): c["accuracy"] for c in shown["cells"]}
    assert accuracies["bp", "frozen"] == judged["frozen"].runs[0].accuracy
    assert accuracies["dfa", "frozen"] == judged["frozen(stem=dfa)"].runs[0].accuracy
    gain = shown["contrasts"]["stem by dfa"]["gain"]
    assert gain == pytest.approx(accuracies["dfa", "dfa"] - accuracies["dfa", "frozen"])


def test_a_checkpoint_of_another_version_is_refused_in_words(digits, tmp_path):
    from walkback.run.full import restore_run
    from walkback.store.bundle import Member, pack_arrays

    bundle = run_one(specs(digits, ["dfa"], epochs=1)[0], digits, Store(tmp_path))
    arrays = bundle.arrays(bundle.checkpoint_epochs()[1])
    arrays["rule/renamed"] = arrays.pop("rule/feedback_0")
    bundle.commit([Member(bundle.checkpoint_epochs()[1], "checkpoint", pack_arrays(arrays), 1)])
    with pytest.raises(BadInput, match="made by another version"):
        restore_run(bundle, 1)


def test_knocking_out_a_frozen_block_costs_nothing_and_a_trained_one_something(digits, tmp_path):
    from walkback.run.knockout import knock_out

    store = Store(tmp_path)
    bp, fixed = (run_one(s, digits, store) for s in specs(digits, ["bp", "frozen"], epochs=12, lr=1e-2))
    assert [row["worth"] for row in knock_out(fixed)["blocks"]] == [0.0, 0.0]
    found = knock_out(bp)
    assert found["accuracy"] == pytest.approx(bp.measurements().number("accuracy.test@1", 12))
    assert max(row["worth"] for row in found["blocks"]) > 0.01
    assert knock_out(bp, 0)["blocks"][0]["worth"] == 0.0
    with pytest.raises(BadInput, match="no checkpoint of epoch 3"):
        knock_out(bp, 3)


def test_a_frozen_block_with_batch_norm_costs_nothing_either(digits, tmp_path):
    from walkback.run.knockout import knock_out

    (spec,) = plan_runs(
        net="small-resnet(depth=2,width=4,stages=2)", rules=["frozen"], seeds=[1], data="digits",
        dataset=digits, epochs=1, batch=64,
    )  # fmt: skip
    found = knock_out(run_one(spec, digits, Store(tmp_path)))
    assert [row["worth"] for row in found["blocks"]] == [0.0] * len(found["blocks"])


def test_what_a_net_without_numbers_loses_is_not_zero(digits, tmp_path, capsys):
    from walkback.cli.main import run
    from walkback.run.knockout import knock_out

    (spec,) = specs(digits, ["bp"], lr=1e30)
    bundle = run_one(spec, digits, Store(tmp_path))
    assert bundle.status["state"] == "diverged"
    found = knock_out(bundle)
    assert found["accuracy"] is None and [row["worth"] for row in found["blocks"]] == [None, None]
    assert run(["knockout", str(bundle.path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("not a number") == 3 and "pp lost" not in shown


def test_two_who_measure_one_bundle_lose_nothing_of_each_other(digits, tmp_path):
    from walkback.run.full import measure_stored

    (spec,) = specs(digits, ["dfa"])
    path = run_one(spec, digits, Store(tmp_path)).path
    one, other = Bundle.open(path), Bundle.open(path)
    measure_stored(one, [1], draws=9)
    measure_stored(other, [2], draws=9)
    for bundle in (other, Bundle.open(path)):
        assert bundle.members("full") == ["full/epoch-0001.csv", "full/epoch-0002.csv"]


def test_a_store_that_cannot_be_written_is_said_to_be(digits, tmp_path):
    (tmp_path / ".locks").write_text("a file where the folder of locks belongs")
    with pytest.raises(FileTrouble, match=r"The store .* cannot be written"):
        run_one(specs(digits, ["bp"])[0], digits, Store(tmp_path))


def test_a_worker_that_was_killed_names_its_run_and_is_no_bug(tmp_path):
    process = start(tmp_path / "s", stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("s/*/checkpoints/*")):
        assert process.poll() is None
        time.sleep(0.01)
    for worker in children_of(process.pid):
        if "spawn_main" in Path(f"/proc/{worker}/cmdline").read_text():
            os.kill(worker, signal.SIGKILL)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 130
    last = shown.strip().splitlines()[-1]
    assert "resmlp-" in last and "worker process died" in last and "goes on" in last


def test_what_was_measured_while_a_run_was_stopped_is_not_mixed_into_it(digits, tmp_path):
    from walkback.run.full import measure_stored

    (spec,) = specs(digits, ["dfa"], epochs=3)
    run_one(spec, digits, Store(tmp_path / "whole"))

    def stop(progress):
        if progress.step == 60:
            raise Stopped

    with pytest.raises(Stopped):
        run_one(spec, digits, Store(tmp_path / "parts"), on_progress=stop)
    half = Bundle.open(tmp_path / "parts" / spec.name)
    measure_stored(half, [1], draws=9)
    done = run_one(spec, digits, Store(tmp_path / "parts"))
    whole = Bundle.open(tmp_path / "whole" / spec.name)
    assert done.read("measurements.csv") == whole.read("measurements.csv")
    measure_stored(done, [1], draws=19)
    assert Bundle.open(done.path).measurements().number("alignment.null_draws@1", 1) == 19


def test_a_tier_measured_again_leaves_a_sound_bundle_at_any_moment(digits, tmp_path, monkeypatch):
    from walkback.run.full import measure_stored
    from walkback.store import bundle as stored

    (spec,) = specs(digits, ["dfa"], epochs=1)
    bundle = run_one(spec, digits, Store(tmp_path))
    measure_stored(bundle, [1], draws=9)
    write = stored.write_atomic

    def full_disk(path, data):
        if path.name == stored.MANIFEST:
            raise OSError("No space left on device")
        write(path, data)

    monkeypatch.setattr(stored, "write_atomic", full_disk)
    with pytest.raises(OSError, match="No space"):
        measure_stored(bundle, [1], draws=19)
    monkeypatch.undo()
    kept = Bundle.open(bundle.path)
    assert kept.verify() and kept.measurements().number("alignment.null_draws@1", 1) == 9
    measure_stored(kept, [1], draws=19)
    again = Bundle.open(bundle.path)
    assert again.verify() and again.measurements().number("alignment.null_draws@1", 1) == 19
    assert len(list((bundle.path / "full").iterdir())) == len(again.members("full")) == 1


def test_a_run_that_has_just_begun_says_that_it_is_running(digits, tmp_path, monkeypatch):
    def killed(run, state):
        raise Stopped

    monkeypatch.setattr(one._Run, "end_epoch", killed)
    (spec,) = specs(digits, ["dfa"], epochs=1)
    with pytest.raises(Stopped):
        run_one(spec, digits, Store(tmp_path))
    assert Bundle.open(tmp_path / spec.name).status["state"] == "running"


def test_a_light_copy_has_nothing_to_measure_and_says_so(digits, tmp_path):
    from walkback.run.full import measure_stored
    from walkback.run.knockout import knock_out

    (spec,) = specs(digits, ["dfa"], epochs=1)
    run_one(spec, digits, Store(tmp_path / "whole")).export(tmp_path / "light.zip", light=True)
    light = import_zip(tmp_path / "light.zip", tmp_path / "copies")
    for ask in (measure_stored, knock_out):
        with pytest.raises(BadInput, match="has no checkpoints"):
            ask(light)


@pytest.mark.parametrize(("net", "data"), [(f"{TINY}+dropout(0.5)", "digits"), (TINY, "digits+noise")])
def test_an_addition_that_nothing_would_come_of_is_refused(digits, net, data):
    with pytest.raises(BadInput, match="Nothing can be added to a"):
        plan_runs(net=net, rules=["bp"], seeds=[1], data=data, dataset=digits, epochs=1)


def test_processes_give_the_bits_of_one_thread_in_this_process(digits, tmp_path):
    todo = specs(digits, ["bp", "dfa", "frozen"], epochs=1)
    assert run_many(todo, Store(tmp_path / "many"), [digits], workers=2) == []
    for spec in todo:
        run_one(spec, digits, Store(tmp_path / "one"))
    assert hashes(tmp_path / "many") == hashes(tmp_path / "one")


@pytest.mark.parametrize("turned", [False, True])
def test_the_same_arrays_fed_in_two_ways_are_two_data_sets(tmp_path, turned):
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(256, 3, 8, 8), dtype=np.uint8), rng.integers(10, size=256)
    moments = {"mean": cifar10.MEAN, "sd": cifar10.SD}
    ways = [
        Dataset("c", x, y, x, y, 10, **moments, augment=how, call=f"cifar10(augment={how})")
        for how in ("crop-flip", "none")
    ]
    todo = [
        spec
        for data in ways
        for spec in plan_runs(
            net=TINY, rules=["bp"], seeds=[1], data=data.call, dataset=data, epochs=1, batch=32
        )
    ]
    held = ways[::-1] if turned else ways
    assert run_many(todo, Store(tmp_path / "many"), held) == []
    for spec, data in zip(todo, ways, strict=True):
        run_one(spec, data, Store(tmp_path / "one"))
    assert hashes(tmp_path / "many") == hashes(tmp_path / "one")
    with pytest.raises(BadInput, match="planned on other data"):
        run_one(todo[0], ways[1], Store(tmp_path / "other"))
    assert set(costs_of(todo, held)) == set(todo)


def test_the_cost_of_a_run_is_measured_where_it_will_be_trained(digits, monkeypatch):
    """In workers, once for runs that cost the same, and with what a worker says when it fails."""
    monkeypatch.setattr(cost, "measure_cost", None)  # here, and in no process but this
    todo = specs(digits, ["bp", "frozen"], seeds=(1, 2))
    seen = []
    found = costs_of(todo, [digits], workers=2, on_progress=lambda *told: seen.append(told[1:]))
    assert seen == [(1, 2), (2, 2)]
    assert set(found) == set(todo) and all(found[spec].step > 0 for spec in todo)
    assert len({id(found[spec]) for spec in todo}) == 2
    (spec,) = specs(digits, ["dfa(skip=sum)"])
    refused = [replace(spec, net=Call.parse("cnn(width=4,depth=2,stages=2)"))]
    with pytest.raises(NotApplicable, match="needs states of one shape"):
        costs_of(refused, [digits])


@pytest.mark.parametrize("batch", [64, 1100, 2048])
def test_a_step_costs_something_however_few_an_epoch_has(digits, batch):
    """1437 rows: 23 steps; one whole and one that is not; one that holds them all."""
    (spec,) = specs(digits, ["bp"], batch=batch)
    seen = []
    monkey = cost.run_one

    def watched(short, piece, *args, **kwargs):
        seen.append((len(piece.y_train), short.batch))
        return monkey(short, piece, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "run_one", watched)
        found = cost.measure_cost(spec, digits)
    rows = len(digits.y_train)
    assert found.step > 0
    assert seen == [{64: (12 * 64, 64), 1100: (2200, 1100), 2048: (2 * rows, rows)}[batch]]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told")
def test_a_worker_keeps_the_memory_it_has_freed():
    """Handed back, each page of a large buffer is a fault when the buffer is asked for again."""
    before, pages = dict(os.environ), 6 * 16 * 2**20 // resource.getpagesize()
    (ended,) = work_off([16 * 2**20], faults_of_six_buffers_at_a_time)
    assert min(ended.result) < 0.1 * pages
    (ended,) = work_off([r"MALLOC_(MMAP|TRIM)_THRESHOLD_"], names_in_the_environment)
    assert len(ended.result) == 2, "glibc may come to keep some by itself, so the pages alone are no proof"
    assert dict(os.environ) == before


def names_in_the_environment(pattern, held, report):
    return [name for name in os.environ if re.fullmatch(pattern, name)]


def faults_of_six_buffers_at_a_time(size, held, report):
    found = []
    for _ in range(8):
        count = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        buffers = [torch.ones(size, dtype=torch.uint8) for _ in range(6)]
        del buffers
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - count)
    return found


def test_a_run_that_another_process_holds_is_refused_before_anything_starts(digits, tmp_path):
    (spec,) = specs(digits, ["bp"])
    with Store(tmp_path).hold(spec.name), pytest.raises(StoreBusy, match=spec.name):
        run_many([spec], Store(tmp_path), [digits])


class KillsItsReader:
    """Five megabytes, and whoever unpacks them is killed, as by a system that is out of memory."""

    def __reduce__(self):
        return _killed_with, (bytes(5 * 2**20),)


def _killed_with(load):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_over_what_it_is_sent_ends_its_jobs_and_hangs_nothing():
    ended = list(work_off(["one", "two"], names_in_the_environment, KillsItsReader(), workers=2))
    assert sorted(end.job for end in ended) == ["one", "two"]
    assert all(end.failed and end.error.kind == "worker_died" for end in ended)


def test_a_run_that_crashes_is_reported_never_dropped(digits, tmp_path):
    todo = specs(digits, ["bp", "dfa"], epochs=1)
    store = Store(tmp_path)
    blocked = tmp_path / todo[0].name
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_text("a file where a folder must be")
    failures = run_many(todo, store, [digits], workers=1)
    assert [failure.spec.rule.name for failure in failures] == ["bp"]
    assert failures[0].error.kind == "file" and blocked.name in failures[0].error.message
    assert store.find(todo[1].name).finished
    (lost,) = run_many(specs(digits, ["fa"], epochs=1), store, [])
    assert lost.error is None and "Traceback" in lost.traceback, "a bug shows where it is"


def start(store: Path, **options) -> subprocess.Popen:
    command = [*COMMAND, "train", "--net", TINY, "--rules", "dfa,fa", "--seeds", "1", "--epochs", "4"]
    command += ["--data", "digits", "--batch", "4", "--workers", "2", "--store", str(store)]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    return subprocess.Popen(command, **options)


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for child processes in /proc")
def test_sigkill_twice_then_resume_gives_the_same_files_and_leaves_no_worker(tmp_path):
    whole = start(tmp_path / "whole")
    assert whole.wait(timeout=120) == 0
    store = tmp_path / "killed"
    for epoch in (0, 1):
        process = start(store)
        deadline = time.monotonic() + 120
        while (
            len(list(store.glob(f"*/checkpoints/epoch-{epoch:04d}*"))) < 2 and time.monotonic() < deadline
        ):
            assert process.poll() is None, "it must not have finished"
            time.sleep(0.01)
        workers = children_of(process.pid)
        assert workers
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 10
        while any(_alive(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(_alive(pid) for pid in workers), "workers die with their parent"
        for bundle in Store(store).bundles():
            bundle.verify()
    assert start(store).wait(timeout=120) == 0
    assert hashes(store) == hashes(tmp_path / "whole")


def test_ctrl_c_ends_with_130_and_one_line(tmp_path):
    process = start(tmp_path / "s", start_new_session=True, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("s/*/checkpoints/*")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    assert shown.strip() == "walkback: Interrupted. Run the same command again to go on."


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() and os.getpgid(pid) > 0
    except (OSError, ProcessLookupError):
        return False
