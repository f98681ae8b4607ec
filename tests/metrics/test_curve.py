"""The temporal curve against the pieces it is made of."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from walkback.cli.main import run
from walkback.core.errors import BadInput
from walkback.metrics.compat import partial_spearman, ranks
from walkback.metrics.curve import sentence_of, temporal_curve
from walkback.metrics.fisher import rank_interval


def table(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    target = rng.normal(size=rows)
    names = ["sam_ep5", "sam_ep20", "sam_ep100", "val_loss_ep20", "val_loss_ep5"]
    names += ["val_loss", "asam_ep5", "sam_epx"]
    columns = {name: target + rng.normal(size=rows) for name in names}
    return pd.DataFrame({"acc": target, "lr": rng.normal(size=rows), **columns})


def test_the_curve_takes_the_epochs_that_both_columns_have_and_gives_each_the_other():
    frame = table()
    curve = temporal_curve(frame, "sam", "acc", "val_loss", ["lr"])
    assert [moment.epoch for moment in curve] == [5, 20]
    metric, loss, target, lr = (frame[name].to_numpy() for name in ("sam_ep5", "val_loss_ep5", "acc", "lr"))
    given_loss = partial_spearman(metric, target, np.column_stack([ranks(loss), ranks(lr)]))
    given_metric = partial_spearman(loss, target, np.column_stack([ranks(metric), ranks(lr)]))
    first = curve[0]
    assert first.metric_given_baseline == pytest.approx(given_loss.partial, abs=1e-12)
    assert first.baseline_given_metric == pytest.approx(given_metric.partial, abs=1e-12)
    assert first.metric == pytest.approx(stats.spearmanr(metric, target).statistic)
    assert first.baseline == pytest.approx(stats.spearmanr(loss, target).statistic)
    assert first.together == pytest.approx(stats.spearmanr(metric, loss).statistic)
    assert (first.low, first.high) == rank_interval(first.metric_given_baseline, 60, 2)


def test_a_target_that_is_the_loss_leaves_nothing_to_correlate():
    rng = np.random.default_rng(0)
    loss = rng.normal(size=1000)
    sharp = np.abs(loss) + rng.normal(size=1000)
    frame = pd.DataFrame({"sharp_ep10": sharp, "val_loss_ep10": loss, "final": loss})
    (moment,) = temporal_curve(frame, "sharp", "final", "val_loss")
    assert (
        math.isnan(moment.metric_given_baseline)
        and "leaves nothing that a metric could tell" in moment.reason
    )


def test_a_category_is_a_control_too():
    frame = table().assign(net=["cnn", "vit", "mlp"] * 20)
    first = temporal_curve(frame, "sam", "acc", "val_loss", ["net"])[0]
    hot = np.column_stack([frame.net == "mlp", frame.net == "vit"]).astype(float)
    given = np.column_stack([ranks(frame.val_loss_ep5.to_numpy()), hot])
    expected = partial_spearman(frame.sam_ep5.to_numpy(), frame.acc.to_numpy(), given)
    assert first.metric_given_baseline == pytest.approx(expected.partial, abs=1e-12)


def test_an_epoch_leaves_out_the_runs_it_does_not_have_and_counts_them():
    frame = table()
    frame.loc[:9, "sam_ep20"] = np.nan
    early, late = temporal_curve(frame, "sam", "acc", "val_loss")
    assert (early.n, early.dropped, late.n, late.dropped) == (60, 0, 50, 10)
    rest = frame.iloc[10:]
    assert late.metric == pytest.approx(stats.spearmanr(rest.sam_ep20, rest.acc).statistic)


def test_a_metric_that_is_the_loss_has_no_partial_value_at_that_epoch():
    frame = table()
    frame["sam_ep5"] = -np.exp(frame.val_loss_ep5)
    frame["sam_ep20"] = 1.0
    same, constant = temporal_curve(frame, "sam", "acc", "val_loss")
    assert (
        math.isnan(same.metric_given_baseline)
        and "alike" in same.reason
        and same.together == pytest.approx(-1)
    )
    assert math.isnan(constant.metric) and "constant" in constant.reason
    assert sentence_of([same, constant]) == "At no epoch can the metric be compared with the baseline."


def test_a_metric_that_is_a_control_or_the_target_has_no_value_and_padded_epochs_count():
    frame = table().assign(sam_ep007=lambda t: 2 * t.lr + 1, sam_ep8=lambda t: np.exp(t.acc))
    frame = frame.assign(val_loss_ep07=frame.val_loss_ep5, val_loss_ep8=frame.val_loss_ep20)
    curve = {moment.epoch: moment for moment in temporal_curve(frame, "sam", "acc", "val_loss", ["lr"])}
    assert list(curve) == [5, 7, 8, 20]
    assert curve[7].reason == "sam_ep007 is a function of lr, to rounding."
    assert curve[8].reason == "sam_ep8 is a function of acc, to rounding."
    assert math.isnan(curve[7].metric_given_baseline) and math.isnan(curve[8].metric_given_baseline)


@pytest.mark.parametrize(
    ("metric", "baseline", "told"),
    [
        ("fim", "val_loss", "no column fim_ep<t>"),
        ("sam", "train_loss", "no column train_loss_ep<t>"),
        ("sam", "test_loss", "No epoch has both: sam at 5, 20, 100 and test_loss at 7."),
    ],
)
def test_columns_that_do_not_meet_are_named(metric: str, baseline: str, told: str):
    with pytest.raises(BadInput, match=told):
        temporal_curve(table().assign(test_loss_ep7=1.0), metric, "acc", baseline)


def test_the_sentence_counts_the_intervals_that_leave_out_zero():
    rng = np.random.default_rng(1)
    target, loss = rng.normal(size=(2, 400))
    news = {f"sam_ep{t}": size * target + rng.normal(size=400) for t, size in ((1, 0), (2, 1), (3, 0.5))}
    frame = pd.DataFrame({"acc": target, **{f"val_loss_ep{t}": loss for t in (1, 2, 3)}, **news})
    told = sentence_of(temporal_curve(frame, "sam", "acc", "val_loss"))
    assert "at epoch 2: +0." in told and "At 2 of 3 epochs" in told


def test_rank_intervals_hold_the_truth_as_often_as_they_say():
    rng, hits, truth = np.random.default_rng(2), 0, 0.5
    spearman = 6 / math.pi * math.asin(truth / 2)  # of a bivariate normal with this correlation
    for _ in range(1000):
        x, noise = rng.normal(size=(2, 80))
        found = partial_spearman(x, truth * x + math.sqrt(1 - truth**2) * noise)
        low, high = rank_interval(found.partial, found.n, found.k)
        hits += low <= spearman <= high
    assert 0.93 < hits / 1000 < 0.97


@pytest.mark.parametrize(("r", "n", "k"), [(math.nan, 80, 0), (0.3, 4, 1)])
def test_without_a_correlation_or_without_freedom_there_is_no_interval(r: float, n: int, k: int):
    assert np.isnan(rank_interval(r, n, k)).all()


def test_the_command_prints_rows_that_fit_a_terminal_and_the_same_numbers_as_json(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "80")
    frame = table().assign(sam_ep20=2.0)
    frame.to_csv(tmp_path / "runs.csv", index=False)
    command = ["metric", "curve", str(tmp_path / "runs.csv"), "--metric", "sam", "--target", "acc"]
    assert run(command) == 0
    head, first, second, *words = capsys.readouterr().out.splitlines()
    assert max(map(len, (head, first, second))) <= 80
    assert second.split()[2:] == ["—"] * 6
    assert words[0] == "Epoch 20: sam_ep20 is constant: it can tell nothing apart."
    assert run([*command, "--json"]) == 0
    moment, nothing = json.loads(capsys.readouterr().out)["moments"]
    assert f"{moment['metric_given_baseline']:+.3f}" in first
    assert nothing["metric"] is None and nothing["reason"]


def test_the_command_names_a_column_that_is_not_there(tmp_path, capsys):
    table().to_csv(tmp_path / "runs.csv", index=False)
    command = ["metric", "curve", str(tmp_path / "runs.csv"), "--metric", "sam", "--target", "accuracy"]
    assert run(command) == 2
    assert "There is no column 'accuracy'." in capsys.readouterr().err
