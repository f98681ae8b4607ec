"""A correlation freed of the noise of two readings is an estimate, and may come out as none."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from walkback.core.verdict import Outcome, Reason, Verdict
from walkback.metrics import MetricAudit
from walkback.metrics.admissible import confounder_matrix
from walkback.metrics.several import audit_all
from walkback.metrics.twin import TwinTest, twin_test
from walkback.report.metric_content import build_metric_report


def readings(seed: int, own: float, noise: float, effect: float, n: int = 120) -> pd.DataFrame:
    """A metric and a target that follow a loss and have `own` parts of their own, which go together."""
    rng = np.random.default_rng(seed)
    loss = rng.normal(size=n)
    rest = own * rng.multivariate_normal([0, 0], [[1, effect], [effect, 1]], n)
    noisy = {name: loss + noise * rng.normal(size=n) for name in ("loss", "again")}
    return pd.DataFrame({"m": loss + rest[:, 0], "acc": rest[:, 1] - loss, **noisy})


def strong(seed: int = 2) -> pd.DataFrame:
    """So strong an effect that without the noise of the readings its estimate is beyond 1."""
    return readings(seed, own=1.0, noise=0.5, effect=0.97)


def small(seed: int = 2) -> pd.DataFrame:
    """A metric that is nearly the loss, and readings so noisy that less than nothing is left of it."""
    return readings(seed, own=0.2, noise=1.0, effect=0.0)


def twin_of(frame: pd.DataFrame) -> TwinTest:
    columns = (frame[name].to_numpy() for name in ("m", "acc", "loss", "again"))
    return twin_test(*columns, np.empty((len(frame), 0)))


def audited(frame: pd.DataFrame, **options) -> tuple[Verdict, Reason]:
    verdict = MetricAudit(frame, "m", "acc", "loss", twin="again", **options).run()
    return verdict, next(reason for reason in verdict.reasons if reason.check == "twin")


def test_a_correlation_is_never_printed_beyond_one_and_its_test_stands():
    verdict, twin = audited(strong())
    assert verdict.outcome is Outcome.INDEPENDENT and twin.fires is False and twin.value is None
    assert "positive, p = " in twin.sentence and "found; how strong cannot be told" in twin.sentence
    assert "beyond ±1" in twin.sentence and "correlation of 0.78" in twin.sentence
    assert math.isnan(verdict.evidence["tests"]["twin"]["r"])


def test_a_size_that_is_not_known_has_a_sign_all_the_same():
    assert audited(strong(), direction="negative")[0].verdict == "FAIL(wrong sign)"
    assert audited(strong(), direction="positive")[0].outcome is Outcome.INDEPENDENT


def test_no_seed_gives_a_correlation_beyond_one():
    found = [twin_of(strong(seed)) for seed in range(40)]
    assert all(math.isnan(twin.r) or abs(twin.r) <= 1 for twin in found)
    assert sum(math.isnan(twin.r) for twin in found) >= 5 and all(twin.p < 0.05 for twin in found)


def test_a_metric_of_which_the_noise_leaves_nothing_is_not_tested():
    twin = twin_of(small())
    assert math.isnan(twin.p) and twin.reliability == pytest.approx(0.458, abs=1e-3)
    verdict, reason = audited(small())
    assert verdict.outcome is Outcome.INCONCLUSIVE and reason.status == "missing"
    assert "correlation of 0.46, and nothing is left to test" in reason.sentence
    assert not any("nan" in reason.sentence for reason in verdict.reasons)


def test_the_report_shows_no_size_where_none_is_known():
    frame = strong()
    section = build_metric_report(audit_all(frame, ["m"], "acc", "loss", twin="again"), frame).sections[0]
    row = next(row for row in section.reasons.rows if row["check"] == "twin")
    assert row["value"] is None and row["counted"] == "counted" and "beyond ±1" in row["sentence"]
    assert "twin" not in [effect.name for effect in section.effects]


def uneven(seed: int, kind: str, n: int = 200) -> pd.DataFrame:
    """A null: metric and target are one function of loss and controls, and the loss is read twice."""
    rng = np.random.default_rng([5, seed])
    loss, rate, decay = rng.normal(size=(3, n))
    arch = rng.integers(0, 3, n)
    acts = {
        "slopes": np.array([2.0, 0.3, -1.0])[arch] * loss,
        "rates": loss * np.exp(0.7 * rate),
        "curve": loss + rate**2,
        "pair": loss + rate * decay,
        "straight": loss + rate + decay + np.array([0.0, 1.0, -1.0])[arch],
    }[kind]
    noise = 0.5 * rng.normal(size=(2, n))
    read = {name: loss + 0.4 * rng.normal(size=n) for name in ("loss", "again")}
    given = {"lr": rate, "wd": decay, "arch": np.array(list("abc"))[arch]}
    return pd.DataFrame({**read, **given, "m": acts + noise[0], "acc": noise[1] - acts})


TOLD = {
    "slopes": (["arch"], "effects of loss on metric and target that differ with arch"),
    "rates": (["lr"], "effects of loss on metric and target that differ with lr"),
    "curve": (["lr"], "curved effects of lr on metric and target"),
    "pair": (["lr", "wd"], "effects on metric and target that lr and wd have together"),
}


@pytest.mark.parametrize("kind", TOLD)
def test_a_loss_or_a_control_that_acts_unevenly_is_not_called_news_and_the_answer_says_why(kind):
    controls, why = TOLD[kind]
    verdict = MetricAudit(uneven(1, kind), "m", "acc", "loss", controls, twin="again").run()
    bend = next(reason for reason in verdict.reasons if reason.check == "bend")
    assert bend.fires and why in bend.sentence
    assert f"Audit rows that are alike in {' and '.join(controls)} by themselves." in bend.sentence
    assert verdict.outcome is Outcome.INCONCLUSIVE


def twin_given(frame: pd.DataFrame, controls: list[str]) -> TwinTest:
    columns = (frame[name].to_numpy() for name in ("m", "acc", "loss", "again"))
    return twin_test(*columns, confounder_matrix(frame, controls))


@pytest.mark.parametrize("kind", TOLD)
def test_uneven_effects_are_seen_in_every_table(kind):
    found = [twin_given(uneven(seed, kind), TOLD[kind][0]) for seed in range(30)]
    assert all(twin.unevenness < 0.05 for twin in found)
    assert sum(twin.p < 0.05 for twin in found) >= 15, "what the doubt is there to stop"


def test_straight_effects_are_seldom_called_uneven_and_news_beside_them_is_found():
    """P(more than 4 of 60 | a rate of .01) < .001."""
    controls, doubted, seen = ["lr", "wd", "arch"], 0, 0
    for seed in range(60):
        frame = uneven(seed, "straight")
        news = 0.8 * np.random.default_rng([6, seed]).normal(size=len(frame))
        doubted += twin_given(frame, controls).unevenness < 0.05
        twin = twin_given(frame.assign(m=frame.m + news, acc=frame.acc + news), controls)
        seen += twin.p < 0.05 and not twin.unevenness < 0.05
    assert doubted <= 4 and seen >= 54
    real = frame.assign(m=frame.m + news, acc=frame.acc + news)
    assert MetricAudit(real, "m", "acc", "loss", controls, twin="again").run().verdict == "INDEPENDENT"


def test_a_category_of_one_run_has_no_shape_and_without_controls_there_is_none_to_look_for():
    frame = uneven(1, "straight")
    assert twin_of(frame).unevenness is None
    alone = frame.assign(arch=np.where(frame.index == 3, "b", "a"))
    assert twin_given(alone, ["arch"]).unevenness is None
