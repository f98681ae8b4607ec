"""`bridges-and-ep`: the rules of the FA paper's Table 1 that need a solver or a definition of our own."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, EXACT, GAMMA, NOT_RUN, STATE, VALIDITY, Line, measured_table
from walkback.report.tables import Column, Table
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, SHORT_EPOCHS, recipe
from walkback.studies.study import SEEDS, Arm, Study

EP, FEW_STEP_EP = "ep", "ep(solver=gd)"
BRIDGES = ("state-bridge", "credit-bridge")

ARM = Arm((EP, FEW_STEP_EP, *BRIDGES, "bp", "frozen"), NET, DATA, recipe=recipe(SHORT_EPOCHS))
LONG_EP = Arm((EP, "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(PAPER_EPOCHS))


def short_table(answers: Answers) -> list[Table]:
    """Every rule at the same length, with backprop and the frozen baseline beside it."""
    rows = [(a, a.artifact) for a in answers.of(ARM)]
    lines = [Line({"rule": a.name, "verdict": j.verdict.verdict if j else NOT_RUN}, a) for a, j in rows]
    measures = [replace(measure, paper="") for measure in (ACCURACY, GAMMA, EXACT, STATE, VALIDITY)]
    lead, tail = ([Column(key, (key,), numeric=False)] for key in ("rule", "verdict"))
    caption = "The same length for all, so that solver and definition are what differs."
    return [measured_table("bridges-and-ep", caption, lines, lead, measures, tail)]


STUDY = Study(
    "bridges-and-ep",
    "What does the protocol say of equilibrium propagation, settled and hurried, and of the two bridges?",
    (ARM, LONG_EP),
    ours="30 epochs instead of 100; both bridges, of which the paper gives the names alone",
    tables=short_table,
)
