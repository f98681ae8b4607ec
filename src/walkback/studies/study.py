"""What a study is: a question, the runs that answer it, and the tables it is read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from walkback.core.spec import Call, RunSpec
from walkback.data import Dataset, load_dataset
from walkback.judge.assemble import Judged
from walkback.report.content import Chapter
from walkback.report.tables import Column, Table
from walkback.run.plan import plan_runs

SEEDS = (42, 123, 456)
STATES = ("finished", "diverged", "running", "not run")


@dataclass(frozen=True)
class Arm:
    """Rules × seeds under one recipe. What is not said is `walkback train`'s default."""

    rules: tuple[str, ...]
    net: str
    data: str
    seeds: tuple[int, ...] = SEEDS
    recipe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """`tables` are the study's own, made from the verdicts that are there; a missing run leaves a gap."""

    name: str
    question: str
    arms: tuple[Arm, ...]
    ours: str = ""
    tables: Callable[[Sequence[Judged]], Sequence[Table]] = lambda judged: ()

    def load(self, location: str | None = None) -> dict[str, Dataset]:
        """Every data set its arms name, read once; `location` is for those that lie in a folder."""
        return {name: load_dataset(Call.parse(name), location) for name in {arm.data for arm in self.arms}}

    def runs(self, data: Mapping[str, Dataset]) -> list[RunSpec]:
        """Every run once, first seeds first: a stopped study has whole seeds rather than whole rules."""
        planned = [
            (arm.seeds.index(spec.seed), spec)
            for arm in self.arms
            for spec in plan_runs(
                net=arm.net,
                rules=arm.rules,
                seeds=arm.seeds,
                data=arm.data,
                dataset=data[arm.data],
                **arm.recipe,
            )
        ]
        return list(dict.fromkeys(spec for _, spec in sorted(planned, key=lambda pair: pair[0])))

    def chapter(self, judged: Sequence[Judged], states: Mapping[RunSpec, str]) -> Chapter:
        """The study's part of the report: its own tables, then which of its runs are there."""
        return Chapter(self.question, self.ours, [*self.tables(judged), run_rows(states)])


def run_rows(states: Mapping[RunSpec, str]) -> Table:
    """One row per rule and recipe, with the number of seeds in each state; `not run` is a state too."""
    counted: dict[tuple[str, str, int, str], Counter[str]] = {}
    for spec, state in states.items():
        key = (str(spec.rule), spec.net.name, spec.epochs, spec.schedule)
        counted.setdefault(key, Counter())[state] += 1
    fields = ("rule", "net", "epochs", "schedule", *STATES)
    rows = [
        dict(zip(fields, (*key, *(counts[state] for state in STATES)), strict=True))
        for key, counts in counted.items()
    ]
    columns = tuple(Column(name, (name,), numeric=name in ("epochs", *STATES)) for name in fields)
    caption = "Every run of the study, by how far it is: the number of seeds in each state."
    return Table("runs", caption, columns, fields, tuple(rows))
