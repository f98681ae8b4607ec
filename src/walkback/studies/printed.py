"""How many of the numbers that the paper prints come out of some runs: one count for all who ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from walkback.report import words
from walkback.report.answer import ACCURACY, CLAMPED, GAMMA, REFERENCE, RHO, STATE, Answer, gap_of
from walkback.report.published import NUMBERS
from walkback.studies.five_rule import DEEP, LAYER_0
from walkback.studies.point import BY_SPREAD, Point

MEASURES = {m.paper: m for m in (ACCURACY, GAMMA, STATE, REFERENCE, CLAMPED, RHO, LAYER_0, DEEP)}


def printed(answer_of: Callable[[str], Answer | None]) -> list[Point]:
    """Each number of a row that has runs to stand beside it, with the seed that the paper names."""
    points = []
    for number in NUMBERS:
        answer = answer_of(number.row)
        if answer is not None:
            own = answer if number.seed is None else answer.of_seeds({number.seed})
            points.append(Point(number.row, number, own, MEASURES[number.quantity]))
    return points


def come_out(points: Sequence[Point]) -> str:
    """`3 of 9, 1 more within our own spread; 2 cannot be judged (1 to 3 seeds)`."""
    ran = [point for point in points if point.answer.runs]
    if not ran:
        return gap_of([point.answer for point in points])
    unknown, wide = sum(not p.judged for p in points), sum(p.near for p in ran)
    told = f"{sum(p.agrees for p in ran)} of {len(points)}"
    told += f", {wide} more {BY_SPREAD}" * bool(wide)
    told += f"; {unknown} cannot be judged" * bool(unknown)
    fewest, most = (extreme(len(point.answer.runs) for point in ran) for extreme in (min, max))
    return f"{told} ({f'{fewest} to ' * (fewest < most)}{words.plural(most, 'seed')})"
