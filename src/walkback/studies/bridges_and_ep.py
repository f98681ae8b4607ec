"""`bridges-and-ep`: the rules of the FA paper's Table 1 that need a solver or a definition of our own."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import (
    ACCURACY,
    EXACT,
    GAMMA,
    STATE,
    VALIDITY,
    Answer,
    Line,
    measured_table,
    uneven,
)
from walkback.report.table import Column, Table
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, SHORT_EPOCHS, recipe
from walkback.studies.study import SEEDS, Arm, Study

EP, FEW_STEP_EP, FEW_STEP_NAME = "ep", "ep(solver=gd)", "few-step ep"
BRIDGES = ("state-bridge", "credit-bridge")

ARM = Arm((EP, FEW_STEP_EP, *BRIDGES, "bp", "frozen"), NET, DATA, recipe=recipe(SHORT_EPOCHS))
LONG_EP = Arm((EP, "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(PAPER_EPOCHS))


def short_table(answers: Answers) -> list[Table]:
    """Every rule at the same length, with backprop and the frozen baseline beside it."""
    lines = [Line({"rule": a.name, "verdict": a.verdict}, a) for a in rows_of(answers)]
    measures = [replace(measure, paper="") for measure in (ACCURACY, GAMMA, EXACT, STATE, VALIDITY)]
    lead, tail = ([Column(key, (key,), numeric=False)] for key in ("rule", "verdict"))
    caption = "The same length for all, so that solver and definition are what differs." + uneven(lines)
    return [measured_table("bridges-and-ep", caption, lines, lead, measures, tail)]


def rows_of(answers: Answers) -> list[Answer]:
    """The arm's answers, EP that is hurried under a name that says so."""
    return [
        replace(answer, name=FEW_STEP_NAME) if rule == FEW_STEP_EP else answer
        for rule, answer in zip(ARM.rules, answers.of(ARM), strict=True)
    ]


STUDY = Study(
    "bridges-and-ep",
    "What does the protocol say of equilibrium propagation, settled and hurried, and of the two bridges?",
    (ARM, LONG_EP),
    ours="30 epochs instead of 100; both bridges, of which the paper gives the names alone",
    tables=short_table,
)
