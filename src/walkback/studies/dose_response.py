"""`dose-response`: credit of known cosine in, verdicts out. The protocol's own operating curve."""

from __future__ import annotations

from walkback.core.spec import Call
from walkback.report import words
from walkback.report.answer import Answer, over_seeds, spread_column
from walkback.report.table import Column, Row, Table
from walkback.studies.answers import Answers
from walkback.studies.digit_sums import DATA, NET, RECIPE
from walkback.studies.study import Arm, Study

FRESH = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
FIXED = (0.3, 0.5, 0.8, 0.9, 0.95, 0.99)
FIELDS = ("noise", "cosine", "seeds", "accuracy", "accuracy_sd", "accuracy_gap", "d3_gain", "verdict")

ARM = Arm(
    (
        "bp",
        "frozen",
        *(f"dose(cosine={cosine},noise=fresh)" for cosine in FRESH),
        *(f"dose(cosine={cosine},noise=fixed)" for cosine in FIXED),
    ),
    NET,
    DATA,
    recipe=RECIPE,
)


def operating_curve(answers: Answers, arm: Arm = ARM) -> list[Table]:
    """One row per dose: what credit of this cosine buys, and what the protocol says of it."""
    doses = [answer for answer in answers.of(arm) if answer.name != "frozen"]
    rows = sorted(map(_row, doses), key=lambda row: (row["noise"], row["cosine"]))
    columns = (
        Column("noise", ("noise",), numeric=False),
        Column("cosine given", ("cosine",), words.cosine),
        Column("seeds", ("seeds",)),
        spread_column("accuracy", "accuracy", words.percent, "%"),
        Column("gain over frozen", ("d3_gain",), words.points, "pp"),
        Column("verdict", ("verdict",), numeric=False),
    )
    caption = (
        "Credit of a known cosine to backprop, the same at every layer and step. Fresh noise is drawn anew "
        "for each row and step; fixed noise is one direction per layer for all rows and all time."
    )
    return [Table("dose-response", caption, columns, FIELDS, tuple(rows))]


def _row(answer: Answer) -> Row:
    call = Call.parse(answer.spec["rule"])
    dose = {"noise": "none", "cosine": 1.0} if call.name == "bp" else call.params
    judged = answer.artifact
    return {
        "noise": dose["noise"],
        "cosine": dose["cosine"],
        "seeds": len(answer.runs),
        **over_seeds("accuracy", answer, lambda run: run.accuracy),
        "d3_gain": judged.verdict.reasons[2].value if judged else None,
        "verdict": judged.verdict.verdict if judged else answer.gap,
    }


STUDY = Study(
    "dose-response",
    "How good must credit be before blocks learn, and does the cosine say it?",
    (ARM,),
    ours="the whole study: a calibration of the protocol with credit made from backprop's",
    tables=operating_curve,
)
