"""MetricAudit: a table of runs and a claim in, a Verdict out.

INDEPENDENT needs every test to agree; PROXY needs evidence of absence, not absence of evidence; what is
neither is INCONCLUSIVE, and what cannot be asked of these rows is REFUSED.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome, Reason, Verdict
from walkback.metrics.admissible import Admitted, Claim, admit, confounder_matrix, exact_source
from walkback.metrics.canon import (
    Tost,
    conditional_information,
    granulated_tau,
    incremental_r2,
    kendall_tau,
    minimum_detectable,
    robust_sign_error,
    selection_regret,
    tost,
)
from walkback.metrics.clusters import MANY, ClusterTest, cluster_bootstrap, cluster_test
from walkback.metrics.compat import Partial, correlation, partial_spearman
from walkback.metrics.crossfit import CrossFit, FitTask, LearnerTest, cross_fit, fold_rows
from walkback.metrics.ledger import design, drop_repeats, is_number
from walkback.metrics.multiple import permutation_battery
from walkback.metrics.twin import TwinTest, twin_test

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
LEAST_ROWS = 100  # with fewer, flexible learners cannot tell a curved confounder from news
PERMUTATIONS = 1999
CAVEATS = {
    Outcome.INDEPENDENT: "These controls, in these rows, do not account for the association. Whether "
    "another variable does, and whether the metric causes anything, is not said.",
    Outcome.INCONCLUSIVE: "A result that was not found is no proof that there is nothing to find.",
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

    def run(self, fitted: CrossFit | None = None) -> Verdict:
        """The verdict. `fitted` answers `fit_task`, where several audits were asked for together."""
        admitted = admit(self.frame, self.claim)
        evidence: dict[str, Any] = {
            "n": len(admitted.frame),
            "dropped": admitted.dropped,
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
        admitted = admit(self.frame, self.claim)
        if admitted.refusals or exact_source(admitted.frame, self.claim) is not None:
            return None
        return self._task(admitted.frame, np.random.default_rng(self.seed))

    def _task(self, frame: pd.DataFrame, rng: np.random.Generator) -> FitTask:
        metric, target = (frame[name].to_numpy(float) for name in (self.claim.metric, self.claim.target))
        codes = self._codes(frame)
        given = confounder_matrix(frame, self.claim.predictors)
        return FitTask(metric, target, given, fold_rows(len(frame), rng, codes), codes)

    def canon(self) -> dict[str, Any]:
        """What others measure, on the same rows: beside the verdict, never part of it.

        The direction is the claim's, else that of the raw correlation.
        """
        admitted = admit(self.frame, self.claim)
        if admitted.refusals:
            return {}
        frame, claim, rng = admitted.frame, self.claim, np.random.default_rng(self.seed)
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
        permuted = _permutation_p(metric, target, controls, rng)
        twin = self._twin(frame, codes)
        units = len(frame) if codes is None else int(codes.max()) + 1
        same = [
            tost(r, units, found.k, delta=self.delta, alpha=self.alpha)
            for r in (
                found.partial,
                *(test.r for test in fitted.tests if test.eligible),
                *(() if twin is None else (twin.r,)),
            )
        ]
        reasons = self._reasons(found, fitted, permuted, grouped, twin)
        reasons += (self._equivalence(same[0], units, found.k),)
        outcome, words = self._decide(found, reasons, same, units)
        evidence |= {
            "tests": _tests(fitted, permuted, grouped, twin),
            "equivalence": asdict(same[0]),
            "groups": self._groups(frame),
            "residuals": fitted.residuals[fitted.best.learner].tolist(),
            "bootstrap": None,
        }
        if codes is not None and units >= MANY:  # with fewer clusters its intervals are too short
            draws = np.random.default_rng([self.seed, 1])  # its own, so that no test depends on it
            drawn = cluster_bootstrap(metric, target, controls, clusters=codes, rng=draws)
            evidence["bootstrap"] = asdict(drawn)
        return self._verdict(outcome, words, reasons, admitted, evidence)

    def _codes(self, frame: pd.DataFrame) -> NDArray[np.int64] | None:
        if self.claim.cluster is None:
            return None
        return np.unique(frame[self.claim.cluster].astype(str), return_inverse=True)[1].astype(np.int64)

    def _twin(self, frame: pd.DataFrame, codes: NDArray[np.int64] | None) -> TwinTest | None:
        claim = self.claim
        if claim.twin is None or claim.baseline is None:
            return None
        others = [name for name in claim.confounders if name not in (claim.baseline, claim.twin)]
        metric, target, first, second = (
            frame[name].to_numpy(float) for name in (claim.metric, claim.target, claim.baseline, claim.twin)
        )
        return twin_test(metric, target, first, second, confounder_matrix(frame, others), codes)

    def _reasons(
        self,
        found: Partial,
        fitted: CrossFit,
        permuted: float,
        grouped: ClusterTest | None,
        twin: TwinTest | None,
    ) -> tuple[Reason, ...]:
        reasons = [
            self._reason("ranks", found.partial, permuted, "rank partial correlation, by permutation")
        ]
        if grouped is not None:
            text = f"rank partial correlation over {grouped.clusters} clusters"
            reasons.append(self._reason("clusters", grouped.r, grouped.p, text))
        reasons += [self._learner_reason(test) for test in fitted.tests]
        if twin is not None:
            text = f"given what two readings of {self.claim.baseline} share"
            reasons.append(self._reason("twin", twin.r, twin.p, text))
            reasons.append(self._bend(twin))
        return tuple(reasons)

    def _bend(self, twin: TwinTest) -> Reason:
        """Fires if metric and target both bend with what the readings share, which the twin test takes for
        straight; whether it fires or not, it finds no association."""
        bent = twin.curvature < self.alpha
        sentence = f"curved effects of {self.claim.baseline} on metric and target: p = {twin.curvature:.2g}"
        sentence += (
            ", found: through noisy readings they cannot be told from news." if bent else ", not found."
        )
        return Reason("bend", "bend", bent, None, self.alpha, sentence, detail={"p": twin.curvature})

    def _equivalence(self, same: Tost, units: int, k: int) -> Reason:
        """Whether the association is shown to be small; if not, what showing it would take."""
        if same.reason:
            return Reason("equivalence", "equivalence", None, None, self.delta, same.reason, "missing")
        shown = "is shown" if same.equivalent else "is not shown"
        sentence = f"That the partial correlation lies inside ±{self.delta:g} {shown} (p = {same.p:.2g})"
        sentence += f"; it would be from δ = {same.smallest_delta:.2f} on."
        if not same.equivalent and units < same.needed_n_at_zero:
            sentence += f" ±{self.delta:g} needs n ≥ {same.needed_n_at_zero:.0f} even at zero."
        least = minimum_detectable(units, k, alpha=self.alpha).value
        sentence += f" A correlation of {least:.2f} would be found four times out of five."
        detail = {"p": same.p, "detectable": least}
        return Reason(
            "equivalence", "equivalence", same.equivalent, same.r, self.delta, sentence, detail=detail
        )

    def _learner_reason(self, test: LearnerTest) -> Reason:
        reason = self._reason(test.learner, test.r, test.p, f"out of fold, {test.learner} control")
        if test.eligible:
            return reason
        sentence = reason.sentence[:-1] + "; it predicts worse than the best learner and does not count."
        return Reason(**{**reason.to_dict(), "sentence": sentence, "status": "not counted", "fires": False})

    def _reason(self, check: str, r: float, p: float, text: str) -> Reason:
        """A test fires if it does not find the association, or finds it with the wrong sign."""
        if math.isnan(p):
            return Reason(
                check, check, None, None, self.alpha, f"{text}: it cannot be computed.", "missing"
            )
        wrong = self._wrong_sign(r)
        seen = p < self.alpha and not wrong
        word = "with the wrong sign" if p < self.alpha and wrong else "found" if seen else "not found"
        sentence = f"{text}: {r:+.3f}, p = {p:.2g}, {word}."
        return Reason(check, check, not seen, r, self.alpha, sentence, detail={"p": p})

    def _wrong_sign(self, r: float) -> bool:
        return self.claim.direction is not None and (r > 0) != (self.claim.direction == "positive")

    def _decide(
        self, found: Partial, reasons: Sequence[Reason], same: Sequence[Tost], units: int
    ) -> tuple[Outcome, str]:
        straight = not any(reason.fires for reason in reasons if reason.check == "bend")
        tests = [reason for reason in reasons if reason.check not in ("equivalence", "bend")]
        counted = [reason for reason in tests if reason.status == "ok"]
        signs = {np.sign(reason.value) for reason in counted if reason.value}
        agree = straight and all(reason.fires is False for reason in tests) and len(signs) == 1
        wrong = (straight and bool(counted)) and all(
            reason.detail.get("p", 1) < self.alpha and self._wrong_sign(reason.value or 0.0)
            for reason in counted
        )
        if agree and units >= LEAST_ROWS:
            noisy = self.claim.baseline is not None and self.claim.twin is None
            return Outcome.INDEPENDENT, "INDEPENDENT" + (" (of this reading of the loss)" if noisy else "")
        if wrong and units >= LEAST_ROWS:
            return Outcome.FAIL, "FAIL(wrong sign)"
        if all(each.equivalent for each in same):
            silent = abs(found.raw) < self.delta
            return Outcome.PROXY, "PROXY" + (" (silent with and without the controls)" if silent else "")
        if agree:
            return Outcome.INCONCLUSIVE, f"INCONCLUSIVE (fewer than {LEAST_ROWS} independent rows)"
        if len(signs) > 1 and all(reason.detail.get("p", 1) < self.alpha for reason in counted):
            return Outcome.INCONCLUSIVE, "INCONCLUSIVE (the tests find opposite signs)"
        sensitive = any(r.fires is False for r in tests) and (any(r.fires for r in tests) or not straight)
        return Outcome.INCONCLUSIVE, "INCONCLUSIVE" + (" (nuisance-sensitive)" if sensitive else "")

    def _groups(self, frame: pd.DataFrame) -> list[dict[str, Any]]:
        """The compatibility statistics within each group, the group's own column no longer a control."""
        if self.group is None:
            return []
        columns = [*dict.fromkeys([*self.claim.columns, self.group])]
        whole = drop_repeats(self.frame[columns].dropna(), self.claim.metric)
        rows = []
        for value, part in whole.groupby(self.group, sort=True):
            names = [name for name in self.claim.confounders if name != self.group]
            metric, target = (part[n].to_numpy(float) for n in (self.claim.metric, self.claim.target))
            found = partial_spearman(metric, target, design(part, names))
            rows.append({"group": f"{self.group}={value}", "n": found.n, **compat_of(found)})
        return rows

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
        notes = [*admitted.warnings]
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


def _tests(
    fitted: CrossFit, permuted: float, grouped: ClusterTest | None, twin: TwinTest | None
) -> dict[str, Any]:
    return {
        "permutation": {"p": permuted, "draws": PERMUTATIONS},
        "learners": [asdict(test) for test in fitted.tests],
        "clusters": None if grouped is None else asdict(grouped),
        "twin": None if twin is None else asdict(twin),
    }
