"""What the report of a metric audit says of tests and rows, on tables made for it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from walkback.metrics.several import audit_all
from walkback.report.metric_content import build_metric_report


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
