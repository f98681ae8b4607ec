"""Many tests at once: adjusted p against scipy and slow versions, and no find among nulls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from walkback.metrics import multiple
from walkback.metrics.compat import partial_spearman, ranks, residuals
from walkback.metrics.multiple import benjamini_hochberg, max_t, permutation_battery


def table(seed: int, rows: int = 80, metrics: int = 5, effect: float = 0.0):
    rng = np.random.default_rng(seed)
    controls = rng.normal(size=(rows, 2))
    target = controls[:, 0] + rng.normal(size=rows)
    columns = rng.normal(size=(rows, metrics)) + rng.normal(size=(rows, 1)) + controls[:, :1]
    columns[:, 0] += effect * target
    return columns, target, controls


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_benjamini_hochberg_equals_scipy(p):
    np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p), atol=1e-15)


def test_a_missing_p_is_neither_adjusted_nor_counted():
    adjusted = benjamini_hochberg([0.01, np.nan, 0.04])
    assert np.isnan(adjusted[1])
    np.testing.assert_allclose(adjusted[[0, 2]], stats.false_discovery_control([0.01, 0.04]))
    assert np.isnan(benjamini_hochberg([np.nan])).all() and benjamini_hochberg([]).shape == (0,)


def slow_max_t(observed, null):
    """The book's loop: most extreme first, against the maximum over what is not yet done."""
    order = sorted(range(len(observed)), key=lambda j: -abs(observed[j]))
    adjusted, floor = np.empty(len(observed)), 0.0
    for step, j in enumerate(order):
        reach = [max(abs(row[h]) for h in order[step:]) for row in null]
        floor = max(floor, (1 + sum(m >= abs(observed[j]) for m in reach)) / (1 + len(null)))
        adjusted[j] = floor
    return adjusted


@given(st.integers(0, 10_000))
def test_max_t_equals_the_step_down_loop(seed):
    rng = np.random.default_rng(seed)
    observed, null = 2 * rng.normal(size=6), rng.normal(size=(40, 6))
    np.testing.assert_allclose(max_t(observed, null), slow_max_t(observed, null))


def test_a_draw_that_is_not_known_counts_as_at_least_as_far():
    null = np.zeros((9, 2))
    null[:4, 0] = np.nan
    np.testing.assert_allclose(max_t(np.array([2.0, 1.0]), null), [0.5, 0.5])


def test_max_t_skips_tests_without_a_statistic():
    rng = np.random.default_rng(0)
    observed, null = np.array([2.0, np.nan, 0.3]), rng.normal(size=(50, 3))
    null[:, 1] = np.nan
    adjusted = max_t(observed, null)
    assert np.isnan(adjusted[1])
    np.testing.assert_allclose(adjusted[[0, 2]], slow_max_t(observed[[0, 2]], null[:, [0, 2]]))
    assert np.isnan(max_t(np.array([np.nan]), null[:, :1])).all()


def test_an_infinite_statistic_is_the_most_extreme_and_so_is_an_infinite_draw():
    observed, null = np.array([1.0, np.inf, np.nan]), np.zeros((9, 3))
    assert max_t(observed, null)[:2].tolist() == [0.1, 0.1]
    null[0, 1] = np.inf
    assert max_t(observed, null)[:2].tolist() == [0.2, 0.2]


def test_permutation_statistics_equal_freedman_lane_by_regression():
    columns, target, controls = table(0, rows=30)
    takes = np.argsort(np.random.default_rng(1).random((10, 30)), axis=1)
    mask = np.ones(30, dtype=bool)
    r, statistic, null = multiple._permuted(columns, target, controls, mask, takes)
    matrix = np.column_stack([np.ones(30), ranks(controls)])
    left = residuals(matrix, ranks(target))
    for j in range(columns.shape[1]):
        x = residuals(matrix, ranks(columns[:, j]))
        slow = [np.corrcoef(x, residuals(matrix, left[take]))[0, 1] for take in takes]
        np.testing.assert_allclose(null[:, j], np.array(slow) * np.sqrt(26 / (1 - np.square(slow))))
        found = partial_spearman(columns[:, j], target, ranks(controls))
        assert r[j] == pytest.approx(found.partial)
        assert 2 * stats.t.sf(abs(statistic[j]), 26) == pytest.approx(found.p)


