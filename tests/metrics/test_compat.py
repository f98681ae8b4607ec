"""The compatibility statistics where the controls leave nothing, or nearly nothing."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from walkback.metrics import MetricAudit
from walkback.metrics.compat import partial_spearman, ranks


def table(n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    loss, m, acc = rng.normal(size=(3, n))
    return pd.DataFrame({"m": loss + m, "acc": acc - loss, "loss": loss, "arch": np.resize(["a", "b"], n)})


def test_what_the_controls_use_up_has_no_partial_correlation():
    frame = table()
    given = ranks(frame[["loss"]].to_numpy())
    for metric, target in ((np.exp(frame.loss), frame.acc), (frame.m, frame.loss**3)):
        found = partial_spearman(metric.to_numpy(), target.to_numpy(), given)
        assert math.isnan(found.partial) and math.isnan(found.p) and found.kind == "insufficient-data"
        assert not math.isnan(found.raw)


def test_a_group_whose_metric_is_a_function_of_the_loss_has_no_partial_correlation():
    frame = table()
    frame["m"] = frame["m"].where(frame["arch"] == "a", np.exp(frame["loss"]))
    first, second = MetricAudit(frame, "m", "acc", "loss", group="arch").run().evidence["groups"]
    assert not math.isnan(first["partial"]) and math.isnan(second["partial"]) and math.isnan(second["p"])


def test_a_group_needs_the_degrees_of_freedom_that_a_table_needs():
    frame = table()
    frame["arch"] = ["few"] * 7 + ["some"] * 8 + ["rest"] * 105
    groups = MetricAudit(frame, "m", "acc", "loss", group="arch").run().evidence["groups"]
    known = {row["group"]: not math.isnan(row["p"]) for row in groups}
    assert known == {"arch=few": False, "arch=some": True, "arch=rest": True}
    assert all(not math.isnan(row["raw"]) for row in groups)
