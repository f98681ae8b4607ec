"""`penalty-reduction`: the control for what the paper's penalty is summed and averaged over.

But for its ε AdamW does not see the scale of a gradient, so whether an error is summed or averaged over a
batch changes nothing, until a penalty stands beside it.
"""

from __future__ import annotations

from walkback.report.answer import (
    ACCURACY,
    CLAMPED,
    EXACT,
    RHO,
    STATE,
    VALIDITY,
    Answer,
    Line,
    measured_table,
)
from walkback.report.table import Column, Row, Table
from walkback.studies import five_rule, offset, penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import BATCH, DATA, NET, SHORT_EPOCHS, recipe
from walkback.studies.five_rule import RULE
from walkback.studies.study import SEEDS, Arm, Study

SUMMED, AVERAGED, ERROR_SUMMED, OFF_BY_ONE = READINGS = (
    "sum",
    "mean",
    "mean, error summed",
    "mean, index off by one",
)


def rule_of(weight: str, reading: str) -> str:
    """DFA under a penalty of this weight, as one reading of the paper has it."""
    if reading == SUMMED:
        return f"dfa+penalty({weight})"
    beside_error = float(weight) / (BATCH if reading == ERROR_SUMMED else 1)
    rule = offset.rule_of(offset.LABEL) if reading == OFF_BY_ONE else "dfa"
    return f"{rule}+penalty(weight={beside_error!r},over=mean)"


ARMS = {
    reading: Arm(
        (*(rule_of(weight, reading) for weight in penalty.WEIGHTS), "frozen"),
        NET,
        DATA,
        seeds=seeds,
        recipe=recipe(SHORT_EPOCHS),
        full=(SHORT_EPOCHS,),
    )
    for reading, seeds in ((AVERAGED, SEEDS[:1]), (ERROR_SUMMED, SEEDS), (OFF_BY_ONE, SEEDS))
}


def reduction_table(answers: Answers) -> list[Table]:
    """DFA under each weight, as each reading of the paper has it."""
    lines = [
        Line({**_label(weight, reading), **penalty.depth_of(answer)}, answer, paper)
        for weight in penalty.WEIGHTS
        for paper in [read_as(answers, weight, SUMMED).name]
        for reading in READINGS
        for answer in [read_as(answers, weight, reading)]
    ]
    caption = (
        "One penalty in four readings: summed over the features of a branch; averaged over them, which is "
        f"a weight 256 times smaller; averaged beside an error summed over the batch, {BATCH} times "
        "smaller again; and averaged beside credits whose index is off by one (the "
        "study offset). The paper gives numbers for λ = 1e-2, and not which of them it means."
    )
    measures = [ACCURACY, STATE, VALIDITY, CLAMPED, EXACT, RHO]
    own = measured_table("penalty-reduction", caption, lines, LEAD, measures, penalty.DEPTH)
    return [own, layers_table(answers)]


def layers_table(answers: Answers) -> Table:
    """A reading that gives the paper's mean over deep layers need not give a direction to all of them."""
    lines = [
        Line(_label(weight, reading), read_as(answers, weight, reading))
        for weight in penalty.WEIGHTS
        for reading in READINGS
    ]
    caption = (
        "The same layer by layer: the exact cosine of every deep layer, and its two-sided rank p under 199 "
        "draws of fresh feedback on 128 rows, seed by seed."
    )
    return measured_table("penalty-reduction-layers", caption, lines, LEAD, five_rule.BY_LAYER)


LEAD = (RULE, Column("over features", ("reading",), numeric=False))


def _label(weight: str, reading: str) -> Row:
    return {"rule": f"dfa, λ = {weight}", "reading": reading}


def read_as(answers: Answers, weight: str, reading: str) -> Answer:
    return answers.one(ARMS.get(reading, penalty.ARM), rule_of(weight, reading))


STUDY = Study(
    "penalty-reduction",
    "What is the paper's penalty summed and averaged over, and the error that stands beside it?",
    tuple(ARMS.values()),
    ours="the whole study",
    tables=reduction_table,
)
