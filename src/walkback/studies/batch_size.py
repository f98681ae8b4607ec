"""`batch-size`: one seed at twice the batch, the control for a batch size that may not be the paper's."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, STATE, VALIDITY
from walkback.report.table import Table
from walkback.studies import penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import BATCH, DATA, NET, SHORT_EPOCHS, recipe
from walkback.studies.side_by_side import side_by_side
from walkback.studies.study import SEEDS, Arm, Study

TWICE = 256
ARM = Arm(("bp", "dfa", "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(SHORT_EPOCHS, batch=TWICE))


def batch_table(answers: Answers) -> list[Table]:
    """Each rule at the headline's batch and at twice that, at the length of the penalty study."""
    caption = "The batch size in training."
    measures = [replace(measure, paper="") for measure in (ACCURACY, STATE, VALIDITY)]
    arms, values = [(penalty.ARM, ARM)], (str(BATCH), str(TWICE))
    return [side_by_side(answers, "batch-size", caption, arms, "batch", values, measures)]


STUDY = Study(
    "batch-size",
    "How much of the difference between our numbers and the paper's is the batch size?",
    (ARM,),
    ours="the whole study",
    tables=batch_table,
)
