"""What the report of a metric audit says of tests and rows, on tables made for it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from walkback.metrics import MetricAudit
from walkback.metrics.several import audit_all
from walkback.report.metric_content import build_metric_report, sentence_of


def runs(n: int = 120, seed: int = 0) -> pd.DataFrame:
    """Two readings of a loss, and a metric that shares more with the target than the loss."""
    rng = np.random.default_rng(seed)
    loss, news, rest, first, second = rng.normal(size=(5, n))
    columns = {"m": loss + news, "acc": loss + news + 0.5 * rest}
    return pd.DataFrame({**columns, "loss": loss + 0.2 * first, "again": loss + 0.2 * second})


def test_a_bend_is_no_test_that_finds_the_association():
    frame = runs()
    audits = audit_all(frame, ["m"], "acc", "loss", twin="again")
    report = build_metric_report(audits, frame)
    told = {row["check"]: row["counted"] for row in report.sections[0].reasons.rows}
    assert told["bend"] == "against the twin" and told["equivalence"] == "for PROXY"
    counted = list(told.values()).count("counted")
    assert f"each of the {counted} tests that count finds it" in report.sections[0].sentence


def test_repeated_rows_that_were_left_out_are_not_said_to_count_twice():
    frame = runs(60)
    twice = pd.concat([frame, frame[:7]], ignore_index=True)
    told = " ".join(build_metric_report(audit_all(twice, ["m"], "acc", "loss"), twice).row_notes)
    assert "7 rows were left out, because another is the same run" in told and "counts twice" not in told
    coarse = twice.round(0)
    told = " ".join(build_metric_report(audit_all(coarse, ["m"], "acc", "loss"), coarse).row_notes)
    assert "counts twice" in told and "left out" not in told


def test_a_verdict_that_every_test_finds_and_a_doubt_leaves_open_says_which():
    rng = np.random.default_rng(8)
    x = rng.uniform(0.1, 1, (300, 3))
    metric = x.prod(axis=1)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(
        m=metric, acc=metric + 0.4 * metric.std() * rng.normal(size=300)
    )
    said = sentence_of(MetricAudit(frame, "m", "acc", controls=["a", "b", "c"]).run())
    assert "3 of 3 tests that count find it" in said
    assert "but the controls predict nearly all of the metric" in said
