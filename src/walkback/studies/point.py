"""A number of the paper beside ours: whether it agrees, and what is known about why it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from walkback.judge.evidence import Evidence
from walkback.report import words
from walkback.report.answer import Answer, Measure, over_seeds, spread_column
from walkback.report.published import Published
from walkback.report.table import Row


@dataclass(frozen=True)
class Point:
    """One number of the paper beside ours, and what is known about why they differ.

    `void` says why what was read is no reading at all, where it is none.
    """

    what: str
    paper: Published
    answer: Answer
    measure: Measure
    why: str = ""
    comparable: bool = True
    void: str = ""

    @property
    def measured(self) -> str:
        """Mean ± deviation; beside an order of magnitude the median seed's, which is what is compared."""
        row = self._row
        if row["value_gap"] or not self.paper.rough:
            return spread_column("", "value", self.measure.show).cell(row)
        notes = ["median"] * (len(self.answer.runs) > 1)
        notes += [f"as over {self.paper.rows} rows"] * (self.paper.rows is not None)
        return self.measure.show(row["value_median"]) + f" ({', '.join(notes)})" * bool(notes)

    @property
    def standing(self) -> str:
        row = self._row
        if row["value_gap"]:
            return str(row["value_gap"])
        if not self.comparable:
            return "not a reproduction"
        if self.answer.diverged:
            return f"diverged in {self.answer.diverged} of {len(self.answer.runs)} seeds"
        if self.void:
            return self.void
        said = compare(self.paper, row["value_median" if self.paper.rough else "value"], row["value_sd"])
        return f"{said}{self._seeds_apart}" if self.paper.rough and said == AGREES else said

    @property
    def _seeds_apart(self) -> str:
        """The median may agree where seeds that differ by powers of ten do not."""
        values = [self._read(run) for run in self.answer.runs]
        near = sum(value is not None and compare(self.paper, value, None) == AGREES for value in values)
        return f", {near} of {len(values)} seeds" if near < len(values) else ""

    @property
    def judged(self) -> bool:
        """Whether there is a number of ours that can be held against the paper's."""
        said = self.standing
        return not (self._row["value_gap"] or self.answer.diverged or self.void or UNJUDGED in said)

    @property
    def agrees(self) -> bool:
        return self.standing.startswith(AGREES)

    @property
    def near(self) -> bool:
        """Neither agreement nor difference: our seeds lie too far apart to tell."""
        return self.standing == BY_SPREAD

    @property
    def _row(self) -> Row:
        return over_seeds("value", self.answer, self._read)

    def _read(self, run: Evidence) -> float | None:
        """Ours, mean-reduced over as many rows as the paper's where that is known."""
        value = self.measure.read(run)
        if value is None or self.paper.rows is None:
            return value
        return value * self.answer.batch / self.paper.rows


def own_seeds(answer: Answer, paper: Published) -> Answer:
    """The runs that stand beside a number: those of the seed that it names, where it names one."""
    return answer if paper.seed is None else answer.of_seeds({paper.seed})


AGREES = "agrees"
BY_SPREAD, UNJUDGED = "within our own spread", "no spread to judge it by"


def compare(paper: Published, value: float, sd: float | None) -> str:
    """`agrees` within two of the paper's deviations over seeds, or within a factor of three of a number
    that it gives as an order of magnitude. What only two deviations of both together reach lies within
    our own spread, which is no agreement: the wider ours is, the more lies in it."""
    if paper.rough:
        ratio = value / paper.value
        return AGREES if 1 / 3 <= ratio <= 3 else f"{words.number(ratio)} times the paper's"
    off = value - min(max(value, paper.value - paper.reach), paper.value + paper.reach)
    if paper.reach and off == 0:
        return AGREES
    if paper.sd is None and sd is None:
        return f"off by {words.cosine(off)}; {UNJUDGED}"
    theirs, ours = paper.sd or 0.0, sd or 0.0
    if abs(off) <= 2 * theirs:
        return AGREES
    return BY_SPREAD if abs(off) <= 2 * math.hypot(theirs, ours) else f"differs by {words.cosine(off)}"
