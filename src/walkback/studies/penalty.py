"""`penalty`: the FA paper's fifth validation. Does DFA learn once its scale is held down?"""

from __future__ import annotations

from dataclasses import replace

from walkback.core.verdict import Reason
from walkback.judge.thresholds import Thresholds
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
        f"samples), on 128 rows; .005 is the least there is. {INTERVAL}"
    )
    if any("stem-dependent" in line.label["verdict"] for line in lines):
        caption += (
            " Stem-dependent: the rule's blocks gain over frozen ones under one stem, trained by backprop "
            "or by the rule, and not under the other."
        )
    lead = [Column("rule", ("rule",), numeric=False)]
    measures = [replace(ACCURACY, paper=""), STATE, VALIDITY, CLAMPED, EXACT, NULL_P, RHO]
    return measured_table("penalty", caption, lines, lead, measures, DEPTH)


def show_gain(gain: float | None, low: float | None, high: float | None, gap: str) -> str:
    """`+6.7 [+5.1, +8.2]`, or why there is none."""
    ends = "" if low is None or high is None else f" [{words.points(low)}, {words.points(high)}]"
    return gap or f"{words.points(gain)}{ends}"


GAIN = Column("gain over frozen", ("gain", "gain_low", "gain_high", "gain_gap"), show_gain, "pp")
DEPTH = (GAIN, Column("verdict", ("verdict",), numeric=False))
INTERVAL = (
    f"A gain has its {100 * (1 - 2 * Thresholds().alpha):g} % interval, over seeds and test images; of "
    "one or two seeds it is over images alone, and the point decides."
)


def depth_of(answer: Answer) -> Row:
    """What its blocks gain over frozen ones, and its verdict."""
    judged = answer.artifact
    if judged is None:
        return {**gain_of(None, answer.gap), "verdict": answer.gap}
    if judged.role == "baseline":
        return {**gain_of(None, words.MISSING), "verdict": "baseline"}
    return {**gain_of(judged.verdict.reasons[2], "not known"), "verdict": judged.verdict.verdict}


def gain_of(depth: Reason | None, gap: str) -> Row:
    """The fields of a gain: what D3 found, or the words that stand where it found nothing."""
    if depth is None or depth.value is None:
        return {"gain": None, "gain_low": None, "gain_high": None, "gain_gap": gap}
    low, high = depth.interval or (None, None)
    return {"gain": depth.value, "gain_low": low, "gain_high": high, "gain_gap": ""}


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
