"""What one change is worth: runs that have it beside runs that differ in nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from walkback.report import words
from walkback.report.answer import ACCURACY, Answer, Measure
from walkback.report.published import Published
from walkback.studies.point import AGREES, BY_SPREAD, Point

YES, IDLE, NEAR, NO = "yes", "as without it", BY_SPREAD, "no"


class Control(NamedTuple):
    """A change, the runs with it and those without it, and the studies that make the two."""

    change: str
    changed: Answer
    main: Answer
    study: str
    main_study: str

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Accuracy with the change and without it, for the seeds that have both."""
        return paired(self.changed, self.main, ACCURACY)

    @property
    def gap(self) -> str:
        """Why there is nothing to compare; empty if there is something."""
        if not self.changed.runs:
            return f"{self.changed.gap} (walkback audit {self.study} decides it)"
        if not self.main.runs:
            return f"run, but not what it is compared with (walkback audit {self.main_study})"
        return "" if self.pairs else "run, but with no seed that could be compared"

    @property
    def means(self) -> tuple[float, float]:
        """With the change and without it; ask for `gap` first."""
        one, other = (words.mean_of([pair[side] for pair in self.pairs]) for side in (0, 1))
        assert one is not None and other is not None
        return one, other

    def told(self) -> str:
        """The same as a sentence."""
        if self.gap:
            return f"{self.change}: {self.gap}."
        one, other = self.means
        return (
            f"{self.change} gives {fine(one)} instead of {fine(other)} after {self.epochs} epochs "
            f"({words.plural(len(self.pairs), 'seed')}{self.lost}): {words.points(one - other)} pp."
        )

    @property
    def lost(self) -> str:
        """A run that diverged keeps the accuracy it had then, which is no accuracy of the rule."""
        sides = {"changed": (self.changed, self.main), "unchanged": (self.main, self.changed)}
        lost = {side: one.beside(other).diverged for side, (one, other) in sides.items()}
        return "".join(f", {count} {side} diverged" for side, count in lost.items() if count)

    @property
    def epochs(self) -> str:
        lengths = dict.fromkeys((self.changed.spec["epochs"], self.main.spec["epochs"]))
        return " instead of ".join(map(str, lengths))

    def brief(self) -> str:
        """`a constant rate (100 epochs, 1 seed)`."""
        seeds = words.plural(len(self.changed.runs), "seed")
        return f"{self.change[:1].lower()}{self.change[1:]} ({self.changed.spec['epochs']} epochs, {seeds})"


def giving(control: Control, paper: Published) -> str:
    """Whether a change gives the paper's number.

    Where the same seeds have it without the change too, the change is not what gives it.
    """
    with_it, without = control.changed, control.main.beside(control.changed)
    if _has(with_it, paper):
        return IDLE if _has(without, paper) else YES
    return NEAR if _near(with_it, paper) and not _near(without, paper) else NO


def summary(controls: Sequence[Control], paper: Published) -> str:
    """Which of the changes, alone, gives the paper's number, or that none does."""
    ran = [control for control in controls if not control.gap]
    if not ran:
        return ""
    by: dict[str, list[Control]] = {}
    for control in ran:
        by.setdefault(giving(control, paper), []).append(control)
    said = []
    if YES in by:
        said.append(f"What gives the paper's number, each by itself: {_listed(by[YES])}.")
    if IDLE in by:
        said.append(f"With {_listed(by[IDLE])} the same seeds agree, as they do without.")
    if not said:
        which = "these changes" if len(ran) == len(controls) else "those that were run"
        near = f"; {BY_SPREAD} of it: {_listed(by[NEAR])}" if NEAR in by else ""
        said.append(f"None of {which} gives the paper's number{near}.")
    return " ".join(said)


def _has(answer: Answer, paper: Published) -> bool:
    return Point("", paper, answer, ACCURACY).standing == AGREES


def _near(answer: Answer, paper: Published) -> bool:
    """Whether it agrees, or our own seeds lie too far apart to tell, which is less."""
    point = Point("", paper, answer, ACCURACY)
    return point.agrees or point.near


def _listed(controls: Sequence[Control]) -> str:
    return words.listed([control.brief() for control in controls])


def paired(one: Answer, other: Answer, measure: Measure) -> list[tuple[float, float]]:
    """A measure of both, for the seeds that both have."""
    theirs = {run.seed: measure.read(run) for run in other.runs}
    found = [(measure.read(run), theirs.get(run.seed)) for run in one.runs]
    pairs = [(a, b) for a, b in found if a is not None and b is not None]
    return [pair for pair in pairs if not any(map(math.isnan, pair))]


def fine(share: float) -> str:
    """With one digit more than tables have, so that a reader's subtraction gives the difference."""
    return f"{share:.4f}".removeprefix("0")


def mean(answer: Answer, measure: Measure) -> float | None:
    """Over its seeds; None where one of them has no number."""
    found = words.mean_of([measure.read(run) for run in answer.runs])
    return None if found is None or math.isnan(found) else found


def seeds_of(answer: Answer) -> str:
    return words.plural(len(answer.runs), "seed")
