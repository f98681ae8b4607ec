"""Where our numbers agree with the paper's and where they do not; `reasons` says which run decides why."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import (
    ACCURACY,
    CLAMPED,
    GAMMA,
    REFERENCE,
    RHO,
    STATE,
    Answer,
    Measure,
)
from walkback.report.published import published
from walkback.report.table import Column, Table
from walkback.studies import (
    bridges_and_ep,
    controls,
    five_rule,
    penalty,
    reasons,
)
from walkback.studies.answers import Answers
from walkback.studies.five_rule import DEEP, LAYER_0
from walkback.studies.point import Point


def points_of(answers: Answers) -> list[Point]:
    bp, dfa, frozen = answers.of(five_rule.ARM, ("bp", "dfa", "frozen"))
    solved, few_step, *bridges = answers.of(bridges_and_ep.ARM)[:4]
    short_bp = answers.one(bridges_and_ep.ARM, "bp")
    strong = answers.one(controls.SHORT, penalty.RULES["dfa"][-1])
    early = dfa.at(1)
    rows = (("dfa, epoch 1", early), ("dfa, converged", dfa), (strong.name, strong))
    return [
        _point("bp, accuracy", bp, ACCURACY, reasons.of_recipes(answers, "bp")),
        _point(
            "dfa, accuracy",
            dfa,
            ACCURACY,
            f"{reasons.of_recipes(answers, 'dfa')} {reasons.of_draws(answers)}",
        ),
        _point("frozen, accuracy", frozen, ACCURACY, reasons.of_frozen(answers)),
        _point("ep, accuracy", solved, ACCURACY, reasons.of_solver(solved, few_step, short_bp)),
        *(_bridge(b, m) for b in bridges for m in (ACCURACY, GAMMA, STATE, REFERENCE)),
        _point("bp, Γ", bp, GAMMA, reasons.of_gamma(bp)),
        _point("ep, Γ", solved, GAMMA, reasons.of_settling(solved, few_step)),
        _point("dfa, Γ", dfa, GAMMA, reasons.of_layer_0(dfa)),
        _point("dfa, cosine of layer 0", dfa, LAYER_0, reasons.of_layer_0(dfa)),
        _point("dfa, cosine of deep layers", dfa, DEEP, reasons.of_layers(dfa)),
        _point("dfa, ‖h_L‖", dfa, STATE, reasons.of_scale(answers)),
        _point("dfa, ‖g_L‖", dfa, REFERENCE, reasons.of_batch(dfa)),
        _point("bp, ‖g_L‖", bp, REFERENCE, reasons.of_batch(bp)),
        *(_point("‖g_L‖", answer, REFERENCE, reasons.of_batch(answer), row) for row, answer in rows[:2]),
        _point(
            "‖g_L‖",
            strong,
            REFERENCE,
            f"{reasons.of_batch(strong)} {reasons.of_reductions(answers, REFERENCE)}",
            strong.name,
        ),
        *(
            _point(
                "deep cosine",
                answer,
                CLAMPED,
                f"{reasons.of_clamp(answer, row)} {reasons.of_layers(answer)}",
                row,
            )
            for row, answer in rows[:2]
        ),
        _point(
            "deep cosine",
            strong,
            CLAMPED,
            f"{reasons.of_clamp(strong, strong.name)} {reasons.of_reductions(answers, CLAMPED)}",
            strong.name,
        ),
        _point("deep cosine", early, controls.NULL[0], "", controls.FRESH),
        *(_point("ρ", answer, RHO, reasons.of_rho(answer), row) for row, answer in rows[:2]),
        _point(
            "ρ", strong, RHO, f"{reasons.of_rho(strong)} {reasons.of_reductions(answers, RHO)}", strong.name
        ),
        _point("‖h_L‖", strong, STATE, reasons.of_reductions(answers, STATE), strong.name),
    ]


def agreement_table(answers: Answers) -> Table:
    columns = (
        Column("number", ("what",), numeric=False),
        Column("paper", ("paper",)),
        Column("measured", ("measured",)),
        Column("seeds", ("seeds",)),
        Column("epochs", ("epochs",)),
        Column("standing", ("standing",), numeric=False),
        Column("why", ("why",), numeric=False),
    )
    rows = tuple(
        {
            "what": point.what,
            "paper": point.paper.text,
            "measured": point.measured,
            "seeds": len(point.answer.runs),
            "epochs": point.answer.runs[0].epoch if point.answer.runs else None,
            "standing": point.standing,
            "why": point.why,
        }
        for point in points_of(answers)
    )
    caption = (
        "All of the paper's numbers beside ours. Agrees: within two standard deviations over seeds, the "
        "paper's and ours together, or within a factor of three of an order of magnitude, or inside a "
        "range. The paper's deviation of fresh B is over draws."
    )
    fields = tuple(column.fields[0] for column in columns)
    return Table("agreement", caption, columns, fields, rows)


_BRIDGE = "Our own reading of a name: no reproduction is claimed, and none is contradicted."


def _bridge(answer: Answer, measure: Measure) -> Point:
    why = _BRIDGE if measure is ACCURACY else ""
    point = _point(f"{answer.name}, {measure.header}", answer, measure, why)
    return replace(point, comparable=False)


def _point(what: str, answer: Answer, measure: Measure, why: str, row: str = "") -> Point:
    row = row or what.split(",")[0]
    number = published(row, measure.paper)
    assert number is not None, (row, measure.paper)
    answer = answer if number.seed is None else answer.of_seeds({number.seed})
    return Point(what if row in what else f"{row}: {what}", number, answer, measure, why)
