"""From bundles to verdicts: seeds of one spec together, each beside its frozen sibling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from walkback.core.errors import BadInput
from walkback.core.spec import Call
from walkback.core.verdict import Verdict
from walkback.judge.evidence import Evidence, evidence_of
from walkback.judge.factorial import Cells
from walkback.judge.naming import group_key
from walkback.judge.protocol import judge
from walkback.judge.select import all_of, open_grid, open_rates, rate_note, select_rates
from walkback.judge.thresholds import Thresholds
from walkback.store import Bundle, Store
from walkback.store.folder import same_but_rule


@dataclass(frozen=True)
class Judged:
    """One rule under one recipe: its seeds, what they showed, and the verdict on it."""

    bundles: list[Bundle]
    runs: list[Evidence]
    verdict: Verdict
    unmeasured: list[Bundle] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The rule's name for a reader."""
        return str(self.verdict.evidence["rule"])

    @property
    def role(self) -> str:
        return self.runs[0].role


@dataclass(frozen=True)
class Case:
    """What one verdict is about: the seeds of one rule and recipe, each with its baseline.

    `unmeasured` seeds have started and show nothing yet; they keep the others from passing.
    """

    bundles: list[Bundle]
    runs: list[Evidence]
    baselines: list[Evidence | None]
    cells: Cells = field(default_factory=dict)
    unmeasured: list[Bundle] = field(default_factory=list)

    def only(self, places: Sequence[int]) -> Case:
        """The seeds at these places alone, without the stem × blocks table, which is over all seeds."""
        taken = ([items[place] for place in places] for items in (self.bundles, self.runs, self.baselines))
        return Case(*taken)  # type: ignore[arg-type]

    def judge(self, *, logic: str = "artifact", thresholds: Thresholds | None = None) -> Judged:
        verdict = judge(
            self.runs,
            self.baselines,
            logic=logic,
            thresholds=thresholds,
            cells=self.cells,
            unmeasured=[bundle.spec.get("seed") for bundle in self.unmeasured],
        )
        return Judged(self.bundles, self.runs, verdict, self.unmeasured)


def judge_bundles(
    bundles: Sequence[Bundle],
    baselines: Sequence[Bundle] | None = None,
    *,
    logic: str = "artifact",
    thresholds: Thresholds | None = None,
) -> list[Judged]:
    """One verdict per rule and recipe. Without explicit baselines, siblings in the same store serve."""
    cases = gather(bundles, baselines)
    return [case.judge(logic=logic, thresholds=thresholds) for case in cases]


def gather(bundles: Sequence[Bundle], baselines: Sequence[Bundle] | None = None) -> list[Case]:
    """Read the evidence once; it can then be judged many times. Rules first, baselines last."""
    given, bundles = bundles, select_rates(bundles)
    groups = by_rule_and_recipe(bundles)
    siblings = dict(
        zip((b.path for b in bundles), sibling_bundles(bundles, baselines, groups), strict=True)
    )
    stored = {path: Store(path).bundles() for path in {b.path.resolve().parent for b in bundles}}
    rates = open_rates([*given, *(sibling for sibling in siblings.values() if sibling is not None)])
    cases = []
    for seeds in groups.values():
        group = [bundle for bundle in seeds if bundle.measurements().epochs] or seeds
        unmeasured = [bundle for bundle in seeds if bundle not in group]
        tried = all_of(given, stored[group[0].path.resolve().parent])
        note = (*_control_note(group[0], stored), *rate_note(group[0], tried))
        runs = [
            replace(found, notes=(*found.notes, *note), rate_open=rates.get(bundle.path, ""))
            for bundle in group
            for found in [evidence_of(bundle)]
        ]
        against = [same_epoch(run, siblings[b.path], rates) for run, b in zip(runs, group, strict=True)]
        cases.append(Case(group, runs, against, _cells(group, runs, stored, baselines), unmeasured))
    return sorted(cases, key=lambda case: (case.runs[0].role == "baseline", case.runs[0].label))


def by_rule_and_recipe(bundles: Sequence[Bundle]) -> dict[str, list[Bundle]]:
    """What is judged together, in the order of its seeds; a seed that comes twice is refused."""
    groups: dict[str, list[Bundle]] = {}
    for bundle in bundles:
        groups.setdefault(group_key(bundle), []).append(bundle)
    for seeds in groups.values():
        seeds.sort(key=lambda bundle: bundle.spec.get("seed") or 0)
        _check_seeds(seeds)
    return groups


def with_measured(bundles: Sequence[Bundle]) -> list[Bundle]:
    """The runs of each rule and recipe of which a seed was measured: the others have nothing to judge."""
    known = {group_key(bundle) for bundle in bundles if bundle.measurements().epochs}
    return [bundle for bundle in bundles if group_key(bundle) in known]


def unmeasured_names(bundles: Sequence[Bundle]) -> list[str]:
    """The runs that have started and show nothing yet."""
    return [bundle.path.name for bundle in bundles if not bundle.measurements().epochs]


