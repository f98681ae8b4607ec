"""Clustered rows: fast draws equal rows written out, and six clusters of five do not fool the test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from walkback.core.errors import BadInput
from walkback.metrics.clusters import WildModel, cluster_test, sign_vectors
from walkback.metrics.compat import partial_spearman, ranks, residuals
from walkback.metrics.intervals import bca_interval, cluster_bootstrap, draw_counts, rank_correlations


def table(seed: int, rows: int = 60, clusters: int = 12):
    """Tied metric, curved target, a numeric and a 0/1 control, clusters of unequal size."""
    rng = np.random.default_rng(seed)
    codes = np.r_[np.arange(clusters), rng.integers(0, clusters, rows - clusters)]
    shared = rng.normal(size=clusters)[codes]
    metric = np.round(shared + rng.normal(size=rows), 1)
    controls = np.column_stack([rng.normal(size=rows), codes % 2])
    target = np.exp(shared + controls[:, 0] + rng.normal(size=rows))
    return metric, target, controls, codes


def written_out(metric, target, controls, codes, counts):
    """A draw the slow way: rows repeated, ranked and regressed."""
    rows = np.repeat(np.arange(len(codes)), counts[codes])
    return partial_spearman(metric[rows], target[rows], ranks(controls[rows]))


def null_table(seed: int):
    """Six clusters of five rows, metric and target nearly constant inside each and unrelated."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(6), 5)
    metric, target = (rng.normal(size=6)[codes] + 0.1 * rng.normal(size=30) for _ in range(2))
    return metric, target, codes


def rejections(tables: int) -> tuple[int, int]:
    """How often the cluster test and the usual p reject a true null at .05."""
    ours = usual = 0
    for seed in range(tables):
        metric, target, codes = null_table(seed)
        rng = np.random.default_rng(seed)
        ours += cluster_test(metric, target, clusters=codes, rng=rng, effect=None).p <= 0.05
        usual += partial_spearman(metric, target).p <= 0.05
    return ours, usual


def test_a_draw_equals_the_drawn_rows_written_out_and_ranked_anew():
    metric, target, controls, codes = table(0)
    counts = draw_counts(12, 40, np.random.default_rng(1))
    raw, part = rank_correlations(metric[:, None], target, controls, counts, codes)
    slow = [written_out(metric, target, controls, codes, c) for c in counts]
    np.testing.assert_allclose(raw[:, 0], [s.raw for s in slow], atol=1e-12)
    np.testing.assert_allclose(part[:, 0], [s.partial for s in slow], atol=1e-10)


def test_a_control_level_that_a_draw_misses_does_no_harm():
    metric, target, _, codes = table(2)
    controls = np.column_stack([(codes == 3), (codes == 3) * 2 + (codes == 4)]).astype(float)
    counts = np.ones((1, 12), dtype=np.int64)
    counts[0, 3] = 0
    _, part = rank_correlations(metric[:, None], target, controls, counts, codes)
    assert part[0, 0] == pytest.approx(written_out(metric, target, controls, codes, counts[0]).partial)


def test_a_metric_that_is_a_control_has_no_partial_correlation_in_any_draw():
    metric, target, _, codes = table(3)
    counts = draw_counts(12, 20, np.random.default_rng(0))
    _, part = rank_correlations(np.exp(metric)[:, None], target, metric[:, None], counts, codes)
    assert np.isnan(part).all()


@given(st.integers(0, 10_000))
def test_draws_ignore_monotone_transforms_and_the_order_of_rows(seed):
    metric, target, controls, codes = table(seed, rows=30, clusters=7)
    counts = draw_counts(7, 5, np.random.default_rng(seed))
    _, part = rank_correlations(metric[:, None], target, controls, counts, codes)
    mixed = np.random.default_rng(seed).permutation(30)
    bent = np.exp(metric[mixed])[:, None]
    _, other = rank_correlations(bent, np.log(target[mixed]), controls[mixed], counts, codes[mixed])
    np.testing.assert_allclose(part, other, atol=1e-9)


