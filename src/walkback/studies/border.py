"""`border`: crops bordered by the mean colour, the control for a padding that the paper does not state.

Padding before normalising makes the border black, padding after it makes it the mean colour. Both are
called a random crop. The paper's public code pads first: its border is black, as ours is.
"""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, EXACT, STATE, VALIDITY, Line, measured_table
from walkback.report.table import Column, Table
from walkback.studies import five_rule, penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA
from walkback.studies.five_rule import RULE
from walkback.studies.side_by_side import ONE_CHANGE, table_1_with
from walkback.studies.study import Study

MEAN = f"{DATA}(augment=crop-flip-mean)"
BORDERS = ("black", "mean colour")
SHORT = replace(penalty.ARM, rules=("bp", *penalty.RULES["dfa"], "frozen"), data=MEAN)
LONG = replace(five_rule.ARM, rules=("bp", "dfa", "frozen"), data=MEAN)


def border_table(answers: Answers) -> list[Table]:
    """Each rule with a black border and with one of the mean colour, at both lengths."""
    lines = []
    for usual, arm in ((penalty.ARM, SHORT), (five_rule.ARM, LONG)):
        for rule in arm.rules:
            both = answers.without_and_with(usual, rule, arm)
            for border, answer in zip(BORDERS, both, strict=True):
                label = {"rule": answer.name, "border": border, **penalty.depth_of(answer)}
                lines.append(Line(label, answer))
    measures = [replace(measure, paper="") for measure in (ACCURACY, STATE, VALIDITY, EXACT)]
    caption = f"The border that random crops see. {ONE_CHANGE}"
    lead = (RULE, Column("border", ("border",), numeric=False))
    own = measured_table("border", caption, lines, lead, measures, penalty.DEPTH)
    headline = (
        "Table 1 with either border of random crops, which the paper does not state: black, as in all "
        "other tables, or of the mean colour. Rules are judged against frozen blocks with the same border."
    )
    return [own, table_1_with(answers, "table-1-border", headline, LONG, "border", BORDERS)]


STUDY = Study(
    "border",
    "How much of the difference between our numbers and the paper's is the border that random crops see?",
    (SHORT, LONG),
    ours="the whole study",
    tables=border_table,
)
