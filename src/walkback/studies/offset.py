"""`offset`: the control for an index that the paper does not state. Whose credit does a block learn by?

A block reads one state and makes the next. Ours learns by the credit of the state that it makes. Where it
learns by that of the state it reads, and is diagnosed by the number of the layer all the same, every deep
layer is compared with feedback that it was not trained with.
"""

from __future__ import annotations

from dataclasses import replace

from walkback.report import words
from walkback.report.answer import (
    ACCURACY,
    CLAMPED,
    EXACT,
    REFERENCE,
    RHO,
    STATE,
    Answer,
    Line,
    Measure,
    at_layer,
    measured_table,
)
from walkback.report.published import published
from walkback.report.table import Column, Row, Table
from walkback.studies import controls, five_rule, penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, SHORT_EPOCHS, recipe
from walkback.studies.effect import seeds_of
from walkback.studies.five_rule import RULE
from walkback.studies.point import Point, own_seeds
from walkback.studies.printed import printed
from walkback.studies.study import SEEDS, Arm, Study

OWN, LABEL, USE = READINGS = ("own", "label", "use")
_MAKES, _READS = "a_l, of the state it makes", "a_{l−1}, of the state it reads"
TOLD = {OWN: (_MAKES, "a_l"), LABEL: (_READS, "a_l"), USE: (_READS, "a_{l−1}")}
NAMES = {
    OWN: "Learns by the state it makes, diagnosed by the same (ours)",
    LABEL: "Learns by the state it reads, diagnosed by the one it makes (an index that is off by one)",
    USE: "Learns by the state it reads, diagnosed by the same",
}
FIRST, LAST = "dfa, epoch 1", "dfa, converged"
WEAK, STRONG = (f"dfa+penalty({float(weight):g})" for weight in penalty.WEIGHTS)
ROWS = (FIRST, LAST, WEAK, STRONG)


def rule_of(reading: str, weight: str = "") -> str:
    """DFA as a reading has it; with a weight, penalised."""
    rule = "dfa" if reading == OWN else f"dfa+offset({reading})"
    return f"{rule}+penalty({weight})" if weight else rule


def _arms(reading: str, seeds: tuple[int, ...]) -> tuple[Arm, Arm]:
    long = Arm((rule_of(reading),), NET, DATA, seeds, recipe(PAPER_EPOCHS), full=(1, PAPER_EPOCHS))
    rules = tuple(rule_of(reading, weight) for weight in penalty.WEIGHTS)
    return long, Arm(rules, NET, DATA, seeds, recipe(SHORT_EPOCHS), full=(SHORT_EPOCHS,))


ARMS = {OWN: (controls.LONG, controls.SHORT), LABEL: _arms(LABEL, SEEDS), USE: _arms(USE, SEEDS[:1])}


def read_as(answers: Answers, row: str, reading: str) -> Answer:
    """The runs of a row of the paper's Table 2, or of the weaker penalty, in one reading."""
    long, short = ARMS[reading]
    if row in (FIRST, LAST):
        found = answers.one(long, rule_of(reading))
        return found.at(1) if row == FIRST else found
    weight = penalty.WEIGHTS[(WEAK, STRONG).index(row)]
    return answers.one(short, rule_of(reading, weight))


def tables(answers: Answers) -> list[Table]:
    return [offset_table(answers), layers_table(answers)]


def offset_table(answers: Answers) -> Table:
    """The nets of Table 2 and the weaker penalty, in each reading."""
    lines = [
        Line({**_label(row, reading), **depth_of(row, answer)}, answer, row)
        for row in ROWS
        for reading in READINGS
        for answer in [read_as(answers, row, reading)]
    ]
    caption = (
        "DFA in three readings of one index. Block l reads h_{l−1} and makes h_l. It learns by the credit "
        "of the state it makes, as everywhere else here, or of the state it reads. The last two rows of "
        "each net are one training, seed by seed, diagnosed in two ways; in the first of them the credit "
        "shown at the last layer trained nothing. No gain is given for the first epoch."
    )
    measures = [replace(ACCURACY, paper=""), STATE, REFERENCE, CLAMPED, EXACT, RHO]
    return measured_table("offset", caption, lines, LEAD, measures, penalty.DEPTH)


def layers_table(answers: Answers) -> Table:
    """The same layer by layer: what an index shifts, it shifts layer by layer."""
    lines = [
        Line(_label(row, reading), read_as(answers, row, reading)) for row in ROWS for reading in READINGS
    ]
    caption = (
        "The same layer by layer: the exact cosine, of all 512 rows, and of the deep layers its two-sided "
        "rank p under 199 draws of fresh feedback on the first 128, seed by seed; .005 is the least there "
        "is."
    )
    return measured_table("offset-layers", caption, lines, LEAD, (*COSINES, *RANKS))


COSINES = (
    Measure("layer 0, cosine", "cosine_0", at_layer("alignment.cosine@1", 0), words.cosine),
    *five_rule.BY_LAYER[: five_rule.DEPTH],
)
RANKS = five_rule.BY_LAYER[five_rule.DEPTH :]
LEAD = (
    RULE,
    Column("block l learns by", ("by",), numeric=False),
    Column("diagnosed at h_l", ("shown",), numeric=False),
)


def _label(row: str, reading: str) -> Row:
    by, shown = TOLD[reading]
    return {"rule": row, "by": by, "shown": shown}


def depth_of(row: str, answer: Answer) -> Row:
    """A gain is that of whole runs over their baselines."""
    if row == FIRST:
        return {**penalty.gain_of(None, words.MISSING), "verdict": ""}
    return penalty.depth_of(answer)


def statement(answers: Answers, row: str, measure: Measure, paper_row: str = "") -> str:
    """A number that the paper prints, beside what an index that is off by one gives."""
    point = point_of(answers, row, LABEL, measure, paper_row)
    if not point.answer.runs:
        return f"{OFF_BY_ONE}: {point.answer.gap} (walkback audit {STUDY.name} decides it)."
    return f"{OFF_BY_ONE}: {point.measured} ({seeds_of(point.answer)}), {point.standing}."


OFF_BY_ONE = "With an index that is off by one (blocks learn by the credit of the state they read)"


def point_of(answers: Answers, row: str, reading: str, measure: Measure, paper_row: str = "") -> Point:
    paper = published(paper_row or row, measure.paper)
    assert paper is not None, (row, measure.paper)
    return Point(row, paper, own_seeds(read_as(answers, row, reading), paper), measure)


def points(answers: Answers, reading: str) -> list[Point]:
    """Every number that the paper prints of DFA, penalised or not, in one reading."""
    rows = {"dfa": LAST, **{row: row for row in ROWS}}
    return printed(lambda row: read_as(answers, rows[row], reading) if row in rows else None)


STUDY = Study(
    "offset",
    "Does a block learn by the credit of the state it makes or reads, and which of the two is diagnosed?",
    tuple(arm for reading in (LABEL, USE) for arm in ARMS[reading])
    + tuple(Arm(("frozen",), NET, DATA, recipe=recipe(epochs)) for epochs in (PAPER_EPOCHS, SHORT_EPOCHS)),
    ours="the whole study",
    tables=tables,
)
