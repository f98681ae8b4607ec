"""Where our numbers agree with the paper's and where they do not; `reasons` says which run decides why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from walkback.report import words
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
from walkback.report.table import Column, Row, Table
from walkback.studies import (
    as_coded,
    bridges_and_ep,
    controls,
    five_rule,
    offset,
    penalty,
    public_code,
    reasons,
)
from walkback.studies.answers import Answers
from walkback.studies.five_rule import DEEP, LAYER_0
from walkback.studies.point import BY_SPREAD, Point, own_seeds

Why = Callable[[Answer], str]


def points_of(answers: Answers) -> list[Point]:
    bp, dfa, frozen = answers.of(five_rule.ARM, ("bp", "dfa", "frozen"))
    solved, few_step, *bridges = answers.of(bridges_and_ep.ARM)[:4]
    strong = answers.one(controls.SHORT, penalty.RULES["dfa"][-1])
    early = dfa.at(1)
    dfas = (("dfa, epoch 1", early), ("dfa, converged", dfa))

    def off_by_one(row: str, measure: Measure, own: Why, paper_row: str = "") -> Why:
        """What is known of a net of Table 2 itself, then what another index of its blocks gives."""
        return lambda answer: f"{own(answer)} {offset.statement(answers, row, measure, paper_row)}".lstrip()

    def of_reading(measure: Measure, own: Why) -> Why:
        """The same of the penalised net, with the other readings of its penalty between the two."""
        others = reasons.of_reductions(answers, measure)
        return off_by_one(strong.name, measure, lambda answer: f"{own(answer)} {others}".lstrip())

    def of_strong(what: str, measure: Measure, own: Why) -> Point:
        return _point(what, strong, measure, of_reading(measure, own), strong.name)

    def of_dfa(what: str, measure: Measure, own: Callable[[str], Why]) -> list[Point]:
        """A number at the first epoch and at the last."""
        return [
            _point(what, answer, measure, off_by_one(row, measure, own(row)), row) for row, answer in dfas
        ]

    points = [
        _point(
            "bp, accuracy",
            bp,
            ACCURACY,
            lambda _: (
                f"{reasons.of_accuracy(answers, 'bp')} {reasons.of_border_elsewhere(answers)}".rstrip()
            ),
        ),
        _point(
            "dfa, accuracy",
            dfa,
            ACCURACY,
            lambda _: f"{reasons.of_accuracy(answers, 'dfa')} {reasons.of_draws(answers)}",
        ),
        _point("frozen, accuracy", frozen, ACCURACY, lambda _: reasons.of_accuracy(answers, "frozen")),
        _point("ep, accuracy", solved, ACCURACY, lambda _: reasons.of_solver(answers)),
        *(_bridge(b, m) for b in bridges for m in (ACCURACY, GAMMA, STATE, REFERENCE)),
        _point("bp, Γ", bp, GAMMA, reasons.of_gamma),
        _point("ep, Γ", solved, GAMMA, lambda ep: reasons.of_settling(ep, few_step)),
        _point("dfa, Γ", dfa, GAMMA, reasons.of_layer_0),
        _point("dfa, cosine of layer 0", dfa, LAYER_0, reasons.of_layer_0),
        _point(
            "dfa, cosine of deep layers",
            dfa,
            DEEP,
            off_by_one(offset.LAST, DEEP, reasons.of_layers, paper_row="dfa"),
        ),
        _point("dfa, ‖h_L‖", dfa, STATE, lambda _: reasons.of_scale(answers)),
        _point("dfa, ‖g_L‖", dfa, REFERENCE, reasons.of_batch),
        _point("bp, ‖g_L‖", bp, REFERENCE, reasons.of_batch),
        *of_dfa("‖g_L‖", REFERENCE, lambda _: reasons.of_batch),
        of_strong("‖g_L‖", REFERENCE, reasons.of_batch),
        *of_dfa("deep cosine", CLAMPED, _of_cosine),
        of_strong("deep cosine", CLAMPED, lambda answer: reasons.of_clamp(answer, strong.name)),
        _point("deep cosine", strong, controls.NULL[0], reasons.of_fresh, controls.FRESH),
        *of_dfa("ρ", RHO, _of_rho),
        _point(
            "ρ",
            strong,
            RHO,
            off_by_one(
                strong.name,
                RHO,
                lambda answer: reasons.of_penalised_rho(answers, answer, strong.name),
            ),
            strong.name,
        ),
        of_strong("‖h_L‖", STATE, lambda _: ""),
    ]
    return [_as_coded(answers, point) for point in points]


def _as_coded(answers: Answers, point: Point) -> Point:
    """With what the paper's public code gives of the same number, where it has one."""
    coded = as_coded.statement(answers, point.paper.row, point.measure)
    return replace(point, why=f"{point.why} {coded}".strip())


