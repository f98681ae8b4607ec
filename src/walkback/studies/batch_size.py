"""`batch-size`: one seed at twice the batch, the control for a batch size that may not be the paper's."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, STATE, VALIDITY, Line, measured_table
from walkback.report.table import Column, Table
from walkback.studies import penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, SHORT_EPOCHS, recipe
from walkback.studies.five_rule import RULE
from walkback.studies.study import SEEDS, Arm, Study

BATCH = 256
ARM = Arm(("bp", "dfa", "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(SHORT_EPOCHS, batch=BATCH))


def batch_table(answers: Answers) -> list[Table]:
    """Each rule at the headline's batch and at twice that, at the length of the penalty study."""
    lines = []
    for rule in ARM.rules:
        both = answers.without_and_with(penalty.ARM, rule, ARM)
        for batch, answer in zip(("128", str(BATCH)), both, strict=True):
            lines.append(Line({"rule": rule, "batch": batch}, answer))
    measures = [replace(measure, paper="") for measure in (ACCURACY, STATE, VALIDITY)]
    caption = "The batch size in training, seed by seed: everything else is the same."
    return [measured_table("batch-size", caption, lines, [RULE, Column("batch", ("batch",))], measures)]


STUDY = Study(
    "batch-size",
    "How much of the difference between our numbers and the paper's is the batch size?",
    (ARM,),
    ours="the whole study",
    tables=batch_table,
)
