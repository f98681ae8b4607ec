"""What the paper's public code gives stands beside ours, and is compared with the paper in the same way."""

from __future__ import annotations

import shutil

import pytest

from tests.studies.conftest import DATA, rows_of, take
from tests.studies.made_up import write_run
from walkback.judge.replay import first_firing, replay
from walkback.report import words
from walkback.report.answer import ACCURACY, CLAMPED, EXACT, RHO, STATE
from walkback.report.published import NOTES, NUMBERS, published
from walkback.rules import resolve_rule
from walkback.store import Store
from walkback.studies import agreement, as_coded, findings, five_rule, offset, penalty, public_code, stem
from walkback.studies.answers import Answers
from walkback.studies.effect import mean
from walkback.studies.paper import published_table
from walkback.studies.perturbation_step import FIXED
from walkback.studies.printed import come_out
from walkback.studies.public_code import BY_BATCH, BY_SAMPLE, OURS, READINGS

# row: the rule as one would type it, by sample and by batch; epochs trained; the epoch that is read
SAMPLE_DFA, BATCH_DFA = "dfa+offset(reuse)+normalise", "dfa+offset(reuse)+normalise(batch)"
ASKED = {
    "bp": ("bp", "bp", 100, 100),
    "frozen": ("frozen(stem=dfa+normalise)", "frozen(stem=dfa+normalise(batch))", 100, 100),
    "dfa": (SAMPLE_DFA, BATCH_DFA, 100, 100),
    "dfa, epoch 1": (SAMPLE_DFA, BATCH_DFA, 100, 1),
    "dfa, converged": (SAMPLE_DFA, BATCH_DFA, 100, 100),
    "dfa+penalty(0.0001)": (f"{SAMPLE_DFA}+penalty(1e-4)", f"{BATCH_DFA}+penalty(1e-4)", 30, 30),
    "dfa+penalty(0.01)": (f"{SAMPLE_DFA}+penalty(1e-2)", f"{BATCH_DFA}+penalty(1e-2)", 30, 30),
}
ARMS = {
    "bp": public_code.LONG[BY_SAMPLE],
    "frozen": public_code.LONG[BY_SAMPLE],
    offset.FIRST: public_code.DFA[BY_SAMPLE],
    offset.LAST: public_code.DFA[BY_SAMPLE],
    offset.WEAK: public_code.PENALISED[BY_SAMPLE],
    offset.STRONG: public_code.PENALISED[BY_SAMPLE],
}


def test_every_row_has_its_readings_each_of_its_own_net():
    assert {*ASKED} == {"dfa", *public_code.ROWS} and {*ARMS} == {*public_code.ROWS}


@pytest.mark.parametrize("reading", [BY_SAMPLE, BY_BATCH])
@pytest.mark.parametrize("row", list(ASKED))
def test_a_reading_is_of_the_rule_the_net_the_length_and_the_epoch_that_it_says(answers, row, reading):
    by_sample, by_batch, epochs, read_at = ASKED[row]
    rule = by_sample if reading == BY_SAMPLE else by_batch
    answer = public_code.read_as(answers, row, reading)
    assert answer.spec["rule"] == str(resolve_rule(rule))
    assert answer.spec["net"].startswith("near-identity(") and answer.spec["epochs"] == epochs
    seeds = [42] if reading == BY_BATCH and row != "bp" else [42, 123, 456]
    assert sorted(run.seed for run in answer.runs) == seeds and {r.epoch for r in answer.runs} == {read_at}


@pytest.mark.parametrize("row", list(ARMS))
def test_removing_the_runs_of_a_reading_leaves_ours(answers, copied, row):
    ours = public_code.read_as(answers, row, OURS)
    assert ours.spec["net"].startswith("resmlp(") and ours.spec["epochs"] == ASKED[row][2]
    take(copied, ARMS[row], ASKED[row][0])
    fewer = Answers(copied, DATA)
    assert public_code.read_as(fewer, row, BY_SAMPLE).gap == "not run"
    assert not public_code.read_as(fewer, row, OURS).gap


