"""`schedule`: one seed at a constant rate, the control for a schedule that the FA paper does not state."""

from __future__ import annotations

from walkback.report.answer import ACCURACY, STATE, VALIDITY, Line, measured_table
from walkback.report.table import Column, Table
from walkback.studies import five_rule
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, recipe
from walkback.studies.five_rule import RULE
from walkback.studies.study import SEEDS, Arm, Study

ARM = Arm(("bp", "dfa", "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(PAPER_EPOCHS, "constant"))


def schedule_table(answers: Answers) -> list[Table]:
    """Each rule under the headline's schedule and under a constant rate."""
    lines = []
    for rule in ARM.rules:
        both = answers.without_and_with(five_rule.ARM, rule, ARM)
        for schedule, answer in zip(("cosine", "constant"), both, strict=True):
            lines.append(Line({"rule": rule, "schedule": schedule}, answer, rule))
    lead = [RULE, Column("schedule", ("schedule",), numeric=False)]
    caption = "The learning-rate schedule, seed by seed: everything else is the same."
    return [measured_table("schedule", caption, lines, lead, [ACCURACY, STATE, VALIDITY])]


STUDY = Study(
    "schedule",
    "How much of the difference between our numbers and the paper's is the learning-rate schedule?",
    (ARM,),
    ours="the whole study",
    tables=schedule_table,
)
