"""Raw values stay raw, gaps stay gaps, and rules that share a label can be told apart."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from walkback.judge.assemble import Judged
from walkback.judge.naming import names_of
from walkback.judge.thresholds import Thresholds
from walkback.report import words, write_report
from walkback.report.audit_tables import full_rows, layer_rows, trajectory_rows, verdict_rows
from walkback.report.csv import render_csv
from walkback.report.table import Table


def test_accuracy_is_mean_and_sample_deviation_over_seeds(audit: list[Judged]) -> None:
    row = _row(verdict_rows(audit), rule="bp")
    assert row["accuracy_mean"] == pytest.approx(0.92)
    assert row["accuracy_sd"] == pytest.approx(stdev([0.91, 0.92, 0.93]))
    assert _cells(verdict_rows(audit), "bp")["accuracy (%)"] == "92.0 ± 1.0"


def test_detectors_show_value_and_seeds_firing(audit: list[Judged]) -> None:
    cells = _cells(verdict_rows(audit), "dfa")
    assert cells["D1 growth"] == "7000 (3/3)"
    assert cells["D2 reference"] == "4.00×10⁻⁹ (3/3)"
    assert cells["D3 gain (pp)"].startswith("−20.0 [")
    assert cells["verdict"] == "FAIL(D1+D2+D3)"


def test_baseline_has_no_gain_and_no_outcome(audit: list[Judged]) -> None:
    row = _row(verdict_rows(audit), rule="frozen")
    assert row["d3_gain"] is row["d3_low"] is row["outcome"] is None
    cells = _cells(verdict_rows(audit), "frozen")
    assert (cells["D3 gain (pp)"], cells["verdict"]) == ("—", "baseline")


def test_one_seed_shows_no_deviation(runs: Any) -> None:
    runs.add("bp", accuracy=0.75)
    table = verdict_rows(runs.judged())
    assert _row(table, rule="bp")["accuracy_sd"] is None
    assert _cells(table, "bp")["accuracy (%)"] == "75.0"


def test_rule_without_baseline_has_no_gain(runs: Any) -> None:
    runs.add("bp")
    table = verdict_rows(runs.judged())
    assert _row(table, rule="bp")["d3_gain"] is None
    assert _cells(table, "bp")["D3 gain (pp)"] == "—"
    assert _cells(table, "bp")["verdict"] == "INCOMPLETE(D3)"


def test_unmeasured_is_a_dash_and_an_empty_cell_never_zero(runs: Any) -> None:
    gone = ("scale.growth_max@1", "accuracy.test@1", "reference.validity@1")
    runs.add("bp", without=gone, not_applicable=("alignment.deep_cosine@1", "alignment.cosine@1"))
    judged = runs.judged()
    cells = _cells(verdict_rows(judged), "bp")
    assert [cells[key] for key in ("accuracy (%)", "D1 growth", "D2 reference")] == ["—"] * 3
    stored = _read(render_csv(trajectory_rows(judged)))[0]
    assert [stored[key] for key in ("accuracy", "growth_max", "validity", "deep_cosine")] == [""] * 4
    assert all(row["cosine"] == "" for row in _read(render_csv(layer_rows(judged))))
    voted = _read(render_csv(verdict_rows(judged)))[0]
    assert (voted["d1_value"], voted["d1_firing"], voted["d1_measured"]) == ("", "", "0")


def test_nan_is_said_in_words_and_kept_apart_from_missing(runs: Any) -> None:
    runs.add("bp", accuracy=math.nan, growth=math.inf)
    table = trajectory_rows(runs.judged())
    cells = dict(zip(table.titles, table.cells()[0], strict=True))
    assert cells["accuracy (%)"] == "not a number"
    assert cells["largest growth"] == "infinite"
    stored = _read(render_csv(table))[0]
    assert (stored["accuracy"], stored["growth_max"]) == ("nan", "inf")


def test_a_run_whose_numbers_are_lost_is_not_said_to_be_unmeasured(runs: Any, tmp_path: Path) -> None:
    lost = {"growth": math.nan, "validity": math.nan, "cosine": math.nan, "norm": math.nan}
    runs.add("bp", state="diverged", reason="loss is nan", **lost)
    judged = runs.judged()
    verdicts, layers = (_read(render_csv(show(judged)))[0] for show in (verdict_rows, layer_rows))
    assert (verdicts["d1_value"], verdicts["d1_firing"], verdicts["d1_measured"]) == ("nan", "", "1")
    assert (verdicts["d2_value"], verdicts["deep_cosine"]) == ("nan", "nan")
    assert (layers["state_norm"], layers["seeds_measured"], layers["seeds_nan"]) == ("nan", "1", "1")
    cells = _cells(verdict_rows(judged), "bp")
    assert (cells["D1 growth"], cells["D2 reference"]) == ("not a number", "not a number")
    verdict = judged[0].verdict
    assert verdict.reasons[0].sentence == "The growth of the residual stream is not a number."
    assert verdict.chain[1]["sentence"].endswith(
        "The reference gradient at the last state is not a number."
    )
    assert "D1 (not a number); D2 (not a number)" in words.why(verdict)
    page = write_report(judged, tmp_path).read_text(encoding="utf-8")
    assert "reference gradient was not measured" not in page and "1 not measured" not in page


def test_a_seed_without_a_vote_is_named(runs: Any, tmp_path: Path) -> None:
    runs.add("dfa", seed=1, growth=9000.0)
    runs.add("dfa", seed=2, growth=9000.0)
    runs.add("dfa", seed=3, growth=math.nan, state="diverged", reason="loss is not finite")
    table = verdict_rows(runs.judged())
    cells = _cells(table, "dfa")
    assert cells["D1 growth"].endswith("(2/3, 1 not a number)")
    assert "2/3, 1 not a number" in write_report(runs.judged(), tmp_path).read_text(encoding="utf-8")
    assert cells["seeds"] == "3 (1 diverged)"
    assert _row(table, "dfa")["state"] == "2 finished, 1 diverged in epoch 2: loss is not finite"


def test_running_and_diverged_runs_are_said_so(runs: Any) -> None:
    runs.add("bp", state="running")
    runs.add("fa", state="diverged", reason="loss is nan")
    states = {row["rule"]: row["state"] for row in trajectory_rows(runs.judged()).rows}
    assert states == {"bp": "still running (epoch 2 of 2)", "fa": "diverged in epoch 2: loss is nan"}


def test_csv_reads_back_the_same_floats(audit: list[Judged]) -> None:
    for table in (verdict_rows(audit), layer_rows(audit), full_rows(audit), trajectory_rows(audit)):
        stored = _read(render_csv(table))
        assert len(stored) == len(table.rows)
        for raw, row in zip(table.rows, stored, strict=True):
            floats = {key: value for key, value in raw.items() if isinstance(value, float)}
            assert floats
            assert {key: float(row[key]) for key in floats} == floats


def test_every_field_of_every_row_is_in_the_csv(audit: list[Judged]) -> None:
    for table in (verdict_rows(audit), layer_rows(audit), full_rows(audit), trajectory_rows(audit)):
        assert all(set(row) == set(table.fields) for row in table.rows)


def test_trajectory_has_a_row_per_rule_seed_and_epoch(audit: list[Judged]) -> None:
    rows = trajectory_rows(audit).rows
    assert len({(row["rule"], row["seed"], row["epoch"]) for row in rows}) == len(rows) == 3 * 3 * 3


def test_rules_with_one_label_are_told_apart_by_their_settings(runs: Any) -> None:
    runs.add("bp", lr=0.01)
    runs.add("bp", lr=0.1)
    runs.add("fa")
    assert sorted(names_of(runs.judged())) == ["bp (lr=0.01)", "bp (lr=0.1)", "fa"]


def test_captured_twins_are_told_apart_by_id(runs: Any) -> None:
    one = runs.add("mine", state="captured", weights="a" * 64)
    two = runs.add("mine", state="captured", weights="b" * 64)
    assert sorted(names_of(runs.judged())) == sorted([f"mine [{one.id}]", f"mine [{two.id}]"])


def _row(table: Table, rule: str) -> Any:
    return next(row for row in table.rows if row["rule"] == rule)


def _cells(table: Table, rule: str) -> dict[str, str]:
    return next(dict(zip(table.titles, cells, strict=True)) for cells in table.cells() if cells[0] == rule)


def _read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_rule_whose_states_did_not_settle_is_called_unconverged_everywhere(runs: Any, tmp_path: Path):
    for seed, residual in ((1, 0.01), (2, 0.4)):
        runs.add("ep", seed=seed, residual=residual)
        runs.add("bp", seed=seed)
        runs.add("frozen", seed=seed)
    judged = runs.judged()
    assert [item.label for item in judged] == ["bp", "ep (unconverged)", "frozen"]
    verdict = judged[1].verdict
    assert verdict.claim.startswith("ep (unconverged) ") and verdict.evidence["residual"] == [0.01, 0.4]
    assert any("not come to rest in 1 of 2 seeds" in note for note in verdict.notes)
    rows = {row["rule"]: row["residual"] for row in verdict_rows(judged).rows}
    assert rows == {"bp": None, "ep (unconverged)": 0.4, "frozen": None}
    page = write_report(judged, tmp_path).read_text(encoding="utf-8")
    assert "ep (unconverged) reaches" in page and "how far from rest" in page
    assert "not come to rest in 1 of 2 seeds" in page


@pytest.mark.parametrize(("residual", "shown"), [(0.05, "ep"), (math.nan, "ep (unconverged)")])
def test_rest_is_a_residual_that_is_small_and_a_number(runs: Any, residual: float, shown: str):
    runs.add("ep", residual=residual)
    assert [item.label for item in runs.judged()] == [shown]


def test_what_counts_as_settled_is_a_threshold(runs: Any):
    runs.add("ep", residual=0.2)
    strict, lenient = (runs.judged(thresholds=Thresholds(residual=most)) for most in (0.05, 0.5))
    assert (strict[0].label, lenient[0].label) == ("ep (unconverged)", "ep")
