"""What a study is: a question, the runs that answer it, and the tables and figures it is read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from walkback.core.errors import BadInput
from walkback.core.spec import Call, RunSpec
from walkback.data import Dataset, lies_in_files, load_dataset
from walkback.report.document import Chapter, Drawing
from walkback.report.table import Column, Table
from walkback.run.plan import Identified, plan_runs
from walkback.studies.answers import NOT_IN_STORE, Answers

SEEDS = (42, 123, 456)
STATES = ("finished", "diverged", "running", "not run")


@dataclass(frozen=True)
class Arm:
    """Rules × seeds under one recipe. What is not said is `walkback train`'s default.

    `full` names the epochs whose checkpoints are measured in full after training. An `optional` arm is
    left as it is where its data set is not at hand.
    """

    rules: tuple[str, ...]
    net: str
    data: str
    seeds: tuple[int, ...] = SEEDS
    recipe: Mapping[str, Any] = field(default_factory=dict)
    full: tuple[int, ...] = ()
    optional: bool = False

    def plan(self, dataset: Identified) -> list[RunSpec]:
        return plan_runs(
            net=self.net,
            rules=self.rules,
            seeds=self.seeds,
            data=self.data,
            dataset=dataset,
            **self.recipe,
        )


@dataclass(frozen=True)
class Study:
    """`tables` and `figures` are its own, made from what a store answers; a missing run is a gap."""

    name: str
    question: str
    arms: tuple[Arm, ...]
    ours: str = ""
    tables: Callable[[Answers], Sequence[Table]] = lambda answers: ()
    figures: Callable[[Answers], Sequence[Drawing]] = lambda answers: ()

    def load(self, location: str | None = None) -> tuple[dict[str, Dataset], dict[str, str]]:
        """Every data set its arms name, read once, and why those are absent that it can do without.

        `location` is for data sets that lie in a folder. One that only optional arms name may lie in its
        usual place instead, or be missing, unless the study has nothing else.
        """
        calls = {arm.data: Call.parse(arm.data) for arm in self.arms}
        some = any(lies_in_files(call.name) for call in calls.values())
        needed = {arm.data for arm in self.arms if not arm.optional} or set(calls)
        found: dict[str, Dataset] = {}
        absent: dict[str, str] = {}
        for name, call in calls.items():
            given = location if lies_in_files(call.name) or not some else None
            for place in dict.fromkeys([given] if name in needed else [given, None]):
                try:
                    found[name] = load_dataset(call, place)
                    break
                except BadInput as error:
                    if name in needed:
                        raise
                    absent.setdefault(name, error.message)
        return found, {name: why for name, why in absent.items() if name not in found}

    def runs(self, data: Mapping[str, Identified]) -> list[RunSpec]:
        """Every run once, first seeds first: a stopped study has whole seeds rather than whole rules."""
        planned = [
            (arm.seeds.index(spec.seed), spec) for arm in self.arms for spec in self._plan(arm, data)
        ]
        return list(dict.fromkeys(spec for _, spec in sorted(planned, key=lambda pair: pair[0])))

    def full_epochs(self, data: Mapping[str, Identified]) -> dict[RunSpec, list[int]]:
        """For each run the epochs that some arm wants measured in full."""
        wanted: dict[RunSpec, set[int]] = {}
        for arm in self.arms:
            for spec in self._plan(arm, data) if arm.full else ():
                wanted.setdefault(spec, set()).update(arm.full)
        return {spec: sorted(epochs) for spec, epochs in wanted.items()}

    @staticmethod
    def _plan(arm: Arm, data: Mapping[str, Identified]) -> list[RunSpec]:
        return arm.plan(data.get(arm.data, NOT_IN_STORE))

    def chapter(self, answers: Answers, states: Mapping[RunSpec, str]) -> Chapter:
        """The study's part of the report: its own tables, then which of its runs are there."""
        tables = [*self.tables(answers), run_rows(states)]
        return Chapter(self.question, self.ours, tables, self.figures(answers))


def run_rows(states: Mapping[RunSpec, str]) -> Table:
    """One row per rule and recipe, with the number of seeds in each state; `not run` is a state too."""
    counted: dict[tuple[str, ...], Counter[str]] = {}
    for spec, state in states.items():
        recipe = (str(spec.epochs), str(spec.batch), spec.schedule, f"{spec.lr:g}")
        key = (str(spec.rule), str(spec.net), str(spec.data), *recipe)
        counted.setdefault(key, Counter())[state] += 1
    fields = ("rule", "net", "data", "epochs", "batch", "schedule", "rate", *STATES)
    rows = [
        dict(zip(fields, (*key, *(counts[state] for state in STATES)), strict=True))
        for key, counts in counted.items()
    ]
    columns = tuple(
        Column(name, (name,), numeric=name in ("epochs", "batch", "rate", *STATES)) for name in fields
    )
    caption = "Every run of the study, by how far it is: the number of seeds in each state."
    return Table("runs", caption, columns, fields, tuple(rows))
