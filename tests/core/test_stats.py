from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from walkback.core.stats import _item_variance, paired_tost, seed_item_interval


def slow_dyadic_variance(values, sources):
    """Every pair of items that shares a source, one by one."""
    n, r = len(values), values - values.mean()
    meat = sum(r[i] * r[j] for i in range(n) for j in range(n) if set(sources[i]) & set(sources[j]))
    used = len(np.unique(sources))
    return meat / n**2 * used / (used - 1)


@given(st.integers(0, 10_000), st.integers(3, 8))
def test_item_variance_with_two_sources_equals_the_sum_over_sharing_pairs(seed, images):
    rng = np.random.default_rng(seed)
    sources = rng.integers(images, size=(25, 2))
    values = rng.normal(size=25) + rng.normal(size=images)[sources].sum(axis=1)
    iid = values.var(ddof=1) / len(values)
    expected = max(slow_dyadic_variance(values, sources), iid)
    variance, df = _item_variance(values, sources)
    assert variance == pytest.approx(expected, rel=1e-9)
    assert df == len(np.unique(sources)) - 1, "sources are what there is a sample of"


def test_one_seed_without_sources_is_the_ordinary_t_interval():
    rng = np.random.default_rng(0)
    row = rng.normal(size=40)
    found = seed_item_interval(row[None], alpha=0.025)
    low, high = scipy_stats.t.interval(0.95, 39, row.mean(), row.std(ddof=1) / np.sqrt(40))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_seed_term_and_item_term_add_up():
    rng = np.random.default_rng(1)
    d = rng.normal(size=(4, 30)) + rng.normal(size=(4, 1))
    found = seed_item_interval(d, alpha=0.02)
    seed_term = d.mean(axis=1).var(ddof=1) / 4
    item_term = d.mean(axis=0).var(ddof=1) / 30
    assert found.se**2 == pytest.approx(seed_term + item_term)
    df = (seed_term + item_term) ** 2 / (seed_term**2 / 3 + item_term**2 / 29)
    assert found.df == pytest.approx(df)


def test_the_interval_covers_where_a_seed_only_one_does_not():
    """Crossed seed and item effects, three seeds: nominal .96; a seed-only interval forgets the items."""
    rng = np.random.default_rng(2)
    repetitions, both, seed_only = 1000, 0, 0
    for _ in range(repetitions):
        items, seeds = rng.normal(0, 0.5, size=(1, 100)), rng.normal(0, 0.01, size=(3, 1))
        d = items + seeds + rng.normal(0, 0.1, size=(3, 100))
        found = seed_item_interval(d, alpha=0.02)
        both += found.low <= 0 <= found.high
        means = d.mean(axis=1)
        low, high = scipy_stats.t.interval(0.96, 2, means.mean(), means.std(ddof=1) / np.sqrt(3))
        seed_only += low <= 0 <= high
    # A binomial bound: with true coverage .96 fewer than 930 of 1000 has probability < 1e-5.
    assert both >= 930
    assert seed_only < 850


def test_identical_differences_have_a_point_interval():
    found = seed_item_interval(np.full((3, 10), 0.25), alpha=0.02)
    assert (found.low, found.estimate, found.high) == (0.25, 0.25, 0.25)


@given(st.integers(0, 10_000), st.floats(-0.03, 0.03), st.integers(2, 12))
def test_a_paired_tost_over_seeds_is_two_one_sided_t_tests(seed, shift, count):
    d = np.random.default_rng(seed).normal(shift, 0.01, size=count)
    found = paired_tost(d[None], margin=0.015)
    above = scipy_stats.ttest_1samp(d, -0.015, alternative="greater").pvalue
    below = scipy_stats.ttest_1samp(d, 0.015, alternative="less").pvalue
    assert found.p == pytest.approx(max(above, below), rel=1e-9, abs=1e-15)
    inside = max(-found.interval.low, found.interval.high) < 0.015
    assert (found.words == "equivalent") == inside, "the 90 % interval decides as the two tests do"


def test_equivalent_different_and_open_are_three_things():
    near, far, noisy = np.array([[[0.001, 0.0, -0.001]], [[0.09, 0.1, 0.11]], [[0.1, -0.1, 0.0]]])
    words = [paired_tost(d, margin=0.015).words for d in (near, far, -far, noisy)]
    assert words == ["equivalent", "different", "different", "open"]
    same = paired_tost(np.zeros((3, 5)), margin=0.015)
    apart = paired_tost(np.full((3, 5), 0.2), margin=0.015)
    assert (same.p, same.words, apart.p, apart.words) == (0.0, "equivalent", 1.0, "different")


def test_a_tost_with_items_knows_that_items_were_drawn_too():
    """Every seed has the same small difference, so seeds alone are certain; a hundred items are not."""
    rng = np.random.default_rng(3)
    items = rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.8, 0.1], size=100)
    d = np.tile(items - items.mean() + 0.005, (5, 1))
    assert paired_tost(d.mean(axis=1)[None], margin=0.015).p < 1e-9
    assert paired_tost(d, margin=0.015).words == "open"


def test_ends_of_an_interval_do_not_depend_on_the_order_in_which_items_are_added_up():
    """Another processor adds in another order; published tables are compared byte for byte."""
    rng = np.random.default_rng(4)
    d = rng.integers(-1, 2, size=(3, 9973)).astype(float)  # differences of right and wrong answers
    found = [seed_item_interval(d[:, rng.permutation(d.shape[1])], alpha=0.02) for _ in range(40)]
    assert len({(one.low, one.high) for one in found}) == 1
    assert len({one.se for one in found}) > 1, "orders that make no difference show nothing"
