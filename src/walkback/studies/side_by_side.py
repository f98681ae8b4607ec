"""The table of a control: each of its rules as the headline has it and with one thing changed."""

from __future__ import annotations

from collections.abc import Sequence

from walkback.report.answer import Line, Measure, measured_table
from walkback.report.table import Column, Table
from walkback.studies.answers import Answers
from walkback.studies.five_rule import RULE
from walkback.studies.study import Arm


def side_by_side(
    answers: Answers,
    name: str,
    caption: str,
    arms: Sequence[tuple[Arm, Arm]],
    what: str,
    values: tuple[str, str],
    measures: list[Measure],
) -> Table:
    """`arms` are pairs, the usual and the changed one; `what` was changed, from the first value to the
    second."""
    lines = [
        Line({"rule": answer.name, what: value}, answer, answer.name)
        for usual, changed in arms
        for rule in changed.rules
        for value, answer in zip(values, answers.without_and_with(usual, rule, changed), strict=True)
    ]
    return measured_table(name, caption, lines, [RULE, Column(what, (what,), numeric=False)], measures)
