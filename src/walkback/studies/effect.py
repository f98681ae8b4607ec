"""What one change is worth: runs that have it beside runs that differ in nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from walkback.report import words
from walkback.report.answer import ACCURACY, Answer, Measure
from walkback.report.published import Published
from walkback.studies.point import AGREES, BY_SPREAD, Point


class Control(NamedTuple):
    """A change, the runs with it and those without it, and the studies that make the two."""

    change: str
    changed: Answer
    main: Answer
    study: str
    main_study: str

    def told(self) -> str:
        """Accuracy with the change and without it, over the seeds that both have."""
        if self.changed.runs and not self.main.runs:
            missing = f"(walkback audit {self.main_study})"
            return f"{self.change}: run, but not what it is compared with {missing}."
        if not self.changed.runs:
            return f"{self.change}: {self.changed.gap} (walkback audit {self.study} decides it)."
        pairs = paired(self.changed, self.main, ACCURACY)
        if not pairs:
            return f"{self.change}: run, but with no seed that could be compared."
        one, other = (words.mean_of([pair[side] for pair in pairs]) for side in (0, 1))
        assert one is not None and other is not None
        return (
            f"{self.change} gives {fine(one)} instead of {fine(other)} after {self._epochs} epochs "
            f"({words.plural(len(pairs), 'seed')}{self._lost}): {words.points(one - other)} pp."
        )

    @property
    def _lost(self) -> str:
        """A run that diverged keeps the accuracy it had then, which is no accuracy of the rule."""
        sides = {"changed": (self.changed, self.main), "unchanged": (self.main, self.changed)}
        lost = {side: one.beside(other).diverged for side, (one, other) in sides.items()}
        return "".join(f", {count} {side} diverged" for side, count in lost.items() if count)

    @property
    def _epochs(self) -> str:
        lengths = dict.fromkeys((self.changed.spec["epochs"], self.main.spec["epochs"]))
        return " instead of ".join(map(str, lengths))

    def brief(self) -> str:
        """`a constant rate (100 epochs, 1 seed)`."""
        seeds = words.plural(len(self.changed.runs), "seed")
        return f"{self.change[:1].lower()}{self.change[1:]} ({self.changed.spec['epochs']} epochs, {seeds})"


def told(controls: Sequence[Control], paper: Published) -> str:
    """Every change, and at the end which of them, alone, gives the paper's number.

    Where the same seeds have it without the change too, the change is not what gives it.
    """
    ran = [control for control in controls if paired(control.changed, control.main, ACCURACY)]
    said = " ".join(dict.fromkeys(control.told() for control in controls))
    if not ran:
        return said
    having = [control for control in ran if _has(control.changed, paper)]
    idle = [control for control in having if _has(control.main.beside(control.changed), paper)]
    giving = [control for control in having if control not in idle]
    if giving:
        said += f" The paper's number is what comes of {_listed(giving)}."
    if idle:
        said += f" Seeds that have the paper's number with {_listed(idle)} have it without that too."
    if having:
        return said
    which = "these changes" if len(ran) == len(controls) else "those that were run"
    near = [c for c in ran if _near(c.changed, paper) and not _near(c.main.beside(c.changed), paper)]
    but = f" by the paper's spread; with {BY_SPREAD}, {_listed(near)} does" if near else ""
    return f"{said} None of {which} gives the paper's number{but}."


def _has(answer: Answer, paper: Published) -> bool:
    return Point("", paper, answer, ACCURACY).standing == AGREES


def _near(answer: Answer, paper: Published) -> bool:
    """Whether it agrees with our own spread counted in, which is less."""
    return Point("", paper, answer, ACCURACY).agrees


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