def test_each_bootstrap_draw_has_as_many_clusters_as_the_table():
    counts = draw_counts(9, 500, np.random.default_rng(0))
    assert (counts.sum(axis=1) == 9).all() and counts.min() == 0
    assert stats.chisquare(counts.sum(axis=0)).pvalue > 1e-3


def slow_statistic(metric, target, controls, codes, signs):
    """Wild bootstrap by the book: new targets, one regression, and one more without each cluster."""
    nothing = np.column_stack([np.ones(len(codes)), ranks(controls)])
    y = ranks(target)
    left = residuals(nothing, y)
    drawn = y - left + left * signs[codes]
    full = np.column_stack([nothing, ranks(metric)])

    def slope(keep):
        return np.linalg.lstsq(full[keep], drawn[keep], rcond=None)[0][-1]

    whole = slope(codes >= 0)
    return whole / math.sqrt(sum((slope(codes != g) - whole) ** 2 for g in np.unique(codes)))


def test_the_wild_statistic_equals_regressions_on_drawn_targets():
    metric, target, controls, codes = table(4, rows=40, clusters=8)
    model = WildModel.of(metric, target, ranks(controls), codes)
    signs = sign_vectors(8, 0, np.random.default_rng(0))[:25]
    slow = [slow_statistic(metric, target, controls, codes, s) for s in signs]
    np.testing.assert_allclose(model.statistics(model.y, signs), slow, rtol=1e-8)


def test_p_of_few_clusters_is_the_share_of_all_sign_vectors():
    metric, target, controls, codes = table(5, rows=36, clusters=6)
    found = cluster_test(metric, target, controls, clusters=codes, rng=np.random.default_rng(0))
    every = 1.0 - 2 * ((np.arange(64)[:, None] >> np.arange(6)) & 1)
    slow = np.abs([slow_statistic(metric, target, controls, codes, s) for s in every])
    assert found.p == pytest.approx((slow >= slow[0] * (1 - 1e-9)).mean())
    assert found.smallest_p == 2 / 64 and found.draws == 32 and "all signs" in found.method


def test_signs_are_enumerated_to_thirteen_clusters_and_sampled_beyond():
    rng = np.random.default_rng(0)
    every = sign_vectors(7, 10, rng)
    both = {tuple(s) for s in np.r_[every, -every]}
    assert len(every) == 64 and len(both) == 128
    assert len(sign_vectors(13, 10, rng)) == 4096 and len(sign_vectors(14, 10, rng)) == 10


def test_sampled_signs_agree_with_all_of_them():
    metric, target, controls, codes = table(6, rows=50, clusters=10)
    exact = cluster_test(metric, target, controls, clusters=codes, rng=np.random.default_rng(0)).p
    model = WildModel.of(metric, target, ranks(controls), codes)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (4000, 10))
    _, sampled = model.test(model.y, signs, exhaustive=False)
    assert sampled == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000) + 1e-3)


@pytest.mark.parametrize("clusters", [1, 2, 5])
def test_five_clusters_or_fewer_are_refused_with_a_reason(clusters):
    metric, target, controls, codes = table(7, rows=30, clusters=clusters)
    rng = np.random.default_rng(0)
    found = cluster_test(metric, target, controls[:, :1], clusters=codes, rng=rng)
    assert found.status == "refused" and f"{clusters} cluster" in found.reason and math.isnan(found.p)
    interval = cluster_bootstrap(metric, target, controls[:, :1], clusters=codes, rng=rng)
    assert np.isnan([interval.percentile, interval.bca]).all() and "clusters" in interval.reason


def test_a_metric_made_of_the_controls_or_constant_is_refused():
    metric, target, controls, codes = table(8)
    rng = np.random.default_rng(0)
    copy = cluster_test(np.exp(controls[:, 0]), target, controls, clusters=codes, rng=rng)
    constant = cluster_test(metric * 0, target, controls, clusters=codes, rng=rng)
    assert copy.status == constant.status == "refused" and "metric" in copy.reason
    assert cluster_bootstrap(metric * 0, target, controls, clusters=codes, rng=rng).reason


def test_a_perfect_order_of_six_clusters_has_the_smallest_p_and_no_less():
    codes = np.repeat(np.arange(6), 5)
    found = cluster_test(codes, codes**2, clusters=codes, rng=np.random.default_rng(0))
    assert found.status == "ok" and found.p == found.smallest_p == 2 / 64