def test_groups_are_ranked_and_controlled_on_their_own():
    columns, target, controls = table(1, effect=0.5)
    first = np.arange(80) < 50
    groups = [np.ones(80, dtype=bool), first, ~first]
    found = permutation_battery(
        columns, target, controls, rng=np.random.default_rng(0), draws=200, groups=groups
    )
    assert found.partial.shape == found.p_max.shape == found.p_bh.shape == (3, 5)
    for g, mask in enumerate(groups):
        for j in range(5):
            slow = partial_spearman(columns[mask, j], target[mask], ranks(controls[mask]))
            assert found.partial[g, j] == pytest.approx(slow.partial)
    assert (found.p_max >= found.p - 1e-12).all() and (found.p_bh >= found.p - 1e-12).all()


def test_draws_made_in_parts_are_those_made_at_once(monkeypatch):
    columns, target, controls = table(3, rows=60)
    whole = permutation_battery(columns, target, controls, rng=np.random.default_rng(0), draws=99)
    monkeypatch.setattr(multiple, "AT_ONCE", 600)
    parts = permutation_battery(columns, target, controls, rng=np.random.default_rng(0), draws=99)
    np.testing.assert_array_equal(whole.p_max, parts.p_max)
    np.testing.assert_array_equal(whole.p, parts.p)


def test_permutations_stay_inside_the_cells_of_overlapping_groups(monkeypatch):
    seen = []
    monkeypatch.setattr(multiple, "_permuted", lambda *a: seen.append(a[-1]) or real(*a))
    columns, target, controls = table(2)
    half = np.arange(80) % 2 == 0
    permutation_battery(
        columns, target, controls, rng=np.random.default_rng(0), draws=20, groups=[half | True, half]
    )
    takes = seen[0]
    assert (np.sort(takes, axis=1) == np.arange(80)).all()
    assert (half[takes] == half).all() and not (takes == np.arange(80)).all()


real = multiple._permuted


def test_a_real_effect_is_found_and_its_neighbours_are_not():
    columns, target, controls = table(3, rows=150, effect=0.0)
    columns[:, 0] += 1.5 * (target - controls[:, 0])
    found = permutation_battery(columns, target, controls, rng=np.random.default_rng(0), draws=999)
    assert found.p_max[0, 0] <= 0.01 and (found.p_max[0, 1:] > 0.05).all()


def clustered_null(seed: int):
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(12), 5)
    columns = rng.normal(size=(12, 6))[codes] + 0.2 * rng.normal(size=(60, 6))
    return columns, rng.normal(size=12)[codes] + 0.2 * rng.normal(size=60), codes


@pytest.mark.parametrize("clustered", [False, True])
def test_max_t_finds_nothing_among_nulls_more_often_than_its_level(clustered):
    wrong = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        if clustered:
            columns, target, codes = clustered_null(seed)
            found = permutation_battery(columns, target, rng=rng, draws=199, clusters=codes)
        else:
            found = permutation_battery(*table(seed, rows=40), rng=rng, draws=199)
        wrong += np.nanmin(found.p_max) <= 0.05
    assert wrong <= stats.binom.ppf(0.999, 80, 0.05)


def test_a_permuted_battery_leaves_degenerate_metrics_nan():
    columns, target, controls = table(4)
    columns[:, 1], columns[:, 2] = 3.0, np.exp(controls[:, 0])
    for clusters in (None, np.arange(80) // 8):
        found = permutation_battery(
            columns, target, controls, rng=np.random.default_rng(0), draws=99, clusters=clusters
        )
        assert np.isnan(found.partial[0]).tolist() == [False, True, True, False, False]
        assert np.isnan(found.p_max[0]).tolist() == [False, True, True, False, False]
    constant = permutation_battery(columns, target * 0, controls, rng=np.random.default_rng(0), draws=99)
    assert np.isnan(constant.p).all() and constant.reason


def test_five_clusters_are_refused():
    columns, target, controls = table(5)
    codes = np.arange(80) % 5
    found = permutation_battery(
        columns, target, controls, rng=np.random.default_rng(0), draws=50, clusters=codes
    )
    assert np.isnan(found.p).all() and np.isnan(found.p_max).all() and found.reason
