"""`stem`: who trained the stem, and who the blocks? The control for what a frozen baseline is."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, Line, measured_table, uneven
from walkback.report.table import Column, Table
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, SHORT_EPOCHS, recipe
from walkback.studies.study import Arm, Study

DFA_STEM, BP_STEM = "frozen(stem=dfa)", "mixed(stem=bp,blocks=dfa)"
CELLS = {  # rule: who trained the stem, and who the blocks
    "frozen": ("bp", "frozen"),
    BP_STEM: ("bp", "dfa"),
    DFA_STEM: ("dfa", "frozen"),
    "dfa": ("dfa", "dfa"),
    "shallow": ("nobody", "frozen"),
}

ARM = Arm(("dfa", "frozen", DFA_STEM, BP_STEM, "shallow"), NET, DATA, recipe=recipe(SHORT_EPOCHS))


def stem_table(answers: Answers) -> list[Table]:
    """The two-by-two table of stem and blocks, and under it the net of which the head alone learns."""
    cells = zip(CELLS.values(), answers.of(ARM, list(CELLS)), strict=True)
    lines = [Line({"stem": stem, "blocks": blocks}, answer) for (stem, blocks), answer in cells]
    lead = [Column(name, (key,), numeric=False) for name, key in _LEAD.items()]
    caption = "Who trained the stem, and who the blocks. Rows with one stem differ in the blocks alone."
    caption += uneven(lines)
    return [measured_table("stem", caption, lines, lead, [replace(ACCURACY, paper="")])]


_LEAD = {"stem trained by": "stem", "blocks": "blocks"}

STUDY = Study(
    "stem",
    "Do DFA's blocks beat frozen ones under a stem trained by backprop, and under one trained by DFA?",
    (ARM,),
    ours="the whole study",
    tables=stem_table,
)
