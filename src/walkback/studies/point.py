"""A number of the paper beside ours: whether it agrees, and what is known about why it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from walkback.report import words
from walkback.report.answer import Answer, Measure, over_seeds, spread_column
from walkback.report.published import Published
from walkback.report.table import Row


@dataclass(frozen=True)
class Point:
    """One number of the paper beside ours, and what is known about why they differ."""

    what: str
    paper: Published
    answer: Answer
    measure: Measure
    why: str = ""
    comparable: bool = True

    @property
    def measured(self) -> str:
        return spread_column("", "value", self.measure.show).cell(self._row)

    @property
    def standing(self) -> str:
        row = self._row
        if row["value_gap"]:
            return str(row["value_gap"])
        if not self.comparable:
            return "not a reproduction"
        return compare(self.paper, row["value"], row["value_sd"])

    @property
    def _row(self) -> Row:
        return over_seeds("value", self.answer, self.measure.read)


def compare(paper: Published, mean: float, sd: float | None) -> str:
    """`agrees` within two deviations over seeds, the paper's and ours together; within a factor of three
    of a number that the paper gives as an order of magnitude."""
    if "~" in paper.text:
        ratio = mean / paper.value
        return "agrees" if 1 / 3 <= ratio <= 3 else f"{words.number(ratio)} times the paper's"
    off = mean - min(max(mean, paper.value - paper.reach), paper.value + paper.reach)
    if paper.reach and off == 0:
        return "agrees"
    if paper.sd is None and sd is None:
        return f"off by {words.cosine(off)}; no spread to judge it by"
    agrees = abs(off) <= 2 * math.hypot(paper.sd or 0.0, sd or 0.0)
    return "agrees" if agrees else f"differs by {words.cosine(off)}"
