"""What the paper's public code gives stands beside ours, and is compared with the paper in the same way."""

from __future__ import annotations

import pytest

from tests.studies.conftest import DATA, rows_of, take
from walkback.report.answer import ACCURACY, CLAMPED, STATE
from walkback.report.published import NOTES, NUMBERS, published
from walkback.studies import agreement, findings, offset, penalty, public_code, stem
from walkback.studies.answers import Answers
from walkback.studies.paper import published_table
from walkback.studies.public_code import CODE, OURS, READINGS

OWN = {  # row: the arm and the rule that its public code's reading is made of
    "bp": (public_code.LONG, "bp"),
    "frozen": (public_code.LONG, public_code.STEMS[CODE]),
    offset.FIRST: (public_code.DFA, public_code.CREDITS[CODE]),
    offset.LAST: (public_code.DFA, public_code.CREDITS[CODE]),
    offset.WEAK: (public_code.PENALISED, f"{public_code.CREDITS[CODE]}+penalty(1e-4)"),
    offset.STRONG: (public_code.PENALISED, f"{public_code.CREDITS[CODE]}+penalty(1e-2)"),
}


def test_every_row_has_both_readings_each_of_its_own_net():
    assert set(OWN) == set(public_code.ROWS)


@pytest.mark.parametrize("row", list(OWN))
def test_a_reading_is_of_its_own_net_and_removing_its_runs_leaves_ours(answers, copied, row):
    ours, code = (public_code.read_as(answers, row, reading) for reading in (OURS, CODE))
    assert ours.spec["net"].startswith("resmlp") and code.spec["net"].startswith("near-identity")
    assert ours.spec["epochs"] == code.spec["epochs"] and len(code.runs) == 3
    take(copied, *OWN[row])
    fewer = Answers(copied, DATA)
    assert public_code.read_as(fewer, row, CODE).gap == "not run"
    assert not public_code.read_as(fewer, row, OURS).gap


def test_removed_runs_are_not_run_in_every_table_and_never_a_number(answers, copied):
    for arm in (public_code.LONG, public_code.DFA, public_code.PENALISED, public_code.ONE_BY_ONE):
        for rule in dict.fromkeys(arm.rules):
            take(copied, arm, rule)
    for before, after in zip(
        public_code.tables(answers), public_code.tables(Answers(copied, DATA)), strict=True
    ):
        assert len(before.rows) == len(after.rows)
        changed = [
            row for row in after.rows if row.get("reading", CODE) == CODE and row.get("change") != "nothing"
        ]
        assert changed and all(row["seeds"] == 0 for row in changed), after.name
        gaps = [row[key] for row in changed for key in row if key.endswith("_gap")]
        assert set(gaps) <= {"not run", words_missing(after)}, after.name


def words_missing(table):
    from walkback.report import words

    return words.MISSING  # of what a row never has, as a gain after the first epoch


def test_a_number_of_the_paper_is_told_with_what_the_public_code_gives_of_it(answers, copied):
    point = public_code.point_of(answers, "bp", ACCURACY)
    assert point is not None and point.paper == published("bp", "accuracy")
    said = public_code.statement(answers, "bp", ACCURACY)
    assert said == f"{public_code.AS_CODED}: {point.measured} (3 seeds), {point.standing}."
    (told,) = (p.why for p in agreement.points_of(answers) if p.what == "bp, accuracy")
    assert said in told
    take(copied, *OWN["bp"])
    fewer = Answers(copied, DATA)
    assert "not run (walkback audit public-code decides it)" in public_code.statement(fewer, "bp", ACCURACY)
    assert public_code.statement(answers, "ep", ACCURACY) == "", "its EP is not known"


def test_both_readings_are_held_against_the_same_numbers(answers):
    ours, code, by_batch = (public_code.points(answers, reading) for reading in READINGS)
    assert [p.paper for p in ours] == [p.paper for p in code] == [p.paper for p in by_batch]
    assert {point.paper.row for point in code} == {"dfa", *OWN} - {offset.WEAK}, "the paper prints no more"
    assert not any(point.paper in NOTES for point in code)
    said = findings.FINDINGS["the public code"](answers)
    assert f"Of the {len(ours)} numbers" in said and all(f"{reading}: " in said for reading in READINGS)


def test_numbers_of_the_notes_are_marked_and_stand_beside_no_number_of_the_paper():
    assert all("(notes" in number.text for number in NOTES)
    both = [(number.row, number.quantity) for number in (*NUMBERS, *NOTES)]
    assert len(set(both)) == len(both)
    assert len(published_table().rows) == len(both)
    weak = published(offset.WEAK, STATE.paper)
    assert weak is not None and weak.rough and published(offset.WEAK, CLAMPED.paper) in NOTES


def test_the_second_gain_is_over_frozen_blocks_whose_stem_learned_by_the_same_credit(answers, copied):
    (row,) = rows_of(public_code.nets_table(answers), rule=offset.STRONG, reading=CODE)
    strong = public_code.read_as(answers, offset.STRONG, CODE)
    same = answers.one(public_code.BASELINES, public_code.STEMS[CODE])
    expected = penalty.GAIN.cell(penalty.gain_of(stem.worth_of(strong, same), ""))
    assert row["same_stem"] == expected and "[" in expected
    take(copied, public_code.BASELINES, public_code.STEMS[CODE])
    (row,) = rows_of(public_code.nets_table(Answers(copied, DATA)), rule=offset.STRONG, reading=CODE)
    assert row["same_stem"] == "not run"
