"""What the results pages conclude from runs: changes, stems, the weak penalty, other inputs, in short."""

from __future__ import annotations

import shutil

import pytest

from tests.studies.conftest import DATA, rows_of, take
from tests.studies.made_up import write_run
from walkback.report import answer as report_answer
from walkback.report import words
from walkback.rules import resolve_rule
from walkback.store import Store
from walkback.studies import (
    agreement,
    as_coded,
    border,
    encoding,
    findings,
    five_rule,
    offset,
    paper,
    penalty,
    penalty_reduction,
    pixels,
    public_code,
    schedule,
    stem,
    summary,
    weak_penalty,
)
from walkback.studies.answers import Answers
from walkback.studies.printed import come_out


def test_the_weak_penalty_stands_beside_every_control_and_says_which_was_not_run(copied, answers):
    rule, off_by_one = penalty.RULES["dfa"][1], offset.ARMS[offset.LABEL][1]
    controls_of = {
        "a border of the mean colour": (border.SHORT, rule),
        "the penalty averaged over features": reduced(penalty_reduction.AVERAGED, "1e-4"),
        weak_penalty.AVERAGES[penalty_reduction.ERROR_SUMMED]: reduced(
            penalty_reduction.ERROR_SUMMED, "1e-4"
        ),
        weak_penalty.AVERAGES[penalty_reduction.OFF_BY_ONE]: reduced(penalty_reduction.OFF_BY_ONE, "1e-4"),
        "lossless images": (encoding.SHORT, rule),
        "pixels that are not normalised": (pixels.ARM, rule),
        "a constant rate": (schedule.SHORT, rule),
        "an index that is off by one": (off_by_one, offset.rule_of(offset.LABEL, "1e-4")),
        **{
            f"block, index and length of the public code, {by}": (
                public_code.PENALISED[f"public code, {by}"],
                f"dfa+offset(reuse)+{length}+penalty(1e-4)",
            )
            for by, length in (("by sample", "normalise"), ("by batch", "normalise(batch)"))
        },
    }
    told = [row["reading"] for row in weak_penalty.weak_penalty_table(answers).rows]
    assert told[:2] == [weak_penalty.NONE, weak_penalty.HEADLINE]
    assert sorted(told[2:]) == sorted(controls_of)
    for reading, (arm, own) in controls_of.items():
        (row,) = rows_of(weak_penalty.weak_penalty_table(answers), reading=reading)
        assert row["exact"] is not None and row["seeds"] == row["planned"]
        take(copied, arm, own)
        (row,) = rows_of(weak_penalty.weak_penalty_table(Answers(copied, DATA)), reading=reading)
        assert (row["exact"], row["exact_gap"], row["verdict"]) == (None, "not run", "not run")
    assert "other reading" not in weak_penalty.statement(Answers(copied, DATA))


def test_the_reading_of_the_weak_penalty_that_is_nearest_to_no_direction_is_named(tmp_path):
    store = Store(tmp_path)
    for arm, cosine in ((penalty.ARM, 0.17), (border.SHORT, -0.02), (schedule.SHORT, 0.15)):
        for spec in arm.plan(DATA[arm.data]):
            if str(spec.rule) == str(resolve_rule(weak_penalty.RULE)):
                write_run(store, spec, cosine=cosine)
    said = weak_penalty.statement(Answers(store, DATA))
    assert "Of 2 other readings the nearest to no direction is “a border of the mean colour”" in said