def test_one_change_after_the_other_is_what_it_is_called():
    steps = {change: rule for own in public_code.STEPS.values() for change, rule in own.items()}
    assert steps == {
        "the block": "dfa",
        "the block and the index": "dfa+offset(reuse)",
        "the block and the length, by sample": "dfa+normalise",
        "all three, by sample": SAMPLE_DFA,
        "all three, by batch": BATCH_DFA,
    }


def test_removed_runs_are_not_run_in_every_table_and_never_a_number(answers, copied):
    kinds = (public_code.LONG, public_code.DFA, public_code.PENALISED, public_code.ONE_BY_ONE)
    own = [arm for arms in kinds for arm in arms.values()]
    for arm in own:
        for rule in arm.rules:
            take(copied, arm, rule)
    for rule in public_code.USED.rules[:-1]:  # its frozen blocks are another arm's
        take(copied, public_code.USED, rule)
    fewer = public_code.tables(Answers(copied, DATA))
    for before, after in zip(public_code.tables(answers), fewer, strict=True):
        assert len(before.rows) == len(after.rows)
        changed = [
            row for row in after.rows if row.get("reading", "") != OURS and row.get("change") != "nothing"
        ]
        assert changed and all(row.get("seeds", 0) == 0 for row in changed), after.name
        gaps = {row[key] for row in changed for key in row if key.endswith("_gap")}
        assert "not run" in gaps and gaps <= {"not run", words.MISSING}, after.name  # none after one epoch


def test_a_number_of_the_paper_is_told_with_what_the_public_code_gives_of_it(answers, copied):
    number = published("bp", "accuracy")
    assert number is not None
    coded = public_code.read_as(answers, "bp", BY_SAMPLE)
    said = as_coded.statement(answers, "bp", ACCURACY)
    assert said.startswith(f"As in the paper's public code: {words.share(mean(coded, ACCURACY))} ± ")
    assert said.count("(3 seeds)") == 1, "backprop has no credit to give a length"
    both = as_coded.statement(answers, "frozen", ACCURACY)
    for reading, shown in ((BY_SAMPLE, " ± "), (BY_BATCH, " (1 seed)")):
        own = mean(public_code.read_as(answers, "frozen", reading), ACCURACY)
        assert f"{reading}: {words.share(own)}{shown}" in both
    (told,) = (p.why for p in agreement.points_of(answers) if p.what == "bp, accuracy")
    assert said in told
    take(copied, public_code.LONG[BY_SAMPLE], "bp")
    fewer = Answers(copied, DATA)
    assert "not run (walkback audit public-code decides it)" in as_coded.statement(fewer, "bp", ACCURACY)
    assert as_coded.statement(answers, "ep", ACCURACY) == "", "its EP is not known"


def test_a_number_of_one_seed_is_told_of_that_seed(answers):
    said = as_coded.statement(answers, "dfa", five_rule.LAYER_0)
    own = public_code.read_as(answers, "dfa", BY_SAMPLE).of_seeds({42})
    assert said.count("(1 seed)") == 2 and words.cosine(mean(own, five_rule.LAYER_0)) in said


def test_rho_is_read_by_the_step_of_whoever_reads_it(answers):
    by_step = {
        reading: {p.measure for p in as_coded.points(answers, reading) if p.paper.quantity == "rho"}
        for reading in READINGS
    }
    assert by_step == {OURS: {RHO}, BY_SAMPLE: {FIXED}, BY_BATCH: {FIXED}}
    strong = public_code.read_as(answers, offset.STRONG, BY_SAMPLE)
    said = as_coded.statement(answers, offset.STRONG, RHO)
    assert words.cosine(mean(strong, FIXED)) in said != words.cosine(mean(strong, RHO))
    assert mean(strong, FIXED) != mean(strong, RHO)


