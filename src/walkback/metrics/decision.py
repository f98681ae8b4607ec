"""From tests to a verdict: what each test says in a sentence, and what they say together.

INDEPENDENT needs every test to agree; PROXY needs evidence of absence, not absence of evidence; what is
neither is INCONCLUSIVE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from walkback.core.verdict import Outcome, Reason
from walkback.metrics.admissible import Claim
from walkback.metrics.clusters import ClusterTest
from walkback.metrics.compat import Partial
from walkback.metrics.crossfit import LEARNERS, CrossFit, LearnerTest
from walkback.metrics.fisher import Tost, minimum_detectable, tost
from walkback.metrics.twin import TwinTest

LEAST_ROWS = 100  # with fewer, flexible learners cannot tell a curved confounder from news
PERMUTATIONS = 1999
LEAST_LEFT = (
    0.2  # of the metric's variance; of an exact product of three controls kernel ridge leaves up to .14
)
SURE = 0.5  # an association of what is left that is larger is more than what learners miss
DOUBTS = ("bend", "rest")  # where they fire, what the tests find may be what the controls do
NO_TESTS = ("equivalence", *DOUBTS)  # checks that cannot find the association


@dataclass(frozen=True)
class Findings:
    """Every test of one claim. `units` counts what is independent: rows, or clusters of them."""

    partial: Partial
    permuted: float
    fitted: CrossFit
    grouped: ClusterTest | None
    twin: TwinTest | None
    units: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "permutation": {"p": self.permuted, "draws": PERMUTATIONS},
            "learners": [asdict(test) for test in self.fitted.tests],
            "clusters": None if self.grouped is None else asdict(self.grouped),
            "twin": None if self.twin is None else asdict(self.twin),
        }

    def equivalence(self, delta: float, alpha: float) -> list[Tost]:
        """Of the rank partial correlation first, then of every other estimate that counts."""
        ranks = math.nan if math.isnan(self.permuted) else self.partial.partial  # else it is rounding
        learners = [test.r for test in self.fitted.tests if test.eligible]
        twin = [] if self.twin is None else [self.twin.r]
        return [
            tost(r, self.units, self.partial.k, delta=delta, alpha=alpha) for r in (ranks, *learners, *twin)
        ]


@dataclass(frozen=True)
class Decision:
    """The rule of one claim: a test finds at level `alpha`; associations inside ±`delta` are small."""

    claim: Claim
    delta: float
    alpha: float

    def reasons(self, found: Findings) -> tuple[Reason, ...]:
        ranks = "rank partial correlation, by permutation"
        reasons = [self._reason("ranks", found.partial.partial, found.permuted, ranks)]
        if found.grouped is not None:
            text = f"rank partial correlation over {found.grouped.clusters} clusters"
            reasons.append(self._reason("clusters", found.grouped.r, found.grouped.p, text))
        reasons += [self._learner(test) for test in found.fitted.tests]
        if found.twin is not None:
            reasons += [self._twin(found.twin), self._bend(found.twin)]
        if self.claim.confounders and found.fitted.tests:
            reasons.append(self._rest(found.fitted.best))
        same = found.equivalence(self.delta, self.alpha)[0]
        return (*reasons, self._equivalence(same, found.units, found.partial.k))

    def decide(self, found: Findings, reasons: Sequence[Reason]) -> tuple[Outcome, str]:
        """The first row that holds. What is missing agrees with nothing and leaves no doubt out."""
        tests = [reason for reason in reasons if reason.check not in NO_TESTS]
        counted = [reason for reason in tests if reason.status == "ok"]
        doubts = [reason.fires for reason in reasons if reason.check in DOUBTS]
        controlled = any(reason.check in LEARNERS for reason in counted)
        whole = controlled and all(reason.status != "missing" for reason in tests)
        sure = whole and all(doubt is False for doubt in doubts)
        finds = [reason.fires is False for reason in counted]
        every = [reason.detail["sign"] for reason in counted]
        opposite = len(set(every) - {0.0}) > 1
        significant = bool(counted) and all(reason.detail["p"] < self.alpha for reason in counted)
        agree = sure and all(finds) and not opposite
        wrong = sure and significant and all(map(self._wrong_sign, every))
        enough = found.units >= LEAST_ROWS
        small = controlled and all(same.equivalent for same in found.equivalence(self.delta, self.alpha))
        silent = abs(found.partial.raw) < self.delta and not found.partial.raw_p < self.alpha
        noisy = self.claim.baseline is not None and self.claim.twin is None
        sensitive = any(finds) and (not all(finds) or any(doubts))
        few = f"INCONCLUSIVE (fewer than {LEAST_ROWS} independent rows)"
        rows = (
            (agree and enough and noisy, Outcome.INDEPENDENT, "INDEPENDENT (of this reading of the loss)"),
            (agree and enough, Outcome.INDEPENDENT, "INDEPENDENT"),
            (wrong and enough, Outcome.FAIL, "FAIL(wrong sign)"),
            (small and silent, Outcome.PROXY, "PROXY (silent with and without the controls)"),
            (small, Outcome.PROXY, "PROXY"),
            (agree, Outcome.INCONCLUSIVE, few),
            (
                opposite and significant,
                Outcome.INCONCLUSIVE,
                "INCONCLUSIVE (the tests find opposite signs)",
            ),
            (sensitive, Outcome.INCONCLUSIVE, "INCONCLUSIVE (nuisance-sensitive)"),
            (True, Outcome.INCONCLUSIVE, "INCONCLUSIVE"),
        )
        return next((outcome, words) for holds, outcome, words in rows if holds)

    def _reason(self, check: str, r: float, p: float, text: str, z: float | None = None) -> Reason:
        """A test fires if it does not find the association, or finds it with the wrong sign.

        Where r is not known, z may tell its sign.
        """
        known, sign = not math.isnan(r), float(np.sign(r if z is None else z))
        if math.isnan(p) or math.isnan(sign):
            return self._missing(check, text)
        wrong = self._wrong_sign(sign)
        seen = p < self.alpha and not wrong
        word = "with the wrong sign" if p < self.alpha and wrong else "found" if seen else "not found"
        size = f"{r:+.3f}" if known else "positive" if sign > 0 else "negative"
        sentence = f"{text}: {size}, p = {p:.2g}, {word}."
        detail = {"p": p, "sign": sign}
        return Reason(check, check, not seen, r if known else None, self.alpha, sentence, detail=detail)

    def _missing(self, check: str, text: str) -> Reason:
        return Reason(check, check, None, None, self.alpha, f"{text}: it cannot be computed.", "missing")

    def _twin(self, twin: TwinTest) -> Reason:
        text = f"given what two readings of {self.claim.baseline} share"
        reason = self._reason("twin", twin.r, twin.p, text, twin.z)
        agree = f"the readings agree with a correlation of {twin.reliability:.2f}"
        if reason.status == "missing":
            why = f": {agree}, and nothing is left to test once their noise is taken out."
        elif reason.value is None:
            why = f"; how strong cannot be told: {agree}, and without their noise it comes out beyond ±1."
        else:
            return reason
        return replace(reason, sentence=reason.sentence[:-1] + why)

    def _learner(self, test: LearnerTest) -> Reason:
        reason = self._reason(test.learner, test.r, test.p, f"out of fold, {test.learner} control")
        if test.eligible or reason.status == "missing":
            return reason
        sentence = reason.sentence[:-1] + "; it predicts worse than the best learner and does not count."
        return replace(reason, sentence=sentence, status="not counted", fires=False)

    def _bend(self, twin: TwinTest) -> Reason:
        """Fires if metric and target both bend with what the readings share or with the other controls, all
        of which the twin test takes for straight; whether it fires or not, it finds no association."""
        loss, uneven = self.claim.baseline, twin.unevenness
        text, least, next_step = f"curved effects of {loss} on metric and target", twin.curvature, ""
        if uneven is not None and not least < self.alpha:
            text, least = f"{text}, or uneven ones of other controls", float(np.minimum(least, uneven))
        if math.isnan(least):
            return self._missing("bend", text)
        bent = least < self.alpha
        if bent and least != twin.curvature:
            text, next_step = _told_of(twin.uneven, loss)
        sentence = f"{text}: p = {least:.2g}" + (
            f", found: through noisy readings they cannot be told from news.{next_step}"
            if bent
            else ", not found."
        )
        return Reason("bend", "bend", bent, None, self.alpha, sentence, detail={"p": least})

    def _rest(self, best: LearnerTest) -> Reason:
        """Fires if the controls predict nearly all of the metric: no learner finds a function of several
        controls to rounding, and what it misses in metric and target alike looks like news."""
        text = f"share of {self.claim.metric} that {best.learner} control leaves"
        if math.isnan(best.left):
            return self._missing("rest", text)
        few = best.left < LEAST_LEFT and not abs(best.r) >= SURE
        sentence = f"{text}: {100 * best.left:.1f} %" + (
            ", so little that what a learner misses cannot be told from news." if few else "."
        )
        return Reason("rest", "rest", few, best.left, LEAST_LEFT, sentence)

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

    def _wrong_sign(self, r: float) -> bool:
        return self.claim.direction is not None and (r > 0) != (self.claim.direction == "positive")


def _told_of(uneven: Sequence[str], loss: str | None) -> tuple[str, str]:
    """What acts unevenly, and what to do about it."""
    others = " and ".join(name for name in uneven if name != loss)
    if loss in uneven:
        text = f"effects of {loss} on metric and target that differ with {others}"
    elif len(uneven) > 1:
        text = f"effects on metric and target that {others} have together"
    else:
        text = f"curved effects of {others} on metric and target"
    return text, f" Audit rows that are alike in {others} by themselves."
