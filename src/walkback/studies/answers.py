"""What a store holds of planned runs: finished seeds judged together, all others counted as gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from walkback.core.errors import BadInput
from walkback.core.spec import Call, RunSpec
from walkback.data import datasets
from walkback.judge.assemble import Case, gather
from walkback.judge.replay import History, histories
from walkback.judge.select import select_rates
from walkback.report.answer import Answer
from walkback.rules import describe_rule
from walkback.run.plan import Known
from walkback.store import Bundle, Store

if TYPE_CHECKING:
    from walkback.run.plan import Identified
    from walkback.studies.study import Arm

NOT_IN_STORE = Known("")


class Answers:
    """Ask for an arm's rules; `data` says which data set each name stands for."""

    def __init__(self, store: Store, data: Mapping[str, Identified]) -> None:
        self.store, self.data = store, data
        self.bundles = {bundle.path.name: bundle for bundle in store.bundles()}
        self._asked: dict[str, dict[str, Answer]] = {}

    def of(self, arm: Arm, rules: Sequence[str] | None = None) -> list[Answer]:
        """One answer per rule of an arm, or of those named, in their order."""
        if str(arm) not in self._asked:
            self._asked[str(arm)] = self._answers(arm)
        found = self._asked[str(arm)]
        return [found[rule] for rule in (rules or found)]

    def one(self, arm: Arm, rule: str) -> Answer:
        return self.of(arm, [rule])[0]

    def without_and_with(self, usual: Arm, rule: str, arm: Arm, changed: str = "") -> tuple[Answer, Answer]:
        """A rule as the headline has it and with one thing changed, over the seeds of the control alone."""
        control = self.one(arm, changed or rule)
        return self.one(usual, rule).beside(control), control

    def histories(self, answer: Answer) -> list[History]:
        """Every run of an answer at each of its epochs, beside its baseline then."""
        return [self._histories[bundle.path.name] for bundle in answer.bundles]

    @cached_property
    def _ended(self) -> list[Bundle]:
        return select_rates([b for b in self.bundles.values() if b.finished and b.measurements().epochs])

    @cached_property
    def _cases(self) -> dict[str, Case]:
        return {bundle.path.name: case for case in gather(self._ended) for bundle in case.bundles}

    @cached_property
    def _histories(self) -> dict[str, History]:
        return dict(zip((b.path.name for b in self._ended), histories(self._ended), strict=True))

    def _answers(self, arm: Arm) -> dict[str, Answer]:
        groups: dict[str, list[RunSpec]] = {}
        for spec in arm.plan(self.dataset(arm.data)):
            groups.setdefault(str(spec.rule), []).append(spec)
        return dict(zip(dict.fromkeys(arm.rules), map(self._answer, groups.values()), strict=True))

    def dataset(self, name: str) -> Identified:
        """A study may stand beside runs on data that its own arms do not name: those of the store."""
        return self.data[name] if name in self.data else data_of(self.store, [name])[name]

    def _answer(self, specs: Sequence[RunSpec]) -> Answer:
        held = [self.bundles[spec.name] for spec in specs if spec.name in self.bundles]
        case = next((self._cases[spec.name] for spec in specs if spec.name in self._cases), None)
        return Answer(
            name=describe_rule(specs[0].rule)["label"],
            spec=specs[0].to_dict(),
            planned=len(specs),
            running_seeds=frozenset(bundle.spec["seed"] for bundle in held if not bundle.finished),
            case=None if case is None else _planned(case, {spec.name for spec in specs}),
        )


def _planned(case: Case, names: set[str]) -> Case:
    """Without the seeds that the store has beyond the study's own."""
    own = [place for place, bundle in enumerate(case.bundles) if bundle.path.name in names]
    return case if len(own) == len(case.bundles) else case.only(own)


def data_of(store: Store, names: Sequence[str]) -> dict[str, Identified]:
    """Which data sets the stored runs were trained on: enough to find a study's runs without the data."""
    seen: dict[str, set[str]] = {}
    for bundle in store.bundles():
        if "data_identity" in bundle.spec:
            seen.setdefault(bundle.spec["data"], set()).add(bundle.spec["data_identity"])
    found: dict[str, Identified] = {}
    for name in names:
        call = Call.parse(name)
        full = str(call.with_defaults(datasets[call.name].defaults, "data set"))
        identities = seen.get(full, {""})
        if len(identities) > 1:
            raise BadInput(
                f"The store {store.path} holds runs on {len(identities)} data sets called {name}.",
                "Say which one is meant: --data-dir DIR.",
            )
        found[name] = Known(*identities)
    return found
