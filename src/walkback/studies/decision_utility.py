"""`decision-utility`: the FA paper's second validation, Table 3. Which evidence changes which decision?"""

from __future__ import annotations

from collections.abc import Sequence

from walkback.judge.ablate import EVIDENCE, decisions
from walkback.report.answer import Answer, Line, measured_table
from walkback.report.document import Drawing
from walkback.report.paper_figures import draw_decisions, figure_text
from walkback.report.table import Column, Row, Table
from walkback.studies import bridges_and_ep, five_rule
from walkback.studies.answers import Answers
from walkback.studies.five_rule import RULE
from walkback.studies.study import Study

PAPER_LOGIC = "full, logic paper"


def table_3(answers: Answers) -> Table:
    """One row per rule, one decision per body of evidence."""
    rows = five_rule.audited(answers)
    lines = [Line({"rule": answer.name, **decided(answer)}, answer) for answer in rows]
    tail = [Column(name, (name,), numeric=False) for name in (*EVIDENCE, PAPER_LOGIC)]
    caption = (
        "Table 3 (ours: that part of the paper is lost). What each body of evidence decides: accuracy "
        "above chance, then Γ above zero, then each detector added to them alone (D2 as r/128), then the "
        "whole protocol, logic artifact, and logic paper in the last column."
    )
    return measured_table("table-3", caption, lines, [RULE], [], tail)


def decided(answer: Answer) -> Row:
    """By body of evidence: `trustworthy`, `walked back`, `not known`, or that it was not run."""
    if answer.artifact is None or answer.paper is None:
        return dict.fromkeys((*EVIDENCE, PAPER_LOGIC), answer.gap)
    return {**decisions(answer.artifact), PAPER_LOGIC: decisions(answer.paper)["full"]}


def figures(answers: Answers) -> Sequence[Drawing]:
    table = table_3(answers)
    return [Drawing(figure_text("figure-5"), lambda: draw_decisions(table, (*EVIDENCE, PAPER_LOGIC)))]


STUDY = Study(
    "decision-utility",
    "Which decision about a rule would each smaller body of evidence have given?",
    (five_rule.ARM, *bridges_and_ep.STUDY.arms),
    ours="the rows and columns of Table 3, which is lost in the paper",
    tables=lambda answers: [table_3(answers)],
    figures=figures,
)