def _cells(
    group: Sequence[Bundle],
    runs: Sequence[Evidence],
    stored: Mapping[Path, Sequence[Bundle]],
    baselines: Sequence[Bundle] | None,
) -> Cells:
    """The other runs of the rule's stem × blocks table that lie in the same store, at the same epoch."""
    rule = runs[0].label
    if runs[0].role == "baseline" or rule == "bp" or baselines is not None:
        return {}
    if group[0].card["rule"]["name"] == "mixed":  # a cell of another rule's table
        return {}
    wanted = {
        ("bp", rule): ("mixed", rule, "bp"),
        ("bp", "frozen"): ("frozen", None, "bp"),
        (rule, "frozen"): ("frozen", None, rule),
    }
    found: dict[tuple[str, str], list[Evidence]] = {cell: [] for cell in wanted}
    for bundle, run in zip(group, runs, strict=True):
        beside = stored[bundle.path.resolve().parent]
        for other in select_rates(beside):
            cell = next((cell for cell, arms in wanted.items() if _arms(other) == arms), None)
            if cell is not None and same_but_rule(bundle.spec, other.spec) and other.measurements().epochs:
                evidence = same_epoch(run, other, {other.path: open_grid(other, beside)})
                assert evidence is not None
                # Whatever blocks the other arm has, here it is what the trained ones are compared with.
                found[cell].append(replace(evidence, role="baseline" if "frozen" in cell else "rule"))
    return {(rule, rule): list(runs), **{cell: seeds for cell, seeds in found.items() if seeds}}


def _control_note(bundle: Bundle, stored: Mapping[Path, Sequence[Bundle]]) -> tuple[str, ...]:
    """An intervention is read beside backprop under the same one; without that control, say so."""
    base, _, addition = str(bundle.card["rule"].get("variant", "")).partition("+")
    control = bundle.card["rule"].get("control", f"bp+{addition}")
    if not addition or not control or base == "bp":
        return ()
    others = stored[bundle.path.resolve().parent]
    if any(o.spec.get("rule") == control and same_but_rule(bundle.spec, o.spec) for o in others):
        return ()
    return (f"This is an intervention without its control: {control} was not run with this recipe.",)


def _arms(bundle: Bundle) -> tuple[str, str | None, str | None]:
    """(name, rule of the blocks, rule of the stem) of a run, as its spec writes it."""
    if bundle.card["rule"]["name"] not in ("mixed", "frozen") or "epochs" not in bundle.spec:
        return "other", None, None
    call = Call.parse(bundle.spec["rule"])
    blocks, stem = call.params.get("blocks"), call.params.get("stem")
    return call.name, None if blocks is None else str(blocks), None if stem is None else str(stem)


def sibling_bundles(
    bundles: Sequence[Bundle],
    baselines: Sequence[Bundle] | None = None,
    groups: Mapping[str, Sequence[Bundle]] | None = None,
) -> list[Bundle | None]:
    """For each bundle its measured frozen sibling: among `baselines`, else in the store it lies in."""
    stores = {bundle.path.resolve().parent for bundle in bundles} if baselines is None else set()
    stored = {path: Store(path).bundles() for path in stores}
    found = []
    for bundle in bundles:
        others = baselines if baselines is not None else stored[bundle.path.resolve().parent]
        known = _siblings(bundle, others)
        alone = groups is not None and len(groups[group_key(bundle)]) == 1
        if not known and baselines is not None and len(baselines) == 1 and alone:
            _check_recipe(bundle, baselines[0])
            check_frozen(baselines[0])
            known = list(baselines)
        measured = [sibling for sibling in known if sibling.measurements().epochs]
        found.append(measured[0] if measured else None)
    return found


def _check_seeds(group: Sequence[Bundle]) -> None:
    seeds = [bundle.spec.get("seed") for bundle in group]
    twice = {seed for seed in seeds if seeds.count(seed) > 1}
    if twice:
        label = group[0].card["rule"]["label"]
        raise BadInput(f"Seed {twice.pop()} of {label} is given more than once.", "Name each run once.")


def same_epoch(run: Evidence, sibling: Bundle | None, rates: Mapping[Path, str]) -> Evidence | None:
    """The baseline as it was at the run's epoch; at its last one if it has not come that far.

    `rates` tells of each run why its learning rate is not chosen yet."""
    if sibling is None:
        return None
    reached = run.trained and run.epoch in sibling.measurements().epochs
    found = evidence_of(sibling, run.epoch if reached else None)
    return replace(found, rate_open=rates.get(sibling.path, ""))


def _check_recipe(bundle: Bundle, baseline: Bundle) -> None:
    """A baseline given by hand may have another seed, not another recipe; captured models have none."""
    if "captured" in (bundle.status.get("state"), baseline.status.get("state")):
        return
    keys = (set(bundle.spec) | set(baseline.spec)) - {"rule", "seed"}
    differing = sorted(key for key in keys if bundle.spec.get(key) != baseline.spec.get(key))
    if differing:
        raise BadInput(
            f"The baseline {baseline.path.name} differs from {bundle.path.name} in {', '.join(differing)}.",
            "A baseline shares net, data and recipe with what it is compared to.",
        )


def check_frozen(baseline: Bundle) -> None:
    """D3 speaks of frozen random blocks under a stem by backprop; another baseline is another statement."""
    label = str(baseline.card["rule"]["label"])
    if baseline.status.get("state") != "captured" and label != "frozen":
        raise BadInput(
            f"The baseline {baseline.path.name} is {label}, not frozen.",
            "Gains over it are in the stem × blocks table of a report on the store.",
        )


def _siblings(bundle: Bundle, others: Sequence[Bundle]) -> list[Bundle]:
    return [
        other
        for other in select_rates(others)
        if other.card["rule"]["label"] == "frozen" and same_but_rule(bundle.spec, other.spec)
    ]
