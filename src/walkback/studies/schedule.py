"""`schedule`: one seed at a constant rate, the control for a schedule that the FA paper does not state.

The notes of its public code name the cosine, which the headline has.
"""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, EXACT, STATE, VALIDITY
from walkback.report.table import Table
from walkback.studies import five_rule, penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, SHORT_EPOCHS, recipe
from walkback.studies.side_by_side import side_by_side
from walkback.studies.study import SEEDS, Arm, Study

ARM = Arm(("bp", "dfa", "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(PAPER_EPOCHS, "constant"))
SHORT = replace(ARM, rules=("frozen", *penalty.RULES["dfa"][1:]), recipe=recipe(SHORT_EPOCHS, "constant"))


def schedule_table(answers: Answers) -> list[Table]:
    """Each rule under the headline's schedule and under a constant rate."""
    caption = "The learning-rate schedule."
    arms, values = [(five_rule.ARM, ARM), (penalty.ARM, SHORT)], ("cosine", "constant")
    measures = [ACCURACY, STATE, VALIDITY, EXACT]
    return [side_by_side(answers, "schedule", caption, arms, "schedule", values, measures)]


STUDY = Study(
    "schedule",
    "How much of the difference between our numbers and the paper's is the learning-rate schedule?",
    (ARM, SHORT),
    ours="the whole study",
    tables=schedule_table,
)
