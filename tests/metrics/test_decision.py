"""What the tests of a claim say together, from tests whose answers are given."""

from __future__ import annotations

import math
from dataclasses import replace

from walkback.core.verdict import Outcome
from walkback.metrics.admissible import Claim
from walkback.metrics.compat import Partial
from walkback.metrics.crossfit import CrossFit, LearnerTest
from walkback.metrics.decision import Decision, Findings

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
