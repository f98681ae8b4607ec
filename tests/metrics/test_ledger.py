"""Run tables: which rows are the same run, and which tables are refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from walkback.metrics import MetricAudit
from walkback.metrics.ledger import repeated_runs


def coarse(n: int = 60) -> pd.DataFrame:
    """Runs whose metric, target and loss have a few values each."""
    rng = np.random.default_rng(0)
    loss, news, rest = rng.normal(size=(3, n))
    return pd.DataFrame({"m": loss + news, "acc": loss + news + 0.7 * rest, "loss": loss}).round(0)


@pytest.mark.parametrize(
    "named",
    [{"run": [f"run{i}" for i in range(60)]}, {"lr": np.arange(60) // 5, "seed": np.arange(60) % 5}],
)
def test_a_coarse_table_that_names_its_runs_counts_once_however_often_it_is_pooled(named):
    frame = coarse().assign(**named)
    once = MetricAudit(frame, "m", "acc", "loss").run()
    often = MetricAudit(pd.concat([frame] * 4), "m", "acc", "loss").run()
    assert once.evidence["n"] == often.evidence["n"] == 60
    assert often.verdict == once.verdict and often.evidence["tests"] == once.evidence["tests"]


def test_equal_rows_that_no_column_tells_apart_may_be_runs_of_their_own():
    frame = coarse().assign(arch=np.resize(["a", "b"], 60))
    assert frame.duplicated().any() and not repeated_runs(frame, ["m", "acc", "loss"]).any()
    assert MetricAudit(frame, "m", "acc", "loss").run().evidence["n"] == 60


def test_columns_that_cannot_be_compared_do_not_stop_an_audit():
    frame = coarse().assign(run=range(60), losses=[[0.1, 0.2]] * 60)
    assert MetricAudit(pd.concat([frame, frame]), "m", "acc", "loss").run().evidence["n"] == 60
