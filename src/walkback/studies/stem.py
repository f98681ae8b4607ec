"""`stem`: who trained the stem, and who the blocks? The control for what a frozen baseline is."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, Answer, Line, measured_table, uneven
from walkback.report.table import Column, Table
from walkback.studies import five_rule, schedule
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, SHORT_EPOCHS, recipe
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
LONG = Arm((DFA_STEM,), NET, DATA, recipe=recipe(PAPER_EPOCHS))
CONSTANT = replace(LONG, recipe=recipe(PAPER_EPOCHS, "constant"))


def stem_table(answers: Answers) -> list[Table]:
    """The two-by-two table of stem and blocks, and under it the net of which the head alone learns; then
    frozen blocks under either stem as long as the paper's, annealed and not."""
    short = [_line(rule, answer) for rule, answer in zip(CELLS, answers.of(ARM, list(CELLS)), strict=True)]
    long = [
        _line(rule, answers.one(arm, rule))
        for by_bp, by_dfa in ((five_rule.ARM, LONG), (schedule.ARM, CONSTANT))
        for rule, arm in (("frozen", by_bp), (DFA_STEM, by_dfa))
    ]
    lead = [Column(name, (key,), numeric=False) for name, key in _LEAD.items()]
    caption = (
        "Who trained the stem, and who the blocks. Rows of one recipe with one stem differ in the blocks "
        "alone."
    )
    caption += uneven(short)
    lines = [*short, *long]
    return [measured_table("stem", caption, lines, lead, [replace(ACCURACY, paper="")])]


def _line(rule: str, answer: Answer) -> Line:
    return Line(dict(zip(_LEAD.values(), CELLS[rule], strict=True)), answer)


_LEAD = {"stem trained by": "stem", "blocks": "blocks"}

STUDY = Study(
    "stem",
    "Do DFA's blocks beat frozen ones under a stem trained by backprop, and under one trained by DFA?",
    (ARM, LONG, CONSTANT),
    ours="the whole study",
    tables=stem_table,
)
