"""The stem × blocks table: a gain that belongs to the stem is not the blocks' gain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.judge.test_protocol import evidence, frozen
from tests.studies.made_up import write_run
from walkback.core.spec import Call, RunSpec
from walkback.core.verdict import Outcome
from walkback.judge import judge
from walkback.judge.assemble import gather
from walkback.judge.thresholds import Thresholds
from walkback.report import words
from walkback.store import Store
from walkback.store.bundle import Member


def table(own, with_bp_stem, frozen_bp, frozen_own):
    """Accuracies of the four cells, three seeds each, paired by seed."""
    cells = {
        ("dfa", "dfa"): [evidence(accuracy=own, seed=s, items=4000) for s in range(3)],
        ("bp", "dfa"): [
            evidence(accuracy=with_bp_stem, seed=s, items=4000, label="mixed") for s in range(3)
        ],
        ("bp", "frozen"): [frozen(accuracy=frozen_bp, seed=s, items=4000) for s in range(3)],
        ("dfa", "frozen"): [frozen(accuracy=frozen_own, seed=s, items=4000) for s in range(3)],
    }
    return judge(cells["dfa", "dfa"], cells["bp", "frozen"], cells=cells, thresholds=Thresholds())


def test_contrasts_that_agree_leave_the_verdict_as_it_is():
    assert table(0.9, 0.9, 0.7, 0.7).verdict == "PASS"
    assert table(0.6, 0.6, 0.7, 0.7).verdict == "FAIL(D3)"


def test_contrasts_that_disagree_are_named_in_the_verdict():
    verdict = table(0.5, 0.5, 0.7, 0.2)
    assert verdict.verdict == "FAIL(D3, stem-dependent)"
    sentence = verdict["diagnostics"]["D3_depth_utility"]["sentence"]
    assert "depends on the stem" in sentence and "help (stem by dfa)" in sentence
    hidden = table(0.9, 0.6, 0.7, 0.7)
    assert hidden.verdict == "FAIL(D3, stem-dependent)", "a gain that only the rule's own stem brings"


def test_a_control_on_one_seed_or_one_that_diverged_does_not_decide_over_three():
    runs = [evidence(accuracy=0.9, seed=s, items=4000) for s in range(3)]
    fixed = [frozen(accuracy=0.7, seed=s, items=4000) for s in range(3)]
    bad = [evidence(accuracy=0.5, seed=s, items=4000, label="mixed") for s in range(3)]
    cells = {("dfa", "dfa"): runs, ("bp", "frozen"): fixed}
    assert judge(runs, fixed, cells={**cells, ("bp", "dfa"): bad}).outcome is Outcome.FAIL
    assert judge(runs, fixed, cells={**cells, ("bp", "dfa"): bad[:1]}).outcome is Outcome.PASS
    lost = [replace(bad[0], status={"state": "diverged", "epoch": 2, "reason": ""}), *bad[1:]]
    assert judge(runs, fixed, cells={**cells, ("bp", "dfa"): lost}).outcome is Outcome.PASS


def test_where_the_stem_decides_no_sentence_says_that_the_gain_is_too_small():
    verdict = table(0.9, 0.6, 0.7, 0.7)
    depth, mode = verdict.chain[2]["sentence"], verdict.chain[3]["sentence"]
    assert depth.startswith("That depends on the stem") and "one stem and not with another" in mode
    assert "not under every stem" in words.why(verdict)


def test_the_table_shows_the_cells_that_were_run_and_no_others():
    shown = table(0.9, 0.9, 0.7, 0.6)["evidence"]["stem_blocks"]
    assert {(c["stem"], c["blocks"]) for c in shown["cells"]} == {
        ("dfa", "dfa"), ("bp", "dfa"), ("bp", "frozen"), ("dfa", "frozen"),
    }  # fmt: skip
    assert set(shown["contrasts"]) == {"stem by bp", "stem by dfa"}
    alone = judge([evidence()], [frozen()])["evidence"]["stem_blocks"]
    assert alone == {"cells": [], "contrasts": {}}


def accuracies(cells):
    shown = judge(cells["dfa", "dfa"], cells=cells)["evidence"]["stem_blocks"]["cells"]
    return {(cell["stem"], cell["blocks"]): cell["accuracy"] for cell in shown}


def test_a_cell_without_all_seeds_at_one_epoch_is_a_gap():
    runs = [evidence(accuracy=0.9, seed=s) for s in range(3)]
    fixed = [frozen(accuracy=0.7, seed=s) for s in range(3)]
    cells = {("dfa", "dfa"): runs, ("bp", "frozen"): fixed}
    assert accuracies(cells)["bp", "frozen"] == pytest.approx(0.7)
    assert accuracies({**cells, ("bp", "frozen"): fixed[:2]})["bp", "frozen"] is None
    early = [replace(fixed[0], epoch=0), *fixed[1:]]
    assert accuracies({**cells, ("bp", "frozen"): early})["bp", "frozen"] is None
    assert accuracies({**cells, ("bp", "frozen"): early})["dfa", "dfa"] == pytest.approx(0.9)
    mixed = [replace(runs[0], epoch=4), *runs[1:]]
    assert set(accuracies({**cells, ("dfa", "dfa"): mixed}).values()) == {None}


def test_a_rate_that_the_validation_split_passed_over_is_in_no_cell(tmp_path):
    """Two rates of one grid: each arm of the table is the rate chosen for it, and no other."""
    rules = ("dfa", "mixed(blocks=dfa,stem=bp)", "frozen(stem=bp)")
    recipe = {"seed": 1, "epochs": 2, "lr_grid": "0.001,0.01", "holdout": 0.1}
    fields = {"net": Call("resmlp"), "data": Call("digits"), "data_identity": "d", **recipe}
    for rule in rules:
        for lr, validated in ((0.001, 0.5), (0.01, 0.4)):
            bundle = write_run(Store(tmp_path), RunSpec(rule=Call.parse(rule), lr=lr, **fields))
            light = bundle.light_tier()
            light.add(2, "accuracy.validation@1", validated)
            bundle.commit([Member("measurements.csv", "measurements", light.to_csv().encode())])
    (dfa,) = [c for c in gather(Store(tmp_path).bundles()) if c.runs[0].label == "dfa"]
    one_each = [("dfa", "dfa"), ("bp", "dfa"), ("bp", "frozen")]
    assert {cell: len(runs) for cell, runs in dfa.cells.items()} == dict.fromkeys(one_each, 1)
