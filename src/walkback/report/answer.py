"""What a study asked for and what a store answers: one rule under one recipe, run or not run.

Comparisons with the paper are tables of answers. A run that is missing, or not at its end, is a cell
that says so; it is never a zero and its row is never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from walkback.judge.assemble import Case, Judged
from walkback.judge.evidence import Evidence
from walkback.report import words
from walkback.report.published import published
from walkback.report.table import Column, Row, Table
from walkback.store import Bundle

NOT_RUN, RUNNING = "not run", "running"
ABSENT = (NOT_RUN, RUNNING)  # what stands where no seed came to its end
Read = Callable[[Evidence], float | None]


@dataclass(frozen=True)
class Answer:
    """`case` holds the seeds that came to their end; None if none did. `spec` is the recipe asked for."""

    name: str
    spec: Mapping[str, Any]
    planned: int
    running_seeds: frozenset[int] = frozenset()
    case: Case | None = None

    @property
    def running(self) -> int:
        return len(self.running_seeds)

    @property
    def runs(self) -> list[Evidence]:
        return [] if self.case is None else self.case.runs

    @property
    def bundles(self) -> list[Bundle]:
        return [] if self.case is None else self.case.bundles

    @property
    def gap(self) -> str:
        """Why there is nothing to show; empty if there is something."""
        return "" if self.runs else RUNNING if self.running else NOT_RUN

    @property
    def diverged(self) -> int:
        """How many of its seeds ended because their numbers were no longer any."""
        return sum(run.status.get("state") == "diverged" for run in self.runs)

    @property
    def batch(self) -> int:
        """The rows of the evaluation batch, over which our own gradients are mean-reduced; ask for `runs`
        first."""
        rows = self.bundles[0].card["measured"]["batch"]
        assert isinstance(rows, int)
        return rows

    @cached_property
    def artifact(self) -> Judged | None:
        return None if self.case is None else self.case.judge()

    @property
    def verdict(self) -> str:
        """In the words of a table; a baseline gets none, and a run that is not there is said not to be."""
        if self.artifact is None:
            return self.gap
        return "baseline" if self.artifact.role == "baseline" else self.artifact.verdict.verdict

    @cached_property
    def paper(self) -> Judged | None:
        return None if self.case is None else self.case.judge(logic="paper")

    @property
    def recipe(self) -> str:
        spec = self.spec
        return f"{spec['epochs']} epochs, {spec['schedule']}, batch {spec['batch']}, rate {spec['lr']:g}"

    def at(self, epoch: int) -> Answer:
        """The same runs as they were at an epoch; a run that was not measured then has no numbers."""
        if self.case is None:
            return self
        runs = [
            replace(run, epoch=epoch, accuracy=run.measurements.number("accuracy.test@1", epoch))
            for run in self.runs
        ]
        return replace(self, case=replace(self.case, runs=runs))

    def beside(self, other: Answer) -> Answer:
        """The runs of those seeds alone that another answer has too; all of them if it has none.

        No more are asked for than the other asks for.
        """
        seeds = {run.seed for run in other.runs}
        few = self.of_seeds(seeds) if seeds else self
        return replace(few, planned=min(self.planned, other.planned))

    def of_seeds(self, seeds: Container[int | None]) -> Answer:
        kept = [place for place, run in enumerate(self.runs) if run.seed in seeds]
        running = frozenset(seed for seed in self.running_seeds if seed in seeds)
        case = self.case.only(kept) if self.case is not None and kept else None
        return replace(self, case=case, running_seeds=running)


def gap_of(answers: Sequence[Answer]) -> str:
    """Why none of them has anything to show."""
    return RUNNING if any(answer.running for answer in answers) else NOT_RUN


@dataclass(frozen=True)
class Measure:
    """A measured column: how it is read off a run and shown. `paper` names what stands beside it."""

    header: str
    key: str
    read: Read
    show: Callable[[float | None], str] = words.number
    unit: str = ""
    paper: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        beside = tuple(f"{self.key}_{part}" for part in _PUBLISHED) if self.paper else ()
        return (*beside, *(self.key + part for part in _SPREAD))

    @property
    def columns(self) -> tuple[Column, ...]:
        own = spread_column(self.header, self.key, self.show, self.unit)
        return (Column(f"{self.header}, paper", (f"{self.key}_text",)), own) if self.paper else (own,)

    def cells(self, answer: Answer, row: str) -> Row:
        """The paper's number in its own spelling, and the mean over seeds or why there is none."""
        measured = over_seeds(self.key, answer, self.read)
        if not self.paper:
            return measured
        number = published(row, self.paper)
        key, text = self.key, "" if number is None else number.shown
        printed = (None,) * 3 if number is None else (number.value, number.sd, number.where)
        beside = {f"{key}_{part}": value for part, value in zip(_PUBLISHED, printed, strict=True)}
        return {**beside, f"{key}_text": text, **measured}


