"""From bundles to verdicts: seeds of one spec together, each beside its frozen sibling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from walkback.core.canonical import canonical_json
from walkback.core.errors import BadInput
from walkback.core.verdict import Verdict
from walkback.judge.evidence import Evidence, evidence_of
from walkback.judge.protocol import judge
from walkback.judge.thresholds import Thresholds
from walkback.store import Bundle, Store
from walkback.store.folder import same_but_rule


@dataclass(frozen=True)
class Judged:
    """One rule under one recipe: its seeds, what they showed, and the verdict on it."""

    bundles: list[Bundle]
    runs: list[Evidence]
    verdict: Verdict

    @property
    def label(self) -> str:
        return self.runs[0].label

    @property
    def role(self) -> str:
        return self.runs[0].role


def judge_bundles(
    bundles: Sequence[Bundle],
    baselines: Sequence[Bundle] | None = None,
    *,
    logic: str = "artifact",
    thresholds: Thresholds | None = None,
) -> list[Judged]:
    """One verdict per rule and recipe. Without explicit baselines, siblings in the same store serve."""
    groups: dict[str, list[Bundle]] = {}
    for bundle in bundles:
        groups.setdefault(_group_key(bundle), []).append(bundle)
    judged = []
    for group in groups.values():
        group.sort(key=lambda bundle: bundle.spec.get("seed") or 0)
        _check_seeds(group)
        runs = [evidence_of(bundle) for bundle in group]
        siblings = [_baseline_for(bundle, group, baselines) for bundle in group]
        against = [_same_epoch(run, sibling) for run, sibling in zip(runs, siblings, strict=True)]
        verdict = judge(runs, against, logic=logic, thresholds=thresholds)
        judged.append(Judged(group, runs, verdict))
    return sorted(judged, key=lambda item: (item.role == "baseline", item.label))


def _check_seeds(group: Sequence[Bundle]) -> None:
    seeds = [bundle.spec.get("seed") for bundle in group]
    twice = {seed for seed in seeds if seeds.count(seed) > 1}
    if twice:
        label = group[0].card["rule"]["label"]
        raise BadInput(f"Seed {twice.pop()} of {label} is given more than once.", "Name each run once.")


def _same_epoch(run: Evidence, sibling: Bundle | None) -> Evidence | None:
    """The baseline as it was at the run's epoch; at its last one if it has not come that far."""
    if sibling is None:
        return None
    reached = run.trained and run.epoch in sibling.measurements().epochs
    return evidence_of(sibling, run.epoch if reached else None)


def _group_key(bundle: Bundle) -> str:
    """Everything but the seed; a captured model has no recipe and stands alone."""
    if bundle.status.get("state") == "captured":
        return bundle.id
    return canonical_json({key: value for key, value in bundle.spec.items() if key != "seed"})


def _baseline_for(
    bundle: Bundle, group: Sequence[Bundle], baselines: Sequence[Bundle] | None
) -> Bundle | None:
    """The frozen run of the same spec and seed; a single baseline given by hand serves a single run."""
    if baselines is None:
        found = _siblings(bundle, Store(bundle.path.resolve().parent).bundles())
    else:
        found = _siblings(bundle, baselines)
        if not found and len(baselines) == len(group) == 1:
            _check_recipe(bundle, baselines[0])
            found = list(baselines)
    measured = [sibling for sibling in found if sibling.measurements().epochs]
    return measured[0] if measured else None


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


def _siblings(bundle: Bundle, others: Sequence[Bundle]) -> list[Bundle]:
    return [
        other
        for other in others
        if other.card["rule"]["label"] == "frozen" and same_but_rule(bundle.spec, other.spec)
    ]
