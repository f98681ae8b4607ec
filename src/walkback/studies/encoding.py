"""`encoding`: the images' own pixels, the control for files that hold them as JPEG.

The runs in docs/results were trained on parquet files of JPEG images. The paper names CIFAR-10, whose
releases hold pixels.
"""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, EXACT, STATE, VALIDITY
from walkback.report.table import Table
from walkback.studies import border, five_rule, penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA
from walkback.studies.side_by_side import side_by_side, table_1_with
from walkback.studies.study import SEEDS, Study

LOSSLESS = f"{DATA}-lossless"
SHORT = replace(border.SHORT, data=LOSSLESS, seeds=SEEDS[:1], optional=True)
LONG = replace(SHORT, rules=border.LONG.rules, recipe=border.LONG.recipe)
IMAGES = (DATA, LOSSLESS)


def encoding_tables(answers: Answers) -> list[Table]:
    """Each rule on the files that the headline was trained on and on lossless ones, at both lengths."""
    caption = "The images. In the same order (reproduce/lossless_cifar10.py) they make the same batches."
    arms = [(penalty.ARM, SHORT), (five_rule.ARM, LONG)]
    measures = [replace(measure, paper="") for measure in (ACCURACY, STATE, VALIDITY, EXACT)]
    own = side_by_side(answers, "encoding", caption, arms, "images", IMAGES, measures)
    headline = (
        "Table 1 on images that never were JPEG, beside those that all other tables are from. Rules are "
        "judged against frozen blocks on the same images."
    )
    return [own, table_1_with(answers, "table-1-encoding", headline, LONG, "images", IMAGES)]


def nothing_to_compare(answers: Answers) -> bool:
    """Whether both names stand for the same arrays, as where the files of `cifar10` are lossless."""
    known = [answers.dataset(name).identity for name in IMAGES]
    return "" not in known and len(set(known)) == 1


STUDY = Study(
    "encoding",
    "How much of the difference between our numbers and the paper's is that our images went through JPEG?",
    (SHORT, LONG),
    ours="the whole study",
    tables=encoding_tables,
)
