"""An equal grid of learning rates for a rule and its baseline, chosen on rows held out of training."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from walkback.core.spec import Call, RunSpec
from walkback.data import load_dataset
from walkback.judge.assemble import judge_bundles
from walkback.judge.replay import histories, replay
from walkback.judge.select import select_rates
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.store import Store


@pytest.fixture(scope="module")
def digits():
    return load_dataset(Call("digits"))


@pytest.fixture(scope="module")
def store(digits, tmp_path_factory):
    path = tmp_path_factory.mktemp("grid")
    setting = {
        "net": "resmlp(width=16,depth=2)",
        "data": "digits",
        "dataset": digits,
        "epochs": 2,
        "batch": 64,
    }
    for spec in plan_runs(rules=["bp", "frozen"], seeds=[1, 2], lr_grid=[1e-5, 1e-2], **setting):
        run_one(spec, digits, Store(path))
    return Store(path)


def test_held_out_rows_are_never_trained_on_and_are_the_same_for_every_run(digits):
    smaller, validation = digits.hold_out(0.1)
    assert len(smaller.y_train) + len(validation.y_test) == len(digits.y_train)
    rows = {bytes(x) for x in smaller.x_train}
    assert sum(bytes(x) in rows for x in validation.x_test) <= 2, "but for images that occur twice"
    again = digits.hold_out(0.1)[1]
    assert np.array_equal(again.x_test, validation.x_test)
    assert smaller.split_identity == digits.split_identity, "the test split is untouched"


def test_the_rate_with_the_best_validation_accuracy_speaks_for_each_rule(store):
    bundles = store.bundles()
    assert len(bundles) == 8
    chosen = select_rates(bundles)
    assert len(chosen) == 4 and {b.spec["lr"] for b in chosen} == {1e-2}
    for bundle in bundles:
        table = bundle.measurements()
        assert table.number("accuracy.validation@1", 2) is not None
    bp, frozen = judge_bundles(bundles)
    assert [run.seed for run in bp.runs] == [1, 2] and frozen.role == "baseline"
    assert bp.verdict["diagnostics"]["D3_depth_utility"]["value"] is not None
    assert any("Learning rate 0.01 was chosen" in note for note in bp.verdict.notes)


def test_a_rule_and_its_baseline_may_have_different_rates_of_one_grid(store):
    bundles = store.bundles()
    rates = {"bp": 1e-2, "frozen": 1e-5}
    mixed = [b for b in bundles if b.spec["lr"] == rates[b.card["rule"]["name"]]]
    bp = next(
        item
        for item in judge_bundles(mixed, [b for b in mixed if b.spec["lr"] == 1e-5])
        if item.label == "bp"
    )
    assert bp.verdict["diagnostics"]["D3_depth_utility"]["value"] > 0.2
    assert any("Learning rate 0.01 was chosen" in note for note in bp.verdict.notes)


def test_a_rate_that_was_not_chosen_is_told_so_though_it_is_judged_alone(store, tmp_path):
    slow = [b for b in store.bundles() if b.spec["rule"] == "bp" and b.spec["lr"] == 1e-5]
    (told,) = judge_bundles(slow)
    assert any("the validation split prefers 0.01" in note for note in told.verdict.notes)
    for bundle in slow:
        shutil.copytree(bundle.path, tmp_path / bundle.path.name)
    (alone,) = judge_bundles(Store(tmp_path).bundles())
    missing = "of the 4 runs of bp's grid of learning rates 2 are not in this store"
    assert any(missing in note for note in alone.verdict.notes)


def the_runs(store, rule, rate, seeds=(1, 2)):
    found = [b for b in store.bundles() if (b.spec["rule"], b.spec["lr"]) == (rule, rate)]
    return [bundle for bundle in found if bundle.spec["seed"] in seeds]


def set_state(bundles, state):
    for bundle in bundles:
        bundle.commit(status={"state": state, "epoch": 1, "reason": "the loss is nan"})


def drop(bundles):
    for bundle in bundles:
        shutil.rmtree(bundle.path)


@pytest.fixture
def copied(store, tmp_path):
    return Store(shutil.copytree(store.path, tmp_path / "copied"))


def bp_depth(store):
    """The verdict on backprop, and what D3 says of it."""
    (bp,) = [item for item in judge_bundles(store.bundles()) if item.label == "bp"]
    return bp.verdict, bp.verdict.reasons[2]


@pytest.mark.parametrize("rule", ["bp", "frozen"])
@pytest.mark.parametrize(
    ("gone", "told"),
    [(drop, "are not in this store"), (lambda runs: set_state(runs, "running"), "have not ended")],
)
def test_an_unfinished_or_missing_rate_of_a_grid_is_no_loser(copied, rule, gone, told):
    full = {"bp": "bp", "frozen": "frozen(stem=bp)"}[rule]
    gone(the_runs(copied, full, 1e-2))
    verdict, depth = bp_depth(copied)
    assert (verdict.verdict, depth.fires, depth.value) == ("INCOMPLETE(D3)", None, None)
    assert f"of the 4 runs of {rule}'s grid of learning rates 2 {told}" in depth.sentence
    assert not any("was chosen on the validation split" in note for note in verdict.notes if rule == "bp")
    moments = [moment for moment in replay(histories(copied.bundles())) if moment.role != "baseline"]
    assert {moment.fires["D3"] for moment in moments} == {None}, "nor does any epoch of it know"


def test_one_missing_seed_of_one_rate_leaves_the_grid_open(copied):
    drop(the_runs(copied, "frozen(stem=bp)", 1e-5, seeds=(2,)))
    told = "of the 4 runs of frozen's grid of learning rates 1 is not in this store"
    assert told in bp_depth(copied)[1].sentence


def test_a_rate_that_diverged_has_ended_and_lost(copied):
    set_state(the_runs(copied, "frozen(stem=bp)", 1e-5), "diverged")
    verdict, depth = bp_depth(copied)
    assert depth.value is not None and any("0.01 was chosen" in note for note in verdict.notes)


@pytest.mark.parametrize("seeds", [(1, 2), (2,)])
def test_the_winning_rate_loses_once_a_seed_of_it_diverges(copied, seeds):
    """Whatever its other seeds reach: half of a good accuracy is above all of a bad one."""
    set_state(the_runs(copied, "frozen(stem=bp)", 1e-2, seeds), "diverged")
    chosen = {b.spec["lr"] for b in select_rates(copied.bundles()) if b.card["rule"]["label"] == "frozen"}
    assert chosen == {1e-5}


def test_runs_without_a_grid_are_still_compared_at_the_epoch_that_both_have_reached(digits, tmp_path):
    setting = {"net": "resmlp(width=16,depth=2)", "data": "digits", "dataset": digits, "epochs": 1}
    for spec in plan_runs(rules=["bp", "frozen"], seeds=[1], batch=64, **setting):
        run_one(spec, digits, Store(tmp_path))
    set_state(Store(tmp_path).bundles(), "running")
    verdict, depth = bp_depth(Store(tmp_path))
    assert depth.value is not None and any("still training" in note for note in verdict.notes)


def test_specs_without_a_grid_keep_the_ids_they_had():
    fields = {"net": Call("resmlp"), "rule": Call("bp"), "data": Call("digits"), "data_identity": "x"}
    spec = RunSpec(**fields, seed=1, epochs=2)
    assert "lr_grid" not in spec.to_dict() and "holdout" not in spec.to_dict()
    grid = RunSpec(**fields, seed=1, epochs=2, lr_grid="0.001,0.01", holdout=0.1)
    assert grid.id != spec.id and RunSpec.from_dict(grid.to_dict()) == grid
