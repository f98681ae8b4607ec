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
from walkback.metrics.several import audit_all
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


def refusal(frame: pd.DataFrame, **options) -> str:
    verdict = MetricAudit(frame, "m", "acc", "loss", **options).run()
    assert verdict.outcome is Outcome.REFUSED
    return verdict.reasons[0].sentence


@pytest.mark.parametrize("clusters, told", [(1, "1 cluster carries"), (5, "5 clusters carry")])
def test_too_few_clusters_are_refused_before_anything_is_fitted(clusters, told):
    frame = table(120).assign(family=[f"f{row % clusters}" for row in range(120)])
    (verdict,) = audit_all(frame, ["m"], "acc", "loss", cluster="family").verdicts.values()
    assert verdict.outcome is Outcome.REFUSED
    assert verdict.reasons[0].sentence == f"{told} no inference: at least 6 are needed."


def test_a_whole_number_beyond_any_float_is_refused():
    frame = table().astype({"m": object})
    frame.loc[3, "m"] = 10**400
    assert "whole numbers, one of them beyond any float" in refusal(frame)


def test_a_control_of_numbers_that_one_cell_makes_text_is_called_that():
    frame = table(120)
    text = frame.assign(wd=[f"{value:.6f}" for value in frame.loss])
    assert "120 categories for 120 rows, most of them numbers stored as text" in refusal(
        text, controls=["wd"]
    )
    few = frame.assign(wd=["null", *(["0.1", "0.2"] * 60)][:120])
    notes = MetricAudit(few, "m", "acc", "loss", ["wd"]).run().notes
    assert "The control wd holds numbers stored as text: each value counts as a category." in notes
    words = frame.assign(wd=["adam", "sgd"] * 60)
    assert not any("as text" in note for note in MetricAudit(words, "m", "acc", "loss", ["wd"]).run().notes)


def test_a_run_that_was_repeated_under_other_seeds_counts_once():
    frame = table(120)
    copied = pd.concat([frame, frame], ignore_index=True).assign(seed=range(240))
    once, twice = (MetricAudit(each, "m", "acc", "loss").run() for each in (frame, copied))
    assert twice.evidence["n"] == 120 and twice.evidence["tests"] == once.evidence["tests"]
    assert any("120 were left out" in note for note in twice.notes)


def test_a_metric_asked_for_alone_is_not_taken_out_of_its_own_controls():
    frame = table(120)
    alone = audit_all(frame, ["m"], "acc", "loss", ["m"]).verdicts["m"]
    assert alone.verdict == "PROXY (exact)"
    both = audit_all(frame.assign(other=frame.m**2), ["m", "other"], "acc", "loss", ["m"]).verdicts
    assert both["m"].verdict != "PROXY (exact)", "in a battery a control may be a metric too"


def test_rows_without_a_group_are_counted():
    frame = table(120).assign(arch=["mlp", "cnn", None] * 40)
    verdict = MetricAudit(frame, "m", "acc", "loss", group="arch").run()
    assert "40 rows have no arch: they are part of no group." in verdict.notes
    assert sum(group["n"] for group in verdict.evidence["groups"]) == 80


@pytest.mark.parametrize(
    "values",
    [
        [True, False, None],
        ["18", "infinity", "resnet"],
        pd.to_datetime(["2026-01-01", "2026-01-02", "2026-01-03"]),
        pd.Categorical([1, 2, 3]),
    ],
)
def test_a_control_of_categories_is_not_called_numbers_stored_as_text(values):
    frame = table(120).assign(c=pd.Series(values).repeat(40).reset_index(drop=True))
    assert not any("as text" in note for note in MetricAudit(frame, "m", "acc", "loss", ["c"]).run().notes)


def test_an_id_is_told_to_be_one_though_a_cell_of_it_is_a_number():
    ids = table(120).assign(run=["7", *(f"run-{row}" for row in range(119))])
    assert "A unique id is not a control" in refusal(ids, controls=["run"])
