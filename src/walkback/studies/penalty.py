"""`penalty`: the FA paper's fifth validation. Does DFA learn once its scale is held down?"""

from __future__ import annotations

from dataclasses import replace

from walkback.report import words
from walkback.report.answer import (
    ACCURACY,
    CLAMPED,
    EXACT,
    NULL_P,
    RHO,
    STATE,
    VALIDITY,
    Answer,
    Line,
    measured_table,
)
from walkback.report.document import Drawing
from walkback.report.paper_figures import draw_penalty, figure_text
from walkback.report.table import Column, Row, Table
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, SHORT_EPOCHS, recipe
from walkback.studies.study import Arm, Study

WEIGHTS = ("1e-4", "1e-2")
RULES = {rule: (rule, *(f"{rule}+penalty({weight})" for weight in WEIGHTS)) for rule in ("dfa", "bp")}

ARM = Arm(
    (
        "dfa",
        *(f"dfa+penalty({weight})" for weight in reversed(WEIGHTS)),
        "frozen",
        "bp",
        *(f"bp+penalty({weight})" for weight in reversed(WEIGHTS)),
    ),
    NET,
    DATA,
    recipe=recipe(SHORT_EPOCHS),
)


def penalty_table(answers: Answers) -> Table:
    """Both rules under each weight, and the frozen baseline of the same length."""
    order = (*RULES["dfa"], *RULES["bp"], "frozen")
    rows = answers.of(ARM, order)
    # The paper's rows without a penalty are of longer runs: they stand in Table 2.
    lines = [Line({"rule": a.name, **depth_of(a)}, a, a.name if "penalty" in a.name else "") for a in rows]
    caption = (
        "A penalty λ‖f_l(h_{l−1})‖² on every branch, under DFA and, as the matched control, under "
        "backprop. p is the rank of the deep cosine under 199 draws of fresh feedback (backprop: shuffled "
        "samples), on 128 rows; .005 is the least there is."
    )
    if any("stem-dependent" in line.label["verdict"] for line in lines):
        caption += (
            " Stem-dependent: the rule's blocks gain over frozen ones under one stem, trained by backprop "
            "or by the rule, and not under the other."
        )
    lead = [Column("rule", ("rule",), numeric=False)]
    measures = [replace(ACCURACY, paper=""), STATE, VALIDITY, CLAMPED, EXACT, NULL_P, RHO]
    return measured_table("penalty", caption, lines, lead, measures, DEPTH)


DEPTH = (
    Column("gain over frozen", ("gain", "gain_gap"), lambda gain, gap: gap or words.points(gain), "pp"),
    Column("verdict", ("verdict",), numeric=False),
)


def depth_of(answer: Answer) -> Row:
    """What its blocks gain over frozen ones, and its verdict."""
    judged = answer.artifact
    if judged is None:
        return {"gain": None, "gain_gap": answer.gap, "verdict": answer.gap}
    if judged.role == "baseline":
        return {"gain": None, "gain_gap": "", "verdict": "baseline"}
    depth = judged.verdict.reasons[2]
    gap = "" if depth.value is not None else "not known"
    return {"gain": depth.value, "gain_gap": gap, "verdict": judged.verdict.verdict}


def figures(answers: Answers) -> list[Drawing]:
    rows = {rule: answers.of(ARM, names) for rule, names in RULES.items()}
    frozen = answers.one(ARM, "frozen")
    return [Drawing(figure_text("figure-3"), lambda: draw_penalty(rows, ("0", *WEIGHTS), frozen))]


STUDY = Study(
    "penalty",
    "Does DFA train its blocks once a penalty on their branches keeps the scale down, or was scale not it?",
    (ARM,),
    ours="backprop under each penalty, end to end, as the matched control",
    tables=lambda answers: [penalty_table(answers)],
    figures=figures,
)
