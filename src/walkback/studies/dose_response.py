"""`dose-response`: credit of known cosine in, verdicts out. The protocol's own operating curve."""

from __future__ import annotations

from collections.abc import Sequence

from walkback.core.spec import Call
from walkback.judge.assemble import Judged
from walkback.report import words
from walkback.report.tables import Column, Row, Table, verdict_rows
from walkback.studies.digit_sums import DATA, NET, RECIPE
from walkback.studies.study import Arm, Study

FRESH = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
FIXED = (0.3, 0.5, 0.8, 0.9, 0.95, 0.99)
FIELDS = ("noise", "cosine", "seeds", "accuracy_mean", "accuracy_sd", "d3_gain", "verdict")


def operating_curve(judged: Sequence[Judged]) -> list[Table]:
    """One row per dose: what credit of this cosine buys, and what the protocol says of it."""
    rows = sorted(_doses(judged), key=lambda row: (row["noise"], row["cosine"]))
    columns = (
        Column("noise", ("noise",), numeric=False),
        Column("cosine given", ("cosine",), words.cosine),
        Column("seeds", ("seeds",)),
        Column("accuracy", ("accuracy_mean", "accuracy_sd"), _accuracy, "%"),
        Column("gain over frozen", ("d3_gain",), words.points, "pp"),
        Column("verdict", ("verdict",), numeric=False),
    )
    caption = (
        "Credit of a known cosine to backprop, the same at every layer and step. Fresh noise is drawn anew "
        "for each row and step; fixed noise is one direction per layer for all rows and all time."
    )
    return [Table("dose-response", caption, columns, FIELDS, tuple(rows))]


def _doses(judged: Sequence[Judged]) -> list[Row]:
    rows: list[Row] = []
    for item, row in zip(judged, verdict_rows(judged).rows, strict=True):
        call = Call.parse(str(item.bundles[0].card["rule"]["variant"]))
        if call.name in ("dose", "bp"):
            exact = {"noise": "none", "cosine": 1.0} if call.name == "bp" else call.params
            rows.append({**{key: row[key] for key in FIELDS[2:]}, **exact})
    return rows


def _accuracy(mean: float | None, sd: float | None) -> str:
    return words.spread(words.percent(mean), words.percent(sd))


STUDY = Study(
    "dose-response",
    "How good must credit be before blocks learn, and does the cosine say it?",
    (
        Arm(
            (
                "bp",
                "frozen",
                *(f"dose(cosine={cosine},noise=fresh)" for cosine in FRESH),
                *(f"dose(cosine={cosine},noise=fixed)" for cosine in FIXED),
            ),
            NET,
            DATA,
            recipe=RECIPE,
        ),
    ),
    ours="the whole study: a calibration of the protocol with credit made from backprop's",
    tables=operating_curve,
)