_PUBLISHED = ("paper", "paper_sd", "paper_where")


@dataclass(frozen=True)
class SeedBySeed(Measure):
    """A column that a mean would make meaningless, as of p-values: every seed's own, or the one of all."""

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.key, f"{self.key}_gap")

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.header, self.fields, lambda shown, gap: gap or shown, self.unit),)

    def cells(self, answer: Answer, row: str) -> Row:
        shown = [self.show(self.read(run)) for run in answer.runs]
        each = shown[:1] if len(set(shown)) == 1 else shown
        gap = over_seeds(self.key, answer, self.read)[f"{self.key}_gap"]
        return {self.key: "" if gap else ", ".join(each), f"{self.key}_gap": gap}


@dataclass(frozen=True)
class Line:
    """A row: what it is called, whose runs it shows, and which row of the paper it stands beside."""

    label: Row
    answer: Answer
    paper: str = ""


def uneven(lines: Sequence[Line]) -> str:
    """A sentence for a caption whose rows ask to be subtracted, where they are not of the same seeds."""
    seeds = {tuple(sorted(str(run.seed) for run in line.answer.runs)) for line in lines if line.answer.runs}
    return " Not all rows have the same seeds yet." if len(seeds) > 1 else ""


def measured_table(
    name: str,
    caption: str,
    lines: Sequence[Line],
    lead: Sequence[Column],
    measures: Sequence[Measure],
    tail: Sequence[Column] = (),
) -> Table:
    """Paper and measured side by side; `lead` and `tail` show the lines' own labels around the numbers."""
    columns = (*lead, *(c for measure in measures for c in measure.columns), *tail, *_ORIGIN)
    labels = tuple(dict.fromkeys(field for column in (*lead, *tail) for field in column.fields))
    fields = (*labels, *(field for measure in measures for field in measure.fields), *_ORIGIN_FIELDS)
    rows = [
        {
            **line.label,
            **{k: v for measure in measures for k, v in measure.cells(line.answer, line.paper).items()},
            **_origin(line.answer),
        }
        for line in lines
    ]
    return Table(name, caption, columns, fields, tuple(rows))


def over_seeds(key: str, answer: Answer, read: Read) -> Row:
    """Mean, standard deviation (n − 1) and median over seeds, or in words why there is none."""
    values = [read(run) for run in answer.runs]
    gap = answer.gap or words.gaps([_gap(value) for value in values])
    spread = (words.mean_of(values), words.sd_of(values), words.median_of(values))
    found = (*((None,) * len(spread) if gap else spread), gap)
    return {key + part: value for part, value in zip(_SPREAD, found, strict=True)}


def _gap(value: float | None) -> str:
    if value is None:
        return "not measured"
    return "not a number" if math.isnan(value) else ""


_SPREAD = ("", "_sd", "_median", "_gap")


