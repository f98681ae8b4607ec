"""The canon: each number against a slow version or a closed form; NaN with a reason where there is none."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mutual_info_score

from walkback.core.errors import BadInput
from walkback.metrics import canon, fisher


def grid(seed: int, seeds: int = 2):
    """A full 3 × 2 × 2 grid with repeated runs: metric, target and the axes."""
    rng = np.random.default_rng(seed)
    axes = np.array([c for c in product([0.1, 0.2, 0.4], [0, 1], [16, 32]) for _ in range(seeds)])
    metric = np.round(axes[:, 0] * 5 + rng.normal(size=len(axes)), 1)
    return metric, rng.normal(size=len(axes)) + metric / 2, axes


def test_tau_is_scipys_in_the_direction_of_the_claim():
    metric, target, _ = grid(0)
    tau = stats.kendalltau(metric, target).statistic
    assert canon.kendall_tau(metric, target, direction=1).value == pytest.approx(tau)
    assert canon.kendall_tau(metric, target, direction=-1).value == pytest.approx(-tau)
    with pytest.raises(BadInput, match="direction"):
        canon.kendall_tau(metric, target, direction=0)


def slow_granulated(metric, target, axes):
    """Every pair that differs in one axis, averaged in its slice, then over slices, then over axes."""
    psi = []
    for axis in range(axes.shape[1]):
        slices: dict[tuple, list] = {}
        for i, j in combinations(range(len(metric)), 2):
            others = [a for a in range(axes.shape[1]) if a != axis]
            if (axes[i, others] == axes[j, others]).all() and axes[i, axis] != axes[j, axis]:
                agree = np.sign(metric[i] - metric[j]) * np.sign(target[i] - target[j])
                slices.setdefault(tuple(axes[i, others]), []).append(agree)
        psi.append(np.mean([np.mean(s) for s in slices.values()]))
    return psi


@given(st.integers(0, 500))
def test_granulated_tau_equals_a_loop_over_pairs(seed):
    metric, target, axes = grid(seed, seeds=3)
    found = canon.granulated_tau(metric, target, axes, direction=1)
    slow = slow_granulated(metric, target, axes)
    np.testing.assert_allclose([s.value for s in found.axes], slow)
    assert found.psi == pytest.approx(np.mean(slow))


def test_granulated_tau_sees_an_inversion_that_the_pooled_tau_hides():
    """Along the learning rate the metric rises with the target, but the depth drives both apart."""
    axes = np.array(list(product(range(5), [0, 10])), dtype=float)
    metric, target = axes[:, 0] - axes[:, 1], axes[:, 0] + axes[:, 1]
    found = canon.granulated_tau(metric, target, axes, direction=1)
    assert [s.value for s in found.axes] == [1.0, -1.0] and found.psi == 0.0
    assert canon.kendall_tau(metric, target, direction=1).value < 0


def test_sampled_hyper_parameters_have_no_granulated_tau():
    rng = np.random.default_rng(0)
    found = canon.granulated_tau(*rng.normal(size=(2, 30)), rng.normal(size=(30, 2)), direction=1)
    assert math.isnan(found.psi) and found.reason and all(math.isnan(s.value) for s in found.axes)
    metric, target, axes = grid(0)
    repeated = canon.granulated_tau(metric, target, np.column_stack([axes, axes[:, 0] * 0]), direction=1)
    assert math.isnan(repeated.axes[3].value), "repeated runs alone are no change of a hyper-parameter"
    assert math.isnan(canon.granulated_tau(metric * 0, target, axes, direction=1).psi)


def slow_information(metric, target, place):
    """Σ over cells of p(cell)·I(signs) over Σ p(cell)·H(target sign), pairs listed one by one."""
    cells: dict[tuple, list] = {}
    for i, j in product(range(len(metric)), repeat=2):
        if i != j:
            signs = np.sign(metric[i] - metric[j]), np.sign(target[i] - target[j])
            cells.setdefault((place[i], place[j]), []).append(signs)
    information = entropy = 0.0
    for pairs in cells.values():
        m, t = zip(*pairs, strict=True)
        information += len(pairs) * mutual_info_score(m, t)
        entropy += len(pairs) * mutual_info_score(t, t)
    return information / entropy


def test_conditional_information_equals_a_sum_over_pairs():
    rng = np.random.default_rng(0)
    confounder = rng.normal(size=40)
    metric, target = np.round(confounder + rng.normal(size=(2, 40)), 1)
    found = canon.conditional_information(metric, target, confounder, rng=rng, bins=(2, 4))
    for bins, value in zip(found.bins, found.values, strict=True):
        place = ((stats.rankdata(confounder) - 0.5) / 40 * bins).astype(int)
        assert value == pytest.approx(slow_information(metric, target, place))


def test_what_leaks_through_wide_bins_is_not_reported_and_news_is():
    rng = np.random.default_rng(0)
    loss = rng.normal(size=250)
    target = -loss + 0.5 * rng.normal(size=250)
    leak = canon.conditional_information(loss**3, target, loss, rng=rng, shuffles=5)
    news = canon.conditional_information(
        target + 0.5 * rng.normal(size=250), target, loss, rng=rng, shuffles=5
    )
    assert math.isnan(leak.value) and "binning" in leak.reason
    assert leak.values[0] - leak.floors[0] > 0.01 > abs(leak.values[-1] - leak.floors[-1])
    assert news.value > 0.1 and not news.reason and len(news.values) == len(canon.BINS) == 10


def test_information_of_a_constant_is_nan():
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    found = canon.conditional_information(x * 0, x, x[::-1], rng=rng)
    assert math.isnan(found.value) and "constant" in found.reason


def slow_sign_errors(metric, target, axes):
    errors = []
    settings = sorted({tuple(a) for a in axes})
    for a, b in combinations(settings, 2):
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1:
            runs = [[i for i in range(len(axes)) if tuple(axes[i]) == s] for s in (a, b)]
            pairs = [
                (1 - np.sign(metric[i] - metric[j]) * np.sign(target[i] - target[j])) / 2
                for i, j in product(*runs)
            ]
            errors.append(np.mean(pairs))
    return errors


@given(st.integers(0, 500))
def test_robust_sign_error_is_the_worst_environment(seed):
    metric, target, axes = grid(seed)
    found = canon.robust_sign_error(metric, target, axes, direction=1)
    slow = slow_sign_errors(metric, target, axes)
    assert found.environments == len(slow) == 3 * 4 + 2 * 6
    assert found.robust == pytest.approx(max(slow)) and found.mean == pytest.approx(np.mean(slow))
    assert found.ninetieth == pytest.approx(np.quantile(slow, 0.9))
    against = canon.robust_sign_error(metric, target, axes, direction=-1)
    assert against.mean == pytest.approx(1 - found.mean)


def test_one_inverted_axis_makes_the_worst_case_and_is_named():
    axes = np.array(list(product(range(4), [0.0, 0.1])))
    metric, target = axes[:, 0] - axes[:, 1], axes[:, 0] + axes[:, 1]
    found = canon.robust_sign_error(metric, target, axes, direction=1, names=["lr", "dropout"])
    assert found.robust == 1.0 and found.worst == "dropout: 0.0 → 0.1" and found.mean < 0.5
    quiet = canon.robust_sign_error(metric, target, axes, direction=1, noise=0.5)
    assert quiet.robust == 0.0, "differences within noise do not count"
    silent = canon.robust_sign_error(metric, target, axes, direction=1, noise=99)
    assert math.isnan(silent.robust) and silent.reason


@given(st.integers(0, 500))
def test_rank_numbers_ignore_monotone_transforms_and_the_order_of_runs(seed):
    metric, target, axes = grid(seed)
    mixed = np.random.default_rng(seed).permutation(len(metric))
    other = np.exp(metric[mixed]), target[mixed] ** 3, axes[mixed]

    def numbers(m, t, a):
        return [
            canon.kendall_tau(m, t, direction=1).value,
            canon.granulated_tau(m, t, a, direction=1).psi,
            canon.robust_sign_error(m, t, a, direction=1).robust,
            canon.selection_regret(m, t, direction=1).as_good,
        ]

    np.testing.assert_allclose(numbers(metric, target, axes), numbers(*other), atol=1e-12)


def slow_r2(columns, target, fold):
    error = whole = 0.0
    for f in np.unique(fold):
        test = fold == f
        place = np.column_stack(
            [
                [((c[~test] < v).mean() + (c[~test] <= v).mean()) / 2 for v in c]
                for c in np.atleast_2d(columns.T)
            ]
        )
        model = LinearRegression().fit(place[~test], target[~test])
        error += ((target[test] - model.predict(place[test])) ** 2).sum()
        whole += ((target[test] - target[~test].mean()) ** 2).sum()
    return 1 - error / whole


def test_incremental_r2_equals_sklearn_with_whole_groups_held_out():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 12, 90)
    controls = rng.normal(size=(90, 2))
    metric = rng.normal(size=90)
    target = controls[:, 0] + metric + rng.normal(size=90)
    found = canon.incremental_r2(metric, target, controls, groups=groups, rng=np.random.default_rng(1))
    fold = (np.random.default_rng(1).permutation(12) % 5)[groups]
    assert all(len(set(fold[groups == g])) == 1 for g in range(12))
    assert found.without == pytest.approx(slow_r2(controls, target, fold))
    assert found.with_metric == pytest.approx(slow_r2(np.column_stack([controls, metric]), target, fold))
    assert found.delta == pytest.approx(found.with_metric - found.without)
    table = np.column_stack([controls, metric])
    sums = np.array([canon._held_out(table, target, fold == f) for f in range(5)])
    left = [np.delete(sums, f, axis=0).sum(axis=0) for f in range(5)]
    jackknife = np.std([(b - m) / w for b, m, w in left]) * math.sqrt(4)
    assert found.se == pytest.approx(jackknife, rel=0.25), "to first order, one fold left out"


def test_a_copy_of_a_control_adds_nothing_and_few_groups_are_refused():
    rng = np.random.default_rng(0)
    control, target = rng.normal(size=(2, 60))
    copy = canon.incremental_r2(np.exp(control), target, control, groups=np.arange(60), rng=rng)
    assert copy.delta == pytest.approx(0, abs=1e-9)
    few = canon.incremental_r2(target, control, control, groups=np.arange(60) % 4, rng=rng)
    assert math.isnan(few.delta) and "4 groups" in few.reason


def test_regret_is_the_target_lost_by_the_first_pick():
    target = np.array([0.5, 0.9, 0.7, 0.8])
    metric, loss = np.array([1.0, 2.0, 3.0, 0.0]), np.array([0.9, 0.4, 0.3, 0.2])
    found = canon.selection_regret(metric, target, loss, direction=1)
    assert found.metric == pytest.approx(0.2) and found.baseline == pytest.approx(0.1)
    assert found.random == pytest.approx(0.9 - 0.725) and found.as_good == 0.5
    assert canon.selection_regret(metric, target, direction=-1).metric == pytest.approx(0.1)
    tied = canon.selection_regret(np.array([1.0, 1, 0, 0]), target, direction=1)
    assert tied.metric == pytest.approx(0.9 - 0.7) and math.isnan(tied.baseline)


def test_regret_of_a_target_that_should_be_small():
    loss, metric = np.array([0.5, 0.2, 0.4]), np.array([3.0, 2.0, 1.0])
    found = canon.selection_regret(metric, loss, direction=1, target_sign=-1)
    assert found.metric == pytest.approx(0.2), "the smallest metric promises the smallest loss: .4, not .2"
    assert canon.selection_regret(metric, loss, direction=-1, target_sign=-1).metric == pytest.approx(0.3)


def slow_tost(r, n, k, delta):
    se = 1.06 / math.sqrt(n - k - 3)
    lower = 1 - stats.norm.cdf((math.atanh(r) + math.atanh(delta)) / se)
    upper = stats.norm.cdf((math.atanh(r) - math.atanh(delta)) / se)
    return max(lower, upper)


@given(st.floats(-0.9, 0.9), st.integers(10, 3000), st.integers(0, 5), st.floats(0.05, 0.5))
def test_tost_is_the_larger_of_two_one_sided_tests(r, n, k, delta):
    found = fisher.tost(r, n, k, delta=delta)
    assert found.p == pytest.approx(slow_tost(r, n, k, delta), abs=1e-12)
    assert slow_tost(r, n, k, found.smallest_delta) == pytest.approx(0.05, abs=1e-6)
    if math.isfinite(found.needed_n) and found.needed_n < 1e9:
        n_needed = int(found.needed_n)
        assert slow_tost(r, n_needed, k, delta) <= 0.05 < slow_tost(r, n_needed - 1, k, delta)
    else:
        assert abs(r) >= delta - 1e-4


def test_a_tenth_needs_302_degrees_even_at_zero():
    assert fisher.tost(0.0, 100, 2, delta=0.1).needed_n_at_zero == 302 + 2 + 3
    assert (
        not fisher.tost(0.0, 304, 0, delta=0.1).equivalent
        and fisher.tost(0.0, 305, 0, delta=0.1).equivalent
    )
    assert fisher.tost(0.3, 100, 0, delta=0.2).needed_n == math.inf


def test_no_rows_or_no_correlation_is_nan_not_a_proxy():
    for found in (fisher.tost(math.nan, 100, 0), fisher.tost(0.0, 5, 2)):
        assert math.isnan(found.p) and not found.equivalent and found.reason
    assert math.isnan(fisher.minimum_detectable(5, 2).value)
    with pytest.raises(BadInput, match="margin"):
        fisher.tost(0.0, 100, 0, delta=0.0)


def test_the_detectable_effect_is_found_four_times_in_five():
    for n, k in ((30, 0), (200, 5)):
        effect = fisher.minimum_detectable(n, k).value
        shift = math.atanh(effect) * math.sqrt(n - k - 3) / 1.06
        assert stats.norm.sf(stats.norm.ppf(0.975) - shift) == pytest.approx(0.8)


@pytest.mark.parametrize("bad", [np.zeros(10), np.full(10, np.nan), np.r_[np.inf, np.arange(9.0)]])
def test_degenerate_columns_give_nan_and_a_reason(bad):
    target, axes = np.arange(10.0), np.arange(10.0)[:, None]
    rng = np.random.default_rng(0)
    results = [
        canon.kendall_tau(bad, target, direction=1),
        canon.selection_regret(bad, target, direction=1),
        canon.incremental_r2(bad, target, axes, groups=axes[:, 0], rng=rng),
        canon.conditional_information(bad, target, target, rng=rng),
    ]
    values = [results[0].value, results[1].metric, results[2].delta, results[3].value]
    assert np.isnan(values).all() and all(r.reason for r in results)
    with pytest.raises(BadInput, match="one value per run"):
        canon.kendall_tau(bad[1:], target, direction=1)
