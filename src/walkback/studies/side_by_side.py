"""The table of a control: each of its rules as the headline has it and with one thing changed."""

from __future__ import annotations

from walkback.report.answer import Line, Measure, measured_table
from walkback.report.table import Column, Table
from walkback.studies.answers import Answers
from walkback.studies.five_rule import RULE
from walkback.studies.study import Arm


def side_by_side(
    answers: Answers,
    name: str,
    caption: str,
    arms: tuple[Arm, Arm],
    what: str,
    values: tuple[str, str],
    measures: list[Measure],
) -> Table:
    """`arms` are the usual and the changed one; `what` was changed, from the first value to the second."""
    usual, changed = arms
    lines = [
        Line({"rule": rule, what: value}, answer, rule)
        for rule in changed.rules
        for value, answer in zip(values, answers.without_and_with(usual, rule, changed), strict=True)
    ]
    return measured_table(name, caption, lines, [RULE, Column(what, (what,), numeric=False)], measures)
