"""`early-epoch`: the FA paper's fourth validation. What is DFA's credit before its scale explodes?"""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import (
    ACCURACY,
    CLAMPED,
    EXACT,
    GROWTH,
    NULL_P,
    RHO,
    STATE,
    VALIDITY,
    Line,
    measured_table,
)
from walkback.report.table import Column, Table
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, recipe
from walkback.studies.five_rule import LAYER_0
from walkback.studies.study import Arm, Study

EPOCHS = (1, 2, 5, 10, 20, 50, PAPER_EPOCHS)  # those whose checkpoints are kept
ARM = Arm(("dfa",), NET, DATA, recipe=recipe(PAPER_EPOCHS), full=EPOCHS)
BASELINE = Arm(("frozen",), NET, DATA, recipe=recipe(PAPER_EPOCHS))
MEASURES = [
    replace(measure, paper="")
    for measure in (ACCURACY, GROWTH, VALIDITY, STATE, LAYER_0, CLAMPED, EXACT, RHO, NULL_P)
]


def early_table(answers: Answers) -> list[Table]:
    """DFA at every kept epoch: scale, reference and direction side by side."""
    dfa = answers.one(ARM, "dfa")
    lines = [Line({"epoch": epoch}, dfa.at(epoch)) for epoch in EPOCHS]
    caption = (
        "DFA as it trains, mean ± standard deviation over seeds. While D1 and D2 are quiet the reference "
        "is sound, and the deep cosine says whether there ever was a direction to lose. ρ and the rank p "
        "under 199 draws of fresh feedback are of the first 128 rows."
    )
    return [measured_table("early-epoch", caption, lines, [Column("epoch", ("epoch",))], MEASURES)]


STUDY = Study(
    "early-epoch",
    "Does DFA's deep credit point anywhere before its scale explodes?",
    (ARM, BASELINE),
    tables=early_table,
)
