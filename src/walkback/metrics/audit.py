"""MetricAudit: a table of runs and a claim in, a Verdict out.

What cannot be asked of these rows is REFUSED, a function of a control is a PROXY at once; of all else every
test is made, and `decision` says what they say together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome, Reason, Verdict
from walkback.metrics.admissible import LEAST_DOF, Admitted, Claim, admit, confounder_matrix, exact_source
from walkback.metrics.canon import (
    conditional_information,
    granulated_tau,
    incremental_r2,
    kendall_tau,
    robust_sign_error,
    selection_regret,
)
from walkback.metrics.clusters import MANY, cluster_test
from walkback.metrics.compat import Partial, correlation, partial_spearman
from walkback.metrics.crossfit import CrossFit, FitTask, cross_fit, fold_rows
from walkback.metrics.decision import PERMUTATIONS, Decision, Findings
from walkback.metrics.intervals import cluster_bootstrap
from walkback.metrics.ledger import design, is_number
from walkback.metrics.multiple import permutation_battery
from walkback.metrics.twin import TwinTest, twin_test

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
CAVEATS = {
    Outcome.INDEPENDENT: "These controls, in these rows, do not account for the association. Whether "
    "another variable does, and whether the metric causes anything, is not said.",
    Outcome.INCONCLUSIVE: "An open question is no proof that there is nothing to find, nor that there is.",
    Outcome.PROXY: "In these rows the metric adds no rising or falling association of the size that was "
    "asked for. An association that does both is not looked for.",
}


class MetricAudit:
    """Does `metric` tell anything about `target` that `baseline` and `controls` do not?

    `twin` is a second reading of the baseline on other samples; without it a noisy baseline cannot be told
    from news, and the words of the verdict say so. `direction` is the sign that the claim expects.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        metric: str,
        target: str,
        baseline: str | None = None,
        controls: Sequence[str] = (),
        *,
        twin: str | None = None,
        cluster: str | None = None,
        group: str | None = None,
        direction: str | None = None,
        delta: float = 0.2,
        alpha: float = 0.05,
        seed: int = 0,
    ) -> None:
        if not 0 < delta < 1 or not 0 < alpha < 0.5:
            raise BadInput(f"delta lies in 0…1 and alpha in 0…0.5, not {delta} and {alpha}.")
        if twin and not baseline:
            raise BadInput("A twin is a second reading of the baseline: name the baseline too.")
        if group is not None and group not in frame.columns:
            raise BadInput(f"There is no column {group!r}.")
        self.frame, self.group = frame, group
        self.claim = Claim(metric, target, baseline, tuple(controls), twin, cluster, direction)
        self.delta, self.alpha, self.seed = delta, alpha, seed

    @cached_property
    def admitted(self) -> Admitted:
        """The rows that count, or why none do."""
        return admit(self.frame, self.claim)

    def run(self, fitted: CrossFit | None = None) -> Verdict:
        """The verdict. `fitted` answers `fit_task`, where several audits were asked for together."""
        admitted = self.admitted
        evidence: dict[str, Any] = {
            "n": len(admitted.frame),
            "dropped": admitted.dropped,
            "repeated": admitted.repeated,
            "duplicates": asdict(admitted.duplicates),
            **asdict(self.claim),
        }
        if admitted.refusals:
            return self._refused(admitted, evidence)
        found = self._compat(admitted.frame)
        evidence |= {"raw": found.raw, "partial": found.partial, "p": found.p, "compat": compat_of(found)}
        source = exact_source(admitted.frame, self.claim)
        if source is not None:
            return self._exact(source, admitted, evidence)
        return self._tested(found, admitted, evidence, fitted)

    def fit_task(self) -> FitTask | None:
        """What the learners are to be asked; nothing, if the audit ends before they are."""
        frame = self.admitted.frame
        if self.admitted.refusals or exact_source(frame, self.claim) is not None:
            return None
        return self._task(frame, np.random.default_rng(self.seed))

    def _task(self, frame: pd.DataFrame, rng: np.random.Generator) -> FitTask:
        metric, target = (frame[name].to_numpy(float) for name in (self.claim.metric, self.claim.target))
        codes = self._codes(frame)
        given = confounder_matrix(frame, self.claim.predictors)
        return FitTask(metric, target, given, fold_rows(len(frame), rng, codes), codes)

    def canon(self) -> dict[str, Any]:
        """What others measure, on the same rows: beside the verdict, never part of it.

        The direction is the claim's, else that of the raw correlation.
        """
        if self.admitted.refusals:
            return {}
        frame, claim, rng = self.admitted.frame, self.claim, np.random.default_rng(self.seed)
        metric, target = (frame[name].to_numpy(float) for name in (claim.metric, claim.target))
        raw = self._compat(frame).raw
        direction = {"positive": 1, "negative": -1}.get(claim.direction or "", -1 if raw < 0 else 1)
        numeric = [name for name in claim.confounders if is_number(frame[name])]
        axes = frame[[name for name in claim.controls if is_number(frame[name])]].to_numpy(float)
        codes = self._codes(frame)
        groups = np.arange(len(frame)) if codes is None else codes
        baseline = None if claim.baseline is None else frame[claim.baseline].to_numpy(float)
        found: dict[str, Any] = {
            "kendall": kendall_tau(metric, target, direction=direction),
            "regret": selection_regret(
                metric,
                target,
                baseline,
                direction=direction,
                baseline_direction=1 if baseline is None or correlation(baseline, target) > 0 else -1,
            ),
            "increment": incremental_r2(
                metric, target, design(frame, claim.confounders), groups=groups, rng=rng
            ),
        }
        if axes.shape[1]:
            found["granulated"] = granulated_tau(metric, target, axes, direction=direction)
            found["sign_error"] = robust_sign_error(metric, target, axes, direction=direction)
        if numeric:
            given = frame[numeric[0]].to_numpy(float)
            found["conditional_information"] = conditional_information(metric, target, given, rng=rng)
        return {name: asdict(score) for name, score in found.items()}

    def _compat(self, frame: pd.DataFrame) -> Partial:
        metric, target = (frame[name].to_numpy(float) for name in (self.claim.metric, self.claim.target))
        return partial_spearman(metric, target, design(frame, self.claim.confounders))

    def _tested(
        self, found: Partial, admitted: Admitted, evidence: dict[str, Any], fitted: CrossFit | None
    ) -> Verdict:
        frame, rng = admitted.frame, np.random.default_rng(self.seed)
        task = self._task(frame, rng)
        metric, target, codes = task.metric, task.target, task.clusters
        controls = design(frame, self.claim.confounders)
        grouped = None
        if codes is not None:
            grouped = cluster_test(metric, target, controls, clusters=codes, rng=rng)
            if grouped.status == "refused":
                return self._refused(admitted, evidence, [grouped.reason])
        fitted = fitted or cross_fit(task)
        findings = Findings(
            partial=found,
            permuted=_permutation_p(metric, target, controls, rng),
            fitted=fitted,
            grouped=grouped,
            twin=self._twin(frame, codes),
            units=len(frame) if codes is None else int(codes.max()) + 1,
        )
        decision = Decision(self.claim, self.delta, self.alpha)
        reasons = decision.reasons(findings)
        outcome, words = decision.decide(findings, reasons)
        evidence |= {
            "tests": findings.to_dict(),
            "equivalence": asdict(findings.equivalence(self.delta, self.alpha)[0]),
            "groups": self._groups(),
            "residuals": fitted.residuals[fitted.best.learner].tolist(),
            "bootstrap": None,
        }
        if codes is not None and findings.units >= MANY:  # with fewer clusters its intervals are too short
            draws = np.random.default_rng([self.seed, 1])  # its own, so that no test depends on it
            drawn = cluster_bootstrap(metric, target, controls, clusters=codes, rng=draws)
            evidence["bootstrap"] = asdict(drawn)
        return self._verdict(outcome, words, reasons, admitted, evidence)

    def _codes(self, frame: pd.DataFrame) -> NDArray[np.int64] | None:
        if self.claim.cluster is None:
            return self.admitted.runs
        return np.unique(frame[self.claim.cluster].astype(str), return_inverse=True)[1].astype(np.int64)

    def _twin(self, frame: pd.DataFrame, codes: NDArray[np.int64] | None) -> TwinTest | None:
        claim = self.claim
        if claim.twin is None or claim.baseline is None:
            return None
        others = [name for name in claim.confounders if name not in (claim.baseline, claim.twin)]
        metric, target, first, second = (
            frame[name].to_numpy(float) for name in (claim.metric, claim.target, claim.baseline, claim.twin)
        )
        given = {name: confounder_matrix(frame, [name]) for name in others}
        names = [name for name, columns in given.items() for _ in columns.T]
        controls = np.column_stack([np.empty((len(frame), 0)), *given.values()])
        return twin_test(metric, target, first, second, controls, codes, [claim.baseline, *names])

    def _groups(self) -> list[dict[str, Any]]:
        """The compatibility statistics within each group, the group's own column no longer a control."""
        if self.group is None:
            return []
        counted = self.frame.iloc[self.admitted.rows]
        rows = []
        for value, part in counted[counted[self.group].notna()].groupby(self.group, sort=True):
            names = [name for name in self.claim.confounders if name != self.group]
            metric, target = (part[n].to_numpy(float) for n in (self.claim.metric, self.claim.target))
            found = partial_spearman(metric, target, design(part, names))
            if found.n - 2 - found.k < LEAST_DOF:
                found = replace(found, partial=math.nan, p=math.nan)
            rows.append({"group": f"{self.group}={value}", "n": found.n, **compat_of(found)})
        return rows

    def _without_group(self) -> list[str]:
        if self.group is None or self.admitted.refusals:
            return []
        lost = int(self.frame[self.group].iloc[self.admitted.rows].isna().sum())
        return [f"{lost} rows have no {self.group}: they are part of no group."] if lost else []

    def _exact(self, source: str, admitted: Admitted, evidence: dict[str, Any]) -> Verdict:
        if source == self.claim.target:
            return self._refused(admitted, evidence, [f"{self.claim.metric} is a function of the target."])
        sentence = f"{self.claim.metric} is a function of {source}, to rounding: it adds nothing to it."
        reason = Reason("exact", "exact", True, None, 1e-6, sentence)
        return self._verdict(Outcome.PROXY, "PROXY (exact)", (reason,), admitted, {**evidence, "tests": {}})

    def _refused(
        self, admitted: Admitted, evidence: dict[str, Any], refusals: Sequence[str] = ()
    ) -> Verdict:
        why = tuple(refusals) or admitted.refusals
        reasons = tuple(Reason("admissible", "admissible", True, None, 0.0, sentence) for sentence in why)
        blank = {"raw": None, "partial": None, "p": None, "compat": None}
        return self._verdict(
            Outcome.REFUSED, "REFUSED", reasons, admitted, {**blank, **evidence, "tests": {}}
        )

    def _verdict(
        self,
        outcome: Outcome,
        words: str,
        reasons: tuple[Reason, ...],
        admitted: Admitted,
        evidence: dict[str, Any],
    ) -> Verdict:
        notes = [*admitted.warnings, *self._without_group()]
        if outcome is Outcome.INDEPENDENT and self.claim.baseline and not self.claim.twin:
            notes.append(
                f"There is one reading of {self.claim.baseline} only: a second, noisy reading of the same "
                "loss would pass as well. Name a twin to rule that out."
            )
        return Verdict(
            outcome,
            words,
            self.claim.sentence,
            "metric",
            reasons,
            notes=(*notes, *([CAVEATS[outcome]] if outcome in CAVEATS else [])),
            evidence=evidence,
        )


def compat_of(found: Partial) -> dict[str, Any]:
    return {"raw": found.raw, "partial": found.partial, "p": found.p, "class": found.kind}


def _permutation_p(metric: Array, target: Array, controls: Array, rng: np.random.Generator) -> float:
    found = permutation_battery(metric.reshape(-1, 1), target, controls, rng=rng, draws=PERMUTATIONS)
    return float(found.p[0, 0])
