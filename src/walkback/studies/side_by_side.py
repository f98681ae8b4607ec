"""The tables of a control: each of its rules as the headline has it and with one thing changed."""

from __future__ import annotations

from collections.abc import Sequence

from walkback.report.answer import ACCURACY, GAMMA, REFERENCE, STATE, Line, Measure, measured_table
from walkback.report.table import Column, Table
from walkback.studies import five_rule, penalty
from walkback.studies.answers import Answers
from walkback.studies.five_rule import RULE
from walkback.studies.study import Arm

ONE_CHANGE = (
    f"Rows of one rule and length have the same seeds and differ in nothing else. {penalty.INTERVAL}"
)


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
    second. The caption need not say more than that."""
    lines = [
        Line({"rule": answer.name, what: value, **penalty.depth_of(answer)}, answer, answer.name)
        for usual, changed in arms
        for rule in changed.rules
        for value, answer in zip(values, answers.without_and_with(usual, rule, changed), strict=True)
    ]
    lead = [RULE, Column(what, (what,), numeric=False)]
    return measured_table(name, f"{caption} {ONE_CHANGE}", lines, lead, measures, penalty.DEPTH)


def table_1_with(
    answers: Answers, name: str, caption: str, changed: Arm, what: str, values: tuple[str, str]
) -> Table:
    """Table 1 without and with a change, for the rules that have both at its length and on its seeds."""
    lines = [
        Line(
            {"rule": rule, what: value, **penalty.depth_of(answer), **five_rule.decided(answer)},
            answer,
            rule,
        )
        for rule in changed.rules
        for value, answer in zip(
            values, answers.without_and_with(five_rule.ARM, rule, changed), strict=True
        )
    ]
    lead = [RULE, Column(what, (what,), numeric=False)]
    measures = [ACCURACY, GAMMA, STATE, REFERENCE, five_rule.LAYER_0, five_rule.DEEP]
    return measured_table(name, caption, lines, lead, measures, five_rule.JUDGED)
