"""The gate before any statistic, on columns that are nearly what they must not be."""

from __future__ import annotations

import numpy as np
import pytest

from walkback.metrics.admissible import is_monotone_copy


@pytest.mark.parametrize("huge", [1e4, 1e6, 1e12])
def test_one_huge_value_does_not_hide_small_news_in_a_metric_that_follows_the_loss(huge):
    rng = np.random.default_rng(3)
    loss = rng.normal(size=150)
    metric = loss + 0.01 * rng.normal(size=150)
    metric[loss.argmax()] = huge
    assert not is_monotone_copy(metric, loss)
    copy = np.exp(loss)
    copy[loss.argmax()] = huge
    assert is_monotone_copy(copy, loss)
