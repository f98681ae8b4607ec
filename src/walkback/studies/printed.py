"""How many of the numbers that the paper prints come out of some runs: one count for all who ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from walkback.report import words
from walkback.report.answer import ACCURACY, CLAMPED, GAMMA, NOT_RUN, REFERENCE, RHO, STATE, Answer, gap_of
from walkback.report.published import NUMBERS
from walkback.studies.five_rule import DEEP, LAYER_0
from walkback.studies.point import BY_SPREAD, Point, own_seeds

MEASURES = {m.paper: m for m in (ACCURACY, GAMMA, STATE, REFERENCE, CLAMPED, RHO, LAYER_0, DEEP)}


def printed(answer_of: Callable[[str], Answer | None]) -> list[Point]:
    """Each number of a row that has runs to stand beside it, with the seed that the paper names."""
    points = []
    for number in NUMBERS:
        answer = answer_of(number.row)
        if answer is not None:
            points.append(Point(number.row, number, own_seeds(answer, number), MEASURES[number.quantity]))
    return points


def come_out(points: Sequence[Point]) -> str:
    """`3 of 9, 1 more within our own spread; 2 cannot be judged, 1 not run (1 to 3 seeds)`."""
    ran = [point for point in points if point.answer.runs]
    if not ran:
        return gap_of([point.answer for point in points])
    wide, lost = sum(p.near for p in ran), sum(bool(p.answer.diverged) for p in ran)
    notes = {
        "cannot be judged": sum(not (p.judged or p.answer.diverged) for p in ran),
        "diverged": lost,
        NOT_RUN: len(points) - len(ran),
    }
    apart = ", ".join(f"{count} {what}" for what, count in notes.items() if count)
    told = f"{sum(p.agrees for p in ran)} of {len(points)}"
    told += f", {wide} more {BY_SPREAD}" * bool(wide)
    told += f"; {apart}" * bool(apart)
    fewest, most = (extreme(len(point.answer.runs) for point in ran) for extreme in (min, max))
    return f"{told} ({f'{fewest} to ' * (fewest < most)}{words.plural(most, 'seed')})"
