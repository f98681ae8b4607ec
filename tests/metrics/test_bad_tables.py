"""Tables and options that cannot be used end in a sentence, not in a traceback."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome
from walkback.metrics import MetricAudit
from walkback.metrics.admissible import Claim
from walkback.metrics.curve import temporal_curve
from walkback.metrics.ledger import read_tables
from walkback.metrics.simulate import Truth, simulate


def table(n: int = 60) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(0).normal(size=(n, 3)), columns=["m", "acc", "loss"])


def test_a_quote_that_never_ends_in_a_long_table_is_named(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text('m,acc\n1,"2\n' + "3,4\n" * 50_000)
    with pytest.raises(BadInput, match="not a sound CSV table"):
        read_tables([file])


def test_two_columns_of_one_epoch_are_refused():
    frame = table().assign(m_ep5=1.0, m_ep05=2.0, loss_ep5=3.0)
    with pytest.raises(BadInput, match="m_ep5 and m_ep05 are columns of one epoch"):
        temporal_curve(frame, "m", "acc", "loss")


@pytest.mark.parametrize("options", [{"effect": 2.0}, {"effect": math.nan}, {"effect": -1.0}, {"seed": -1}])
def test_a_simulation_needs_a_correlation_and_a_seed_that_exist(options):
    with pytest.raises(BadInput, match="not"):
        simulate(table(), Claim("m", "acc"), runs=1, **options)


def test_a_simulated_column_may_be_called_self():
    frame = table().rename(columns={"m": "self"})
    drawn = Truth.of(frame, Claim("self", "acc")).draw(0.4, np.random.default_rng(0))
    assert drawn["self"].nunique() == 60


def test_complex_numbers_are_refused():
    frame = table()
    frame["m"] = frame["m"] + 1j
    verdict = MetricAudit(frame, "m", "acc", "loss").run()
    assert verdict.outcome is Outcome.REFUSED and "complex numbers" in verdict.reasons[0].sentence
