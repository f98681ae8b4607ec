"""Replay, sweep and ablation: the same stored numbers, asked other questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.judge.test_protocol import evidence, frozen
from walkback.core.errors import BadInput
from walkback.core.quantities import Measurements
from walkback.judge import ablate as ablation
from walkback.judge import multiverse as universe
from walkback.judge.assemble import Case, check_frozen
from walkback.judge.credit import judge_credit
from walkback.judge.replay import _stays_from, first_firing, replay
from walkback.judge.select import select_rates
from walkback.judge.sweep import firing_rates
from walkback.judge.thresholds import Thresholds
from walkback.report import words


def history(growths, gains, *, seed=1, label="dfa", validity=1e-9):
    """A run whose growth and gain over frozen are given epoch by epoch, from epoch 1 on."""
    rows = []
    for epoch, (growth, gain) in enumerate(zip(growths, gains, strict=True), start=1):
        run, base = evidence(growth=growth, validity=validity, seed=seed, label=label), frozen()
        table = Measurements([r._replace(epoch=epoch) for r in run.measurements])
        rows.append(
            (replace(run, measurements=table, epoch=epoch, accuracy=0.7 + gain, correct=None), base)
        )
    return [(run, base) for run, base in rows]


def first(rows, detector):
    return next((row["first"], row["stays_from"]) for row in rows if row["detector"] == detector)


def test_replay_names_the_first_epoch_and_the_one_from_which_it_stays():
    run = history([2, 80, 30, 90, 95], [0.1, 0.1, 0.0, 0.0, 0.0])
    moments = replay([run])
    rows = first_firing(moments)
    assert first(rows, "D1") == (2, 4)
    assert first(rows, "D2") == (1, 1)
    assert first(rows, "D3") == (3, 3)
    assert [m.verdict for m in moments] == [
        "PASS",
        "FAIL(D1+D2)",
        "FAIL(D3)",
        "FAIL(D1+D2+D3)",
        "FAIL(D1+D2+D3)",
    ]


def test_replay_never_takes_a_missing_baseline_for_a_quiet_one():
    run = [(r, None) for r, _ in history([2, 2], [0.1, 0.1])]
    rows = first_firing(replay([run]))
    d3 = next(row for row in rows if row["detector"] == "D3")
    assert (d3["first"], d3["known_epochs"], d3["epochs"]) == (None, 0, 2)


def test_replay_keeps_rules_and_seeds_apart_and_leaves_baselines_out():
    runs = [history([80], [0.1], seed=s, label=name) for name in ("fa", "dfa") for s in (2, 1)]
    base = [(replace(r, role="baseline", label="frozen"), None) for r, _ in history([1], [0.0])]
    rows = first_firing(replay([*runs, base]))
    assert [(row["rule"], row["seed"]) for row in rows[::3]] == [
        ("dfa", 1),
        ("dfa", 2),
        ("fa", 1),
        ("fa", 2),
    ]


def test_firing_rates_count_only_what_is_known():
    runs = [history([2, 80, np.nan], [0.1] * 3), history([80, 80, 80], [0.1] * 3, label="fa")]
    rates = firing_rates(runs, "D1", "artifact", Thresholds())
    assert rates == {"dfa": (1, 2), "fa": (3, 3)}
    assert firing_rates(runs, "D1", "artifact", Thresholds(growth=100)) == {"dfa": (0, 2), "fa": (0, 3)}


def row_of(run, baseline):
    return ablation.decisions(Case([], [run], [baseline]).judge())


def test_ablation_shows_what_each_body_of_evidence_would_have_said():
    healthy = row_of(evidence(), frozen())
    assert {healthy[name] for name in ablation.EVIDENCE} == {"trustworthy"}
    exploded = row_of(evidence(growth=900.0, validity=1e-9), frozen())
    assert [exploded[name] for name in ablation.EVIDENCE] == [
        "trustworthy", "trustworthy", "walked back", "walked back", "trustworthy", "walked back",
    ]  # fmt: skip
    useless = row_of(evidence(accuracy=0.3), frozen())
    assert (useless["accuracy + Γ"], useless["+ D3"], useless["full"]) == (
        "trustworthy",
        "walked back",
        "walked back",
    )
    at_chance = row_of(evidence(accuracy=0.05), frozen())
    assert at_chance["accuracy"] == "walked back"
    unknown = row_of(evidence(), None)
    assert (unknown["+ D3"], unknown["full"], unknown["+ D1"]) == ("not known", "not known", "trustworthy")


def test_diagnostic_c_compares_with_chance_and_decides_nothing():
    run = evidence()
    assert "was not compared with chance" in judge_credit([run])["sentence"]
    run.measurements.add(5, "alignment.deep_null_p@1", 0.005)
    run.measurements.add(5, "alignment.deep_null_z@1", 12.0)
    found = judge_credit([run])
    assert found["null_p"] == [0.005] and "outside its null (p ≤ .05) on 1 of 1 seeds" in found["sentence"]
    verdict = Case([], [run], [frozen()]).judge().verdict
    assert verdict["evidence"]["C_credit_direction"]["null_z"] == [12.0]
    assert {reason.check for reason in verdict.reasons} == {"D1", "D2", "D3"}


def over(runs, baselines):
    return universe._over_choices("dfa", Case([], runs, baselines))


def test_a_clear_verdict_holds_in_every_specification_and_a_close_one_names_what_turns_it():
    clear = over([evidence()], [frozen()])
    assert clear["share"] == 1.0 and set(clear["flips"].values()) == {0.0}
    size = 1
    for axis in universe.CHOICES.values():
        size *= len(axis)
    assert clear["specifications"] == size == sum(clear["outcomes"].values())
    close = over([evidence(accuracy=0.725)], [frozen()])
    assert close["default"] == "PASS" and 0 < close["share"] < 1
    assert max(close["flips"], key=close["flips"].get) == "depth_gain"
    alone = over([evidence(growth=900.0)], [frozen()])
    assert alone["flips"]["logic"] == 1.0 and alone["flips"]["growth"] == 0.0


def test_an_index_of_readings_follows_the_table_as_it_grows():
    table = Measurements()
    table.add(0, "loss.test@1", 1.0)
    assert table.number("loss.test@1", 0) == 1.0 and table.number("loss.test@1", 1) is None
    table.add(1, "loss.test@1", 2.0)
    assert table.number("loss.test@1", 1) == 2.0
    table.readings = [r._replace(value=5.0) for r in table.readings]
    assert table.number("loss.test@1", 1) == pytest.approx(5.0)


def test_a_detector_that_fires_wherever_it_is_known_stays_from_there():
    said = [(1, None), (2, True), (3, None), (4, True), (5, None)]
    assert _stays_from(said) == 2
    assert _stays_from([*said, (6, False)]) is None


def test_what_was_never_known_is_not_said_never_to_have_come():
    assert words.firing(None, None, known=0) == "not known"
    assert words.firing(None, None, known=3) == "never"
    assert [words.firing(3, stays, known=9) for stays in (3, 8, None)] == [
        "3",
        "3 (8)",
        "3 (does not stay)",
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_rates_that_validate_alike_the_smaller_speaks_whatever_the_order(order):
    def stored(rate):
        table = Measurements()
        table.add(1, "accuracy.validation@1", 0.5)
        spec = {"rule": "bp", "lr": rate, "lr_grid": "0.001,0.01", "seed": 1}
        return SimpleNamespace(
            path=Path(str(rate)), spec=spec, status={}, finished=True, measurements=lambda: table
        )

    bundles = [stored(0.01), stored(0.001)]
    (chosen,) = select_rates([bundles[place] for place in order])
    assert chosen.spec["lr"] == 0.001


def test_a_named_baseline_of_another_kind_is_not_taken_for_frozen_blocks():
    def named(label, state="finished"):
        return SimpleNamespace(path=Path("b"), card={"rule": {"label": label}}, status={"state": state})

    for label in ("shallow", "frozen(stem=dfa)"):
        with pytest.raises(BadInput, match="not frozen"):
            check_frozen(named(label))
    check_frozen(named("frozen"))
    check_frozen(named("my frozen net", "captured"))