def test_the_results_in_short_are_told_from_the_runs_and_name_what_was_not_run(copied, answers):
    told = summary.sentences(answers)
    assert "not run" not in "".join(told.values())
    (row,) = rows_of(five_rule.tables(answers)[0], rule="dfa")
    assert f"It reaches {words.share(row['accuracy'])} ±" in told["DFA"]
    assert f"{row['artifact']}, {row['protocol']}" in told["DFA"]
    worth = stem.stem_table(answers)[1].rows[-1]
    assert told["DFA"].endswith(f"is {penalty.GAIN.cell(worth)} pp (D3 {worth['fires']}).")
    (counts,) = rows_of(five_rule.tables(answers)[1], rules="all five")
    assert f": {counts['quo']} by accuracy and Γ, {counts['protocol']} by" in told["who is walked back"]
    weak, strong = (answers.one(border.SHORT, rule).verdict for rule in penalty.RULES["dfa"][1:])
    assert f"mean colour {strong} and {weak}, in" in told["DFA with a penalty on its branches"]
    by_sample, ours = (
        come_out(as_coded.points(answers, reading)) for reading in (public_code.BY_SAMPLE, public_code.OURS)
    )
    coded = told["as its public code has it"]
    assert coded.endswith(f"come out: {by_sample}; as we read the paper, {ours}.")
    take(copied, five_rule.ARM, "dfa")
    take(copied, border.LONG, "bp")
    take(copied, public_code.LONG[public_code.BY_SAMPLE], "bp")
    fewer = summary.sentences(Answers(copied, DATA))
    assert "It reaches not run" in fewer["DFA"] and "verdict not run" in fewer["DFA"]
    assert fewer["DFA"].endswith("is not run."), "what its blocks are worth is not known either"
    assert "around crops not run;" in fewer["as we read the paper"]
    assert fewer["other rules"] == told["other rules"]
    assert "backprop reaches not run" in fewer["as its public code has it"]


def test_what_the_weak_penalty_does_is_told_or_said_not_to_have_been_run(copied, answers):
    weak = penalty.RULES["dfa"][1]
    said = weak_penalty.statement(answers)
    assert said.startswith("Under dfa+penalty(0.0001) ‖h_L‖ is") and "without the penalty" in said
    take(copied, penalty.ARM, "dfa")
    assert "without the penalty" not in weak_penalty.statement(Answers(copied, DATA))
    take(copied, penalty.ARM, weak)
    assert "not run (walkback audit penalty)" in weak_penalty.statement(Answers(copied, DATA))


def test_what_blocks_are_worth_is_told_under_each_stem_with_its_interval(tmp_path):
    """The headline's frozen blocks stand under a stem that backprop trained; another gives another."""
    store = Store(tmp_path)
    reached = {"frozen": 0.36, stem.BP_STEM: 0.46, stem.DFA_STEM: 0.50, "dfa": 0.33}
    for rule, accuracy in reached.items():
        own = str(resolve_rule(rule))
        for spec in (s for s in stem.ARM.plan(DATA["cifar10"]) if str(s.rule) == own):
            write_run(store, spec, accuracy=accuracy)
    under_bp, under_dfa, long = stem.stem_table(Answers(store, DATA))[1].rows
    assert (under_bp["stem"], under_bp["fires"]) == ("bp", "does not fire")
    assert (under_dfa["stem"], under_dfa["fires"]) == ("dfa", "fires")
    for row, gain in ((under_bp, 0.10), (under_dfa, -0.17)):
        assert row["gain"] == pytest.approx(gain, abs=0.05) and row["gain_low"] < row["gain"]
        assert row["gain_high"] > row["gain"]
    assert (long["gain"], long["gain_gap"], long["fires"]) == (None, "not run", "not run")
    said = findings.stem_effect(Answers(store, DATA))
    assert "a stem trained by bp, 30 epochs: +" in said and "pp (D3 does not fire)" in said
    assert "a stem trained by dfa, 100 epochs: not run" in said
    take(store, stem.ARM, stem.DFA_STEM, seeds=(42,))
    assert stem.stem_table(Answers(store, DATA))[1].rows[1]["gain_gap"] == "not on the same seeds"


