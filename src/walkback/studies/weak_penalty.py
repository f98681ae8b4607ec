"""`weak-penalty`: whether λ = 1e-4 gives back the scale alone or a direction too, in every reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from walkback.report import words
from walkback.report.answer import ACCURACY, EXACT, STATE, Answer, Line, measured_table
from walkback.report.table import Column, Table
from walkback.studies import border, encoding, offset, penalty, pixels, public_code, schedule
from walkback.studies.answers import Answers
from walkback.studies.controls import ALPHA, outside
from walkback.studies.effect import mean, seeds_of
from walkback.studies.five_rule import DEPTH
from walkback.studies.penalty_reduction import AVERAGED, ERROR_SUMMED, OFF_BY_ONE, read_as

RULE, DEEP = penalty.RULES["dfa"][1], range(1, DEPTH + 1)
AVERAGES = {
    AVERAGED: "the penalty averaged over features",
    ERROR_SUMMED: "the penalty averaged, the error summed over the batch",
    OFF_BY_ONE: "the penalty averaged, an index that is off by one",
}
HEADLINE, NONE = "as in the headline", "without the penalty"


def readings(answers: Answers) -> list[tuple[str, Answer]]:
    """The headline's own, the same net without a penalty, then one change after the other."""
    without, weak = answers.of(penalty.ARM, ("dfa", RULE))
    return [
        (NONE, without),
        (HEADLINE, weak),
        ("a border of the mean colour", answers.one(border.SHORT, RULE)),
        ("lossless images", answers.one(encoding.SHORT, RULE)),
        ("pixels that are not normalised", answers.one(pixels.ARM, RULE)),
        ("a constant rate", answers.one(schedule.SHORT, RULE)),
        *((told, read_as(answers, penalty.WEIGHTS[0], reading)) for reading, told in AVERAGES.items()),
        ("an index that is off by one", offset.read_as(answers, offset.WEAK, offset.LABEL)),
        *(
            (f"block, index and length of the {name}", public_code.read_as(answers, offset.WEAK, name))
            for name in public_code.READINGS[1:]
        ),
    ]


def weak_penalty_table(answers: Answers) -> Table:
    lines = [
        Line({"reading": told, "outside": outside(answer, DEEP), **penalty.depth_of(answer)}, answer)
        for told, answer in readings(answers)
    ]
    caption = (
        "DFA under the smaller penalty, λ = 1e-4, after 30 epochs: does it give back a sound scale alone, "
        "or a direction too? Beyond fresh feedback: in how many readings, one for each of the layers 1 to "
        f"{DEPTH} of each seed, the credit lies above or below 199 draws of it, p ≤ {ALPHA:g} two-sided; "
        "a dash where that was not measured."
    )
    lead = [Column("reading or change", ("reading",), numeric=False)]
    tail = (Column("beyond fresh feedback", ("outside",), numeric=False), *penalty.DEPTH)
    measures = [replace(ACCURACY, paper=""), replace(STATE, paper=""), EXACT]
    return measured_table("weak-penalty", caption, lines, lead, measures, tail)


def statement(answers: Answers) -> str:
    """What it does to the scale and to the direction, and which change comes nearest to no direction."""
    (_, without), (_, weak), *changed = readings(answers)
    if not weak.runs:
        return f"What {weak.name} does to scale and direction: {weak.gap} (walkback audit penalty)."
    said = f"Under {weak.name} ‖h_L‖ is {_told(weak)}"
    said += f"; without the penalty {_told(without)}." if without.runs else "."
    ran = [(told, answer) for told, answer in changed if mean(answer, EXACT) is not None]
    shifted = "Where an index is off, the credit that is read at a layer is not the one that trained it."
    return f"{said} {_nearest(ran)} {shifted}" if ran else said


def _told(answer: Answer) -> str:
    beyond = outside(answer, DEEP)
    size = words.median_of([STATE.read(run) for run in answer.runs])
    readings_of = f", {beyond}" if beyond else ""
    return (
        f"{words.number(size)}, the exact deep cosine {words.cosine(mean(answer, EXACT))} "
        f"({seeds_of(answer)}{readings_of})"
    )


def _nearest(ran: Sequence[tuple[str, Answer]]) -> str:
    told, answer = min(ran, key=lambda pair: abs(mean(pair[1], EXACT) or 0.0))
    return (
        f"Of {words.plural(len(ran), 'other reading')} the nearest to no direction is “{told}”: ‖h_L‖ "
        f"{_told(answer)}."
    )