def spread_column(header: str, key: str, show: Callable[[float | None], str], unit: str = "") -> Column:
    """`mean ± deviation`, or why there is none; of sizes that differ by much also the median seed's, for
    the mean of powers of ten is the largest of them, and verdicts go by the median."""

    def cell(mean: float | None, sd: float | None, median: float | None, gap: str) -> str:
        shown = gap or words.spread(show(mean), show(sd).lstrip("+"))
        if gap or mean is None or sd is None or show is not words.number or sd <= abs(mean) / 2:
            return shown
        return f"{shown} (median {show(median)})"

    return Column(header, tuple(key + part for part in _SPREAD), cell, unit)


def accuracy(run: Evidence) -> float | None:
    return run.accuracy


def of_net(quantity: str) -> Read:
    """None if it was never measured, NaN if it was and is not a number."""
    return lambda run: run.value(quantity)


def at_layer(quantity: str, layer: int = -1) -> Read:
    """At one layer; −1 is the deepest."""

    def read(run: Evidence) -> float | None:
        layers = run.measurements.layers(run.epoch)
        return run.value(quantity, layers[layer]) if layers else None

    return read


def deep_mean(quantity: str) -> Read:
    """The mean over layers 1 … L; if one of them has no number, it has none either."""

    def read(run: Evidence) -> float | None:
        values = [run.value(quantity, layer) for layer in run.measurements.layers(run.epoch)[1:]]
        lost = any(value is not None and math.isnan(value) for value in values)
        return math.nan if lost else words.mean_of(values)

    return read


# What most comparisons show. ‖g_L‖ is mean-reduced over the evaluation batch, the paper's over its
# own: a Point compares them over the same.
ACCURACY = Measure("accuracy", "accuracy", accuracy, words.share, paper="accuracy")
GAMMA = Measure("Γ", "gamma", of_net("alignment.gamma_mean@1"), words.cosine, paper="gamma")
GAMMA_CONCAT = Measure("Γ, concatenated", "gamma_concat", of_net("alignment.gamma_concat@1"), words.cosine)
STATE = Measure("‖h_L‖", "state", at_layer("scale.state_norm@1"), paper="state norm")
REFERENCE = Measure("‖g_L‖", "reference", of_net("reference.compat@1"), paper="reference norm")
GROWTH = Measure("D1 growth", "growth", of_net("scale.growth_max@1"))
TOTAL_GROWTH = Measure("total growth", "total", of_net("scale.growth_total@1"))
VALIDITY = Measure("D2 r/128", "validity", of_net("reference.validity@1"))
CLAMPED = Measure(
    "deep cosine, clamped",
    "clamped",
    deep_mean("alignment.cosine_compat@1"),
    words.cosine,
    paper="deep cosine",
)
EXACT = Measure("deep cosine, exact", "exact", of_net("alignment.deep_cosine@1"), words.cosine)
RHO = Measure("deep ρ", "rho", deep_mean("perturbation.rho@1"), words.cosine, paper="rho")
CEILING = Measure("ρ ceiling", "ceiling", deep_mean("perturbation.ceiling@1"), words.cosine)
NULL_P = SeedBySeed("null p", "null_p", of_net("alignment.deep_null_p@1"))

_ORIGIN_FIELDS = ("seeds", "planned", "running", "diverged", "recipe", "runs")


def _origin(answer: Answer) -> Row:
    """Where a row's numbers come from: how many seeds, which recipe, which runs."""
    return {
        "seeds": len(answer.runs),
        "planned": answer.planned,
        "running": answer.running,
        "diverged": answer.diverged,
        "recipe": answer.recipe,
        "runs": " ".join(bundle.id for bundle in answer.bundles),
    }


def _show_seeds(seeds: int, planned: int, running: int, diverged: int) -> str:
    shown = f"{seeds}" if seeds >= planned else f"{seeds} of {planned}"
    notes = [f"{running} running"] * bool(running) + [f"{diverged} diverged"] * bool(diverged)
    return f"{shown} ({', '.join(notes)})" if notes else shown


_ORIGIN = (
    Column("seeds", ("seeds", "planned", "running", "diverged"), _show_seeds),
    Column("recipe", ("recipe",), numeric=False),
    Column("runs", ("runs",), numeric=False),
)
