"""`pixels`: one seed on pixels that are not normalised, the control for an input not stated."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, EXACT, STATE, VALIDITY
from walkback.report.table import Table
from walkback.studies import border, penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA
from walkback.studies.side_by_side import side_by_side
from walkback.studies.study import SEEDS, Study

PIXELS = f"{DATA}-pixels"
ARM = replace(border.SHORT, data=PIXELS, seeds=SEEDS[:1])


def pixels_table(answers: Answers) -> list[Table]:
    """Each rule on normalised channels and on pixels in 0…1, at the length of the penalty study."""
    caption = "The input."
    measures = [replace(measure, paper="") for measure in (ACCURACY, STATE, VALIDITY, EXACT)]
    values = ("normalised by channel", "pixels in 0…1")
    return [side_by_side(answers, "pixels", caption, [(penalty.ARM, ARM)], "input", values, measures)]


STUDY = Study(
    "pixels",
    "How much of the difference between our numbers and the paper's is how its pixels are normalised?",
    (ARM,),
    ours="the whole study",
    tables=pixels_table,
)