def _of_cosine(row: str) -> Why:
    return lambda answer: f"{reasons.of_clamp(answer, row)} {reasons.of_layers(answer)}"


def _of_rho(row: str) -> Why:
    return lambda answer: reasons.of_rho(answer, row)


def agreement_table(answers: Answers) -> Table:
    columns = (
        Column("number", ("what",), numeric=False),
        Column("paper", ("paper",)),
        Column("measured", ("measured",)),
        Column("seeds", ("seeds",)),
        Column("epochs", ("epochs",)),
        Column("standing", ("standing",), numeric=False),
        Column("as its public code has it", ("coded",)),
        Column("its standing", ("coded_standing",), numeric=False),
        Column("why", ("why",), numeric=False),
    )
    points = points_of(answers)
    rows = tuple(
        {
            "what": point.what,
            "paper": point.paper.text,
            "measured": point.measured,
            "seeds": len(point.answer.runs),
            "epochs": point.answer.runs[0].epoch if point.answer.runs else None,
            "standing": point.standing,
            **_coded(answers, point),
            "why": point.why,
        }
        for point in points
    )
    caption = (
        "All of the paper's numbers beside ours, and beside what its public code gives with one length for "
        f"each sample's credit{as_coded.seeds_told(answers)} (a dash: that is not known). Agrees: within "
        "two of the paper's deviations over seeds, a factor of three of an order of magnitude (by the "
        "median seed), a range, or .02 of what is given as about. Within our own spread: only within two "
        f"deviations of both together, which is no agreement. {tally(points)}"
    )
    fields = tuple(column.fields[0] for column in columns)
    return Table("agreement", caption, columns, fields, rows)


def _coded(answers: Answers, point: Point) -> Row:
    """The same number as the paper's public code gives it, where that has one."""
    same = as_coded.point_of(answers, point.paper.row, point.measure, public_code.BY_SAMPLE)
    if same is None:
        return {"coded": words.MISSING, "coded_standing": words.MISSING}
    return {"coded": same.measured, "coded_standing": same.standing}


def tally(points: Sequence[Point]) -> str:
    """How many stand how; what cannot be judged is counted too."""
    counts = Counter(map(_kind, points))
    return f"Of {len(points)} numbers " + ", ".join(f"{counts[k]} {k}" for k in _KINDS if counts[k]) + "."


_KINDS = (
    "agree",
    f"lie {BY_SPREAD}",
    "differ",
    "cannot be judged",
    "are of rules that are no reproduction",
    "have no finished run",
)


def _kind(point: Point) -> str:
    agree, by_spread, differ, unjudged, other, missing = _KINDS
    if not point.answer.runs:
        return missing
    if not point.comparable:
        return other
    if point.near:
        return by_spread
    if point.agrees:
        return agree
    return differ if point.judged else unjudged


_BRIDGE = "Our own reading of a name: no reproduction is claimed, and none is contradicted."


def _bridge(answer: Answer, measure: Measure) -> Point:
    why = _BRIDGE if measure is ACCURACY else ""
    point = _point(f"{answer.name}, {measure.header}", answer, measure, lambda _: why)
    return replace(point, comparable=False)


def _point(what: str, answer: Answer, measure: Measure, why: Why, row: str = "") -> Point:
    """The reasons are asked of the very runs that stand beside the paper's number."""
    row = row or what.split(",")[0]
    number = published(row, measure.paper)
    assert number is not None, (row, measure.paper)
    own = own_seeds(answer, number)
    return Point(what if row in what else f"{row}: {what}", number, own, measure, why(own))