def test_controls_that_use_up_the_clusters_are_refused():
    """Five indicators leave one contrast of seven clusters: its error cannot be estimated."""
    codes = np.repeat(np.arange(7), 5)
    controls = (codes[:, None] == np.arange(5)).astype(float)
    metric, target = np.random.default_rng(0).normal(size=(2, 7))[:, codes]
    found = cluster_test(metric, target, controls, clusters=codes, rng=np.random.default_rng(0))
    assert found.status == "refused" and "Without one of the clusters" in found.reason


def test_labels_must_match_the_rows():
    metric, target, _, codes = table(9)
    with pytest.raises(BadInput, match="one label per row"):
        cluster_test(metric, target, clusters=codes[1:], rng=np.random.default_rng(0))


def test_power_grows_with_the_effect_and_is_the_level_without_one():
    metric, target, controls, codes = table(10, rows=90, clusters=15)
    power = [
        cluster_test(metric, target, controls, clusters=codes, rng=np.random.default_rng(0), effect=e).power
        for e in (0.0, 0.3, 0.8)
    ]
    assert power[0] < 0.12 and power[0] < power[1] <= power[2] and power[2] > 0.8


def test_six_clusters_of_five_reject_a_true_null_no_more_than_they_should():
    ours, usual = rejections(200)
    assert ours <= stats.binom.ppf(0.999, 200, 0.05), "binomial bound at .05"
    assert usual >= stats.binom.ppf(0.001, 200, 0.29), "the trap is there: the usual p falls into it"


@pytest.mark.slow
def test_six_clusters_of_five_reject_at_most_seven_per_cent_of_2000_nulls():
    ours, usual = rejections(2000)
    assert ours <= 0.07 * 2000 and usual > 0.29 * 2000


def test_intervals_are_quantiles_of_the_draws():
    metric, target, controls, codes = table(11)
    found = cluster_bootstrap(
        metric, target, controls, clusters=codes, rng=np.random.default_rng(3), draws=200, level=0.9
    )
    counts = draw_counts(12, 200, np.random.default_rng(3))
    slow = [written_out(metric, target, controls, codes, c) for c in counts]
    np.testing.assert_allclose(found.percentile, np.quantile([s.partial for s in slow], [0.05, 0.95]))
    np.testing.assert_allclose(found.raw_percentile, np.quantile([s.raw for s in slow], [0.05, 0.95]))
    assert np.isnan(found.bca).all() and "20 clusters" in found.reason and found.undefined == 0


def test_bca_of_single_rows_agrees_with_scipy():
    rng = np.random.default_rng(0)
    metric = rng.normal(size=40)
    target = metric + rng.normal(size=40)
    ours = cluster_bootstrap(metric, target, clusters=np.arange(40), rng=rng, draws=4000)

    def spearman(x, y):
        return partial_spearman(x, y).raw

    theirs = stats.bootstrap(
        (metric, target), spearman, paired=True, vectorized=False, n_resamples=2000, rng=rng, method="BCa"
    ).confidence_interval
    np.testing.assert_allclose(ours.bca, (theirs.low, theirs.high), atol=0.03)
    assert ours.bca[0] != ours.percentile[0]


def test_bca_without_bias_or_skew_is_the_percentile_interval():
    draws, tails = np.linspace(-1, 1, 2001), np.array([0.025, 0.975])
    ends, reason = bca_interval(0.0, draws, np.array([-1.0, 1.0, -0.5, 0.5]), tails)
    np.testing.assert_allclose(ends, np.quantile(draws, tails), atol=1e-12)
    assert not reason
    assert np.isnan(bca_interval(2.0, draws, draws, tails)[0]).all()


def test_the_same_generator_gives_the_same_answer():
    metric, target, controls, codes = table(12, rows=80, clusters=25)

    def once():
        rng = np.random.default_rng(5)
        test = cluster_test(metric, target, controls, clusters=codes, rng=rng, draws=99)
        return test, cluster_bootstrap(metric, target, controls, clusters=codes, rng=rng, draws=50)

    assert once() == once()
