"""`rate`: one seed at three times the learning rate, the control for a rate that may not be the paper's."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, EXACT, STATE, VALIDITY
from walkback.report.table import Table
from walkback.studies import penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, RATE, SHORT_EPOCHS, recipe
from walkback.studies.side_by_side import side_by_side
from walkback.studies.study import SEEDS, Arm, Study

THRICE = 3e-3
ARM = Arm(("bp", "dfa", "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(SHORT_EPOCHS, lr=THRICE))


def rate_table(answers: Answers) -> list[Table]:
    """Each rule at the headline's rate and at three times that, at the length of the penalty study."""
    caption = "The learning rate."
    measures = [replace(measure, paper="") for measure in (ACCURACY, STATE, VALIDITY, EXACT)]
    arms, values = [(penalty.ARM, ARM)], (f"{RATE:g}", f"{THRICE:g}")
    return [side_by_side(answers, "rate", caption, arms, "rate", values, measures)]


STUDY = Study(
    "rate",
    "How much of the difference between our numbers and the paper's is the learning rate?",
    (ARM,),
    ours="the whole study",
    tables=rate_table,
)