def test_all_readings_are_held_against_the_same_numbers(answers):
    ours, *others = (as_coded.points(answers, reading) for reading in READINGS)
    assert all([p.paper for p in ours] == [p.paper for p in other] for other in others)
    assert {point.paper.row for point in ours} == {*ASKED} - {offset.WEAK}, "the paper prints no more"
    assert not any(point.paper in NOTES for other in others for point in other)
    said = findings.FINDINGS["the public code"](answers)
    assert f"Of the {len(ours)} numbers (without fresh B) that" in said and all(
        f"{reading}: " in said for reading in READINGS
    )
    left = said[said.index("By sample these do not: ") : said.index("The code was read after")]
    for point in others[0]:
        named = f"{point.what}, {point.measure.header} ({point.standing})" in left
        assert named == (point.judged and not (point.agrees or point.near)), point


def test_a_step_that_does_not_read_the_gradient_reads_nothing(tmp_path):
    """Of an exploded net the fixed step moves no loss: its ρ of 0 differs from no number."""
    store = Store(tmp_path)
    for spec in public_code.DFA[BY_SAMPLE].plan(DATA["cifar10"]):
        write_run(store, spec, fixed=0.0, ceiling=0.0)
    points = as_coded.points(Answers(store, DATA), BY_SAMPLE)
    (late,) = [p for p in points if (p.paper.row, p.paper.quantity) == (offset.LAST, "rho")]
    assert late.standing == "no reading: of the exact gradient the same step reads 0.000"
    assert not (late.judged or late.agrees or late.near)
    for spec in public_code.DFA[BY_SAMPLE].plan(DATA["cifar10"]):
        shutil.rmtree(store.path / spec.name)
        write_run(store, spec, fixed=0.0, ceiling=0.2)
    points = as_coded.points(Answers(store, DATA), BY_SAMPLE)
    (late,) = [p for p in points if (p.paper.row, p.paper.quantity) == (offset.LAST, "rho")]
    assert late.standing == "differs by −0.002"


def test_what_did_not_run_diverged_or_cannot_be_judged_is_counted_apart(tmp_path):
    store = Store(tmp_path)
    for spec in public_code.LONG[BY_SAMPLE].plan(DATA["cifar10"]):
        if spec.seed == 42:
            write_run(
                store, spec, state="diverged" if spec.rule.name == "bp" else "finished", accuracy=0.35
            )
    said = come_out(as_coded.points(Answers(store, DATA), BY_SAMPLE))
    assert said == "1 of 20; 3 diverged, 16 not run (1 seed)"
    assert as_coded.seeds_told(Answers(store, DATA)) == ", 0 to 1 seed"


def test_the_credit_that_trained_stands_beside_the_one_that_is_shown(answers, copied):
    table = public_code.used_table(answers)
    rules = [f"dfa{weight}" for weight in ("", ", λ = 1e-4", ", λ = 1e-2")]
    assert [(row["rule"], row["credit"]) for row in table.rows] == [
        (rule, credit) for rule in rules for credit in ("at its number", "that trained")
    ]
    assert {row["seeds"] for row in table.rows} == {1}, "over the one seed that has both"
    asked = {
        "dfa": "dfa+offset(use)+normalise",
        rules[1]: "dfa+offset(use)+normalise+penalty(1e-4)",
        rules[2]: "dfa+offset(use)+normalise+penalty(1e-2)",
    }
    for rule, own in asked.items():
        (answer,) = answers.of(public_code.USED, [own])
        (row,) = rows_of(table, rule=rule, credit="that trained")
        assert row["exact"] == mean(answer, EXACT)
        take(copied, public_code.USED, own, seeds=(42,))
        (row,) = rows_of(public_code.used_table(Answers(copied, DATA)), rule=rule, credit="that trained")
        assert (row["exact"], row["exact_gap"]) == (None, "not run")


