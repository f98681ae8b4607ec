"""What the tests of a claim say together, from tests whose answers are given."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from walkback.core.verdict import Outcome
from walkback.metrics.admissible import Claim
from walkback.metrics.compat import Partial
from walkback.metrics.crossfit import CrossFit, LearnerTest
from walkback.metrics.decision import Decision, Findings
from walkback.metrics.twin import TwinTest

CLAIM = Claim("m", "acc", "loss")


def decide(
    *learners: LearnerTest, r: float, p: float, raw: float = 0.5, raw_p: float = 0.0, units: int = 60
):
    """The outcome and its words, from ranks and learners alone."""
    partial = Partial(raw, raw_p, r, p, units, 1)
    found = Findings(partial, p, CrossFit(learners, {}), grouped=None, twin=None, units=units)
    decision = Decision(CLAIM, delta=0.2, alpha=0.05)
    return decision.decide(found, decision.reasons(found))


def learner(name: str, r: float, p: float, *, eligible: bool) -> LearnerTest:
    return LearnerTest(name, r=r, z=math.nan, p=p, error=0.5, eligible=eligible)


def test_a_learner_that_does_not_count_makes_no_verdict_nuisance_sensitive():
    silent, weak = learner("linear", 0.1, 0.4, eligible=True), learner("trees", 0.5, 0.001, eligible=False)
    assert decide(silent, weak, r=0.1, p=0.4) == (Outcome.INCONCLUSIVE, "INCONCLUSIVE")
    loud = learner("spline", 0.5, 0.001, eligible=True)
    assert decide(silent, loud, r=0.1, p=0.4)[1] == "INCONCLUSIVE (nuisance-sensitive)"


def test_a_proxy_is_silent_only_where_the_raw_association_was_not_found():
    line = learner("linear", 0.0, 0.9, eligible=True)
    found = {raw_p: decide(line, r=0.0, p=0.9, raw=0.17, raw_p=raw_p, units=400) for raw_p in (0.0006, 0.3)}
    assert found[0.0006] == (Outcome.PROXY, "PROXY")
    assert found[0.3] == (Outcome.PROXY, "PROXY (silent with and without the controls)")


def test_what_learners_leave_of_a_metric_that_the_controls_predict_is_no_news():
    found = [learner(name, 0.3, 0.001, eligible=True) for name in ("linear", "kernel ridge")]
    for left, told in ((0.5, Outcome.INDEPENDENT), (0.05, Outcome.INCONCLUSIVE)):
        tests = [replace(each, left=left) for each in found]
        assert decide(*tests, r=0.3, p=0.001, units=300)[0] is told


def test_a_strong_rest_is_news_however_well_the_controls_predict_the_metric():
    tests = [replace(learner("linear", 0.9, 0.0, eligible=True), left=0.05)]
    assert decide(*tests, r=0.9, p=0.0, units=300)[0] is Outcome.INDEPENDENT


def found(
    r: float = 0.5, p: float = 0.001, *, learners: tuple[LearnerTest, ...] | None = None, **changed
) -> Findings:
    """Ranks, one learner and the twin all find the same, on 300 rows, and no doubt is open."""
    line = replace(learner("linear", r, p, eligible=True), left=0.5)
    given = {
        "partial": Partial(0.5, 0.0, r, p, 300, 1),
        "permuted": p,
        "fitted": CrossFit((line,) if learners is None else learners, {}),
        "grouped": None,
        "twin": None,
        "units": 300,
    }
    return Findings(**{**given, **changed})


def told(findings: Findings, claim: Claim = CLAIM) -> str:
    decision = Decision(claim, delta=0.2, alpha=0.05)
    outcome, said = decision.decide(findings, decision.reasons(findings))
    assert said.startswith(outcome.value)
    return said


TWINNED = replace(CLAIM, twin="again")
TWIN = TwinTest(0.5, 5.0, 0.001, 0.8, curvature=0.5, unevenness=0.5)
LOST = LearnerTest("linear", math.nan, math.nan, math.nan, math.nan, eligible=False)
NEGATIVE = replace(CLAIM, direction="negative")
BIG = replace(learner("spline", 0.5, 0.001, eligible=True), left=0.5)
OPPOSITE = replace(BIG, r=-0.5)
SILENT = Partial(0.01, 0.9, 0.0, 0.9, 300, 1)
SENSITIVE = "INCONCLUSIVE (nuisance-sensitive)"
ROWS = {
    "one reading": (found(), CLAIM, "INDEPENDENT (of this reading of the loss)"),
    "a twin": (found(twin=TWIN), TWINNED, "INDEPENDENT"),
    "no baseline": (found(), Claim("m", "acc", controls=("lr",)), "INDEPENDENT"),
    "wrong sign": (found(), NEGATIVE, "FAIL(wrong sign)"),
    "small": (found(0.0, 0.9), CLAIM, "PROXY"),
    "small and silent": (
        found(0.0, 0.9, partial=SILENT),
        CLAIM,
        "PROXY (silent with and without the controls)",
    ),
    "few rows": (found(units=99), CLAIM, "INCONCLUSIVE (fewer than 100 independent rows)"),
    "few rows, wrong sign": (found(units=99), NEGATIVE, "INCONCLUSIVE"),
    "opposite signs": (
        found(learners=(BIG, OPPOSITE)),
        CLAIM,
        "INCONCLUSIVE (the tests find opposite signs)",
    ),
    "some find": (found(0.15, 0.2, learners=(BIG,)), CLAIM, SENSITIVE),
    "small by ranks alone": (found(0.0, 0.9, learners=(BIG,)), CLAIM, SENSITIVE),
    "bend": (found(twin=replace(TWIN, curvature=0.001)), TWINNED, SENSITIVE),
    "uneven": (found(twin=replace(TWIN, unevenness=0.001)), TWINNED, SENSITIVE),
    "bend, wrong sign": (
        found(twin=replace(TWIN, curvature=0.001)),
        replace(TWINNED, direction="negative"),
        "INCONCLUSIVE",
    ),
    "rest": (found(0.3, learners=(replace(BIG, r=0.3, left=0.05),)), CLAIM, SENSITIVE),
    "none finds": (found(0.15, 0.2), CLAIM, "INCONCLUSIVE"),
    "twin missing": (
        found(twin=TwinTest(*[math.nan] * 3, 0.8, curvature=0.5)),
        TWINNED,
        "INCONCLUSIVE",
    ),
    "twin missing, wrong sign": (
        found(twin=TwinTest(*[math.nan] * 3, 0.8, curvature=0.5)),
        replace(TWINNED, direction="negative"),
        "INCONCLUSIVE",
    ),
    "bend missing": (found(twin=replace(TWIN, curvature=math.nan)), TWINNED, "INCONCLUSIVE"),
    "unevenness missing": (found(twin=replace(TWIN, unevenness=math.nan)), TWINNED, "INCONCLUSIVE"),
    "rest missing": (found(learners=(replace(BIG, left=math.nan),)), CLAIM, "INCONCLUSIVE"),
    "ranks missing": (found(permuted=math.nan), CLAIM, "INCONCLUSIVE"),
    "ranks missing, small": (found(0.0, 0.9, permuted=math.nan), CLAIM, "INCONCLUSIVE"),
    "every learner missing": (found(learners=(LOST,)), CLAIM, "INCONCLUSIVE"),
    "every learner missing, wrong sign": (found(learners=(LOST,)), NEGATIVE, "INCONCLUSIVE"),
    "every learner missing, small": (found(0.0, 0.9, learners=(LOST,)), CLAIM, "INCONCLUSIVE"),
    "no learner": (found(learners=()), CLAIM, "INCONCLUSIVE"),
    "no learner counts": (found(learners=(replace(BIG, eligible=False),)), CLAIM, "INCONCLUSIVE"),
    "one learner missing": (found(learners=(BIG, LOST)), CLAIM, "INCONCLUSIVE"),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_the_tests_say_together(name):
    findings, claim, words = ROWS[name]
    assert told(findings, claim) == words


def test_a_learner_whose_test_cannot_be_computed_is_missing_and_not_merely_uncounted():
    reasons = Decision(CLAIM, delta=0.2, alpha=0.05).reasons(found(learners=(BIG, LOST)))
    lost = next(reason for reason in reasons if reason.check == "linear")
    assert lost.status == "missing" and lost.fires is None