def test_a_gain_stands_with_its_interval_and_detectors_with_their_seeds(answers):
    table_1, _, scale, _ = five_rule.tables(answers)
    (row,) = rows_of(table_1, rule="dfa")
    judged = answers.one(five_rule.ARM, "dfa").artifact.verdict.reasons
    assert (row["gain"], (row["gain_low"], row["gain_high"])) == (judged[2].value, judged[2].interval)
    shown = dict(zip(table_1.titles, table_1.cells()[table_1.rows.index(row)], strict=True))
    low, high = map(words.points, judged[2].interval)
    assert shown["gain over frozen (pp)"] == f"{words.points(judged[2].value)} [{low}, {high}]"
    (row,) = rows_of(scale, rule="dfa")
    assert (row["D1"], row["D2"]) == tuple(reason.seeds.replace("/", " of ") for reason in judged[:2])


def test_a_rule_that_the_status_quo_trusts_by_noise_is_named_seed_by_seed(tmp_path):
    store, gammas = Store(tmp_path), {42: -0.01, 123: 0.001, 456: 0.002}
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name in ("dfa", "frozen"):
            write_run(store, spec, gamma=gammas[spec.seed])
    said = findings.status_quo(Answers(store, DATA))
    assert "dfa, seed by seed −0.01000, +0.00100, +0.00200, mean −0.002" in said
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "dfa":
            shutil.rmtree(store.path / spec.name)
            write_run(store, spec, gamma=0.1)
    assert "No rule is trusted" in findings.status_quo(Answers(store, DATA))


def test_the_penalised_nets_are_judged_on_other_inputs_too(copied, answers):
    told = rows_of(paper.table_4(answers), name="5 penalty")[0]["measured"]
    verdicts = [a.verdict for a in answers.of(pixels.ARM, penalty.RULES["dfa"][1:])]
    assert f"with pixels in 0…1 {' and '.join(verdicts)}." in told
    take(copied, pixels.ARM, penalty.RULES["dfa"][1])
    told = rows_of(paper.table_4(Answers(copied, DATA)), name="5 penalty")[0]["measured"]
    assert "with pixels in 0…1 not run and" in told


def test_that_pixels_change_a_verdict_is_told(tmp_path):
    store = Store(tmp_path)
    for arm in (penalty.ARM, pixels.ARM):
        for spec in arm.plan(DATA[arm.data]):
            if spec.seed == 42 and spec.rule.name in ("dfa", "frozen"):
                write_run(store, spec, size=1.0 if arm is pixels.ARM else 1e7)
    said = findings.pixels_effect(Answers(store, DATA))
    assert "dfa after 30 epochs (1 seed): FAIL(D3)" in said and "instead of FAIL(D1+D2+D3)" in said
    assert findings.pixels_effect(Answers(Store(tmp_path / "none"), DATA)).endswith("not run.")


def test_a_border_that_gives_one_number_says_what_it_makes_of_the_others(copied, answers):
    why = {p.what: p.why for p in agreement.points_of(answers)}["bp, accuracy"]
    reached = {
        a.name: report_answer.over_seeds("a", a, report_answer.ACCURACY.read)["a"]
        for a in answers.of(border.LONG)
    }
    assert f"With the same border: dfa {words.share(reached['dfa'])}" in why and "; frozen " in why
    take(copied, border.LONG, "dfa")
    why = {p.what: p.why for p in agreement.points_of(Answers(copied, DATA))}["bp, accuracy"]
    assert "With the same border: frozen" in why


def test_the_first_epochs_credit_is_told_layer_by_layer(answers):
    told = rows_of(paper.table_4(answers), name="4 early-epoch")[0]["measured"]
    assert "Of it, exact: layer 1 +" in told and "; layers 2 to 4 +" in told


def test_the_epoch_from_which_a_detector_stays_on_every_seed_is_told():
    rows = [{"D3_gap": "", "D3_first": 1, "D3_stays": stays} for stays in (1, 39)]
    assert paper._span(rows, "D3") == "1 (on every seed from 39 on)"
    assert paper._span(rows[:1], "D3") == "1"
    assert paper._span([rows[0], {**rows[1], "D3_stays": None}], "D3") == "1 (does not stay)"


def reduced(reading, weight):
    return penalty_reduction.ARMS[reading], penalty_reduction.rule_of(weight, reading)