def test_what_the_credit_that_trained_has_at_the_first_layer_is_told_beside_what_is_shown(tmp_path):
    store = Store(tmp_path)
    shown, used = f"{SAMPLE_DFA}+penalty(1e-4)", "dfa+offset(use)+normalise+penalty(1e-4)"
    for arm, rule, cosine in (
        (public_code.PENALISED[BY_SAMPLE], shown, -0.07),
        (public_code.USED, used, 0.33),
    ):
        for spec in arm.plan(DATA["cifar10"]):
            if str(spec.rule) == str(resolve_rule(rule)):
                write_run(store, spec, cosine=cosine)
    said = as_coded.hidden_by_the_index(Answers(store, DATA))
    assert "layer 1 is −0.070 as it is shown and +0.330 as it trained" in said
    assert "(1 seed, above fresh feedback in" in said, "over the seed that has both"
    take(store, public_code.USED, used, seeds=(42,))
    gone = as_coded.hidden_by_the_index(Answers(store, DATA))
    assert gone == "What the credit has that trained: not run (walkback audit public-code)."


def test_the_figure_has_each_penalty_of_either_reading_in_its_own_place(answers, monkeypatch):
    drawn = {}
    monkeypatch.setattr(public_code, "draw_penalty", lambda rows, weights: drawn.update(rows))
    public_code.figures(answers)[0].draw()
    rules = {name: [answer.spec["rule"] for answer in row] for name, row in drawn.items()}
    added = ("", "+penalty(1e-4)", "+penalty(1e-2)")
    assert rules == {
        "dfa": [str(resolve_rule(f"dfa{weight}")) for weight in added],
        "dfa, public code": [str(resolve_rule(f"{SAMPLE_DFA}{weight}")) for weight in added],
    }


def test_numbers_of_the_notes_are_marked_and_stand_beside_no_number_of_the_paper():
    assert all("(notes" in number.text for number in NOTES)
    both = [(number.row, number.quantity) for number in (*NUMBERS, *NOTES)]
    assert len(set(both)) == len(both)
    assert len(published_table().rows) == len(both)
    weak = published(offset.WEAK, STATE.paper)
    assert weak is not None and weak.rough and published(offset.WEAK, CLAMPED.paper) in NOTES


@pytest.mark.parametrize("reading, stem_rule", [(BY_SAMPLE, "normalise"), (BY_BATCH, "normalise(batch)")])
def test_the_second_gain_is_over_frozen_blocks_whose_stem_learned_by_the_same_credit(
    answers, copied, reading, stem_rule
):
    rule = f"frozen(stem=dfa+{stem_rule})"
    (row,) = rows_of(public_code.nets_table(answers), rule=offset.STRONG, reading=reading)
    strong = public_code.read_as(answers, offset.STRONG, reading)
    same = answers.one(public_code.BASELINES[reading], rule)
    expected = penalty.GAIN.cell(penalty.gain_of(stem.worth_of(strong, same), ""))
    assert row["same_stem"] == expected and "[" in expected
    take(copied, public_code.BASELINES[reading], rule)
    (row,) = rows_of(public_code.nets_table(Answers(copied, DATA)), rule=offset.STRONG, reading=reading)
    assert row["same_stem"] == "not run"


def test_first_firings_stand_beside_those_of_the_notes_seed_by_seed(answers, copied):
    table = public_code.firing_table(answers)
    three = (42, 123, 456)
    assert [(row["reading"], row["seed"]) for row in table.rows] == [
        *((reading, seed) for reading in (OURS, BY_SAMPLE) for seed in three),
        (BY_BATCH, 42),
    ]
    noted = {row["seed"]: (row["D1_noted"], row["D2_noted"]) for row in table.rows}
    assert noted == {42: (8, 4), 123: (11, 4), 456: (8, 3)}
    own = first_firing(replay(answers.histories(public_code.read_as(answers, "dfa", BY_SAMPLE))))
    for row in rows_of(table, reading=BY_SAMPLE):
        (scale,) = (found for found in own if (found["seed"], found["detector"]) == (row["seed"], "D1"))
        assert row["D1_first"] == scale["first"]
    take(copied, public_code.DFA[BY_SAMPLE], SAMPLE_DFA, seeds=(123,))
    fewer = rows_of(public_code.firing_table(Answers(copied, DATA)), reading=BY_SAMPLE)
    assert {row["seed"]: row["D1_gap"] for row in fewer} == {42: "", 123: "not run", 456: ""}
