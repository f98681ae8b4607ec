"""`penalty-mean`: one seed, the penalty averaged over features: the control for how the paper takes it."""

from __future__ import annotations

from walkback.report.answer import ACCURACY, CLAMPED, EXACT, RHO, STATE, VALIDITY, Line, measured_table
from walkback.report.table import Column, Table
from walkback.studies import penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, SHORT_EPOCHS, recipe
from walkback.studies.five_rule import RULE
from walkback.studies.study import SEEDS, Arm, Study

RULES = tuple(f"dfa+penalty(weight={weight},over=mean)" for weight in penalty.WEIGHTS)

ARM = Arm((*RULES, "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(SHORT_EPOCHS), full=(SHORT_EPOCHS,))


def mean_table(answers: Answers) -> list[Table]:
    """DFA under each weight, the penalty summed and averaged over features."""
    pairs = zip(penalty.WEIGHTS, penalty.RULES["dfa"][1:], RULES, strict=True)
    lines = []
    for weight, summed, averaged in pairs:
        both = answers.without_and_with(penalty.ARM, summed, ARM, averaged)
        for over, answer in zip(("sum", "mean"), both, strict=True):
            lines.append(Line({"rule": f"dfa, λ = {weight}", "over": over}, answer, _PAPER[weight]))
    lead = [RULE, Column("over features", ("over",), numeric=False)]
    caption = (
        "The same penalty summed over the features of a branch and averaged over them, which is a weight "
        "256 times smaller. The paper gives numbers for λ = 1e-2, and not which of the two it means."
    )
    measures = [ACCURACY, STATE, VALIDITY, CLAMPED, EXACT, RHO]
    return [measured_table("penalty-mean", caption, lines, lead, measures)]


_PAPER = {"1e-4": "", "1e-2": "dfa+penalty(0.01)"}

STUDY = Study(
    "penalty-mean",
    "Is the paper's penalty perhaps averaged over features, where ours is summed?",
    (ARM,),
    ours="the whole study",
    tables=mean_table,
)
