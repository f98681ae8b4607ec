"""The paper's numbers as its public code gives them: points to be judged, and what is said of them."""

from __future__ import annotations

from walkback.report import words
from walkback.report.answer import RHO, Measure
from walkback.report.published import published
from walkback.studies import controls, five_rule, offset
from walkback.studies.answers import Answers
from walkback.studies.controls import outside
from walkback.studies.effect import mean, seeds_of
from walkback.studies.perturbation_step import by_fixed_step
from walkback.studies.point import Point, own_seeds
from walkback.studies.printed import come_out, printed
from walkback.studies.public_code import (
    BY_SAMPLE,
    OURS,
    PENALTIES,
    READINGS,
    ROWS,
    STUDY,
    read_as,
    readings_of,
    shown_and_used,
)


def statement(answers: Answers, row: str, measure: Measure) -> str:
    """What the public code's readings give of a number of the paper; empty where there is none."""
    points = {
        name: point_of(answers, row, measure, reading)
        for name, reading in readings_of(row).items()
        if reading != OURS
    }
    told = [f"{name}: {_standing(point)}" for name, point in points.items() if point is not None]
    return f"As in the paper's {'; '.join(told)}." if told else ""


def point_of(answers: Answers, row: str, measure: Measure, reading: str) -> Point | None:
    """A number of the paper beside what a reading of its public code gives; None where that has no such
    row. The fresh feedback of the notes is that of the penalised net."""
    paper = published(row, measure.paper)
    row = offset.STRONG if row == controls.FRESH else row
    if paper is None or row not in ("dfa", *ROWS):
        return None
    return _as_it_reads(Point(row, paper, own_seeds(read_as(answers, row, reading), paper), measure))


def _standing(point: Point) -> str:
    if not point.answer.runs:
        return f"{point.answer.gap} (walkback audit {STUDY.name} decides it)"
    return f"{point.measured} ({seeds_of(point.answer)}), {point.standing}"


def points(answers: Answers, reading: str) -> list[Point]:
    """Every number that the paper prints of backprop, DFA and frozen blocks, in one reading."""
    rows = ("dfa", *ROWS)
    found = printed(lambda row: read_as(answers, row, reading) if row in rows else None)
    return found if reading == OURS else list(map(_as_it_reads, found))


def _as_it_reads(point: Point) -> Point:
    """ρ by the public code's own step."""
    return by_fixed_step(point) if point.measure is RHO else point


def seeds_told(answers: Answers) -> str:
    """`, 3 seeds`, or how many of its numbers have how many."""
    counts = sorted(
        {len(point.answer.runs) for point in points(answers, BY_SAMPLE) if not point.paper.seed}
    )
    many = " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))
    return f", {many} seed{'s' * (counts[-1] != 1)}"


def hidden_by_the_index(answers: Answers) -> str:
    """What the credit that trained has and the one that is shown has not, where the penalty is weak."""
    weight = PENALTIES[offset.WEAK]
    shown, used = shown_and_used(answers, weight)
    if not (shown.runs and used.runs):
        return f"What the credit has that trained: {used.gap or shown.gap} (walkback audit {STUDY.name})."
    first = offset.COSINES[1]
    rest = words.listed([words.cosine(mean(used, one)) for one in offset.COSINES[2:]])
    deeper = outside(used, range(2, five_rule.DEPTH + 1))
    return (
        "In the reading of the public code the credit that is shown at a layer below the last is not the "
        f"one that its block learned from. Under λ = {weight} the exact cosine at layer 1 is "
        f"{words.cosine(mean(shown, first))} as it is shown and {words.cosine(mean(used, first))} as it "
        f"trained; at layers 2 to {five_rule.DEPTH} that which trained has {rest} "
        f"({seeds_of(used)}{', ' * bool(deeper)}{deeper}). A mean over deep layers as they are shown does "
        "not tell a first block that has a direction from one that has none."
    )


def finding(answers: Answers) -> str:
    """How many of the paper's numbers come out in each reading, and which do not in the nearest."""
    told = "; ".join(f"{reading}: {come_out(points(answers, reading))}" for reading in READINGS)
    count = f"{len(points(answers, OURS))} numbers (without fresh B)"
    apart = [
        f"{point.what}, {point.measure.header} ({point.standing})"
        for point in points(answers, BY_SAMPLE)
        if point.judged and not (point.agrees or point.near)
    ]
    left = f" By sample these do not: {'; '.join(apart)}." * bool(apart)
    return (
        f"Of the {count} that the paper prints of backprop, DFA and frozen blocks, so many come "
        f"out as we read the paper and as its public code has it. {told}.{left} The code was read after "
        "ours had missed the numbers. Its notes say rms-normalised, and not whether by sample or by batch: "
        "by sample was given three seeds, and by batch one, because its first runs came nearer, which is a "
        "choice by outcome. That the penalty is summed over features is our reading. ρ is read by the step "
        "of each."
    )
