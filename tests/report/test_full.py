"""The full tier in a report: what was measured is shown, and what was not is said in words."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from walkback.core.quantities import QUANTITIES, Measurements
from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.judge.assemble import Judged, judge_bundles
from walkback.report import write_report
from walkback.report.audit_tables import full_rows, full_runs
from walkback.report.csv import render_csv
from walkback.report.figures import draw_figures
from walkback.report.table import Table
from walkback.run.full import measure_stored
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.store import Bundle, Store
from walkback.store.bundle import Member

PREFIXES = ("nudge.", "perturbation.", "alignment.parameter", "alignment.stability", "alignment.null")
LATER = tuple(name for name in QUANTITIES if name.startswith(PREFIXES))  # what training leaves out
HOW = "walkback measure BUNDLE adds it"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """Two rules and frozen blocks, really trained; in full, dfa on two seeds of three, bp on one."""
    digits, store = load_dataset(Call("digits")), Store(tmp_path_factory.mktemp("trained"))
    net = "resmlp(width=16,expansion=1,depth=2)"
    recipe: dict[str, Any] = {"data": "digits", "dataset": digits, "epochs": 1, "batch": 64}
    for spec in plan_runs(net=net, rules=["bp", "dfa", "frozen"], seeds=(1, 2, 3), **recipe):
        bundle = run_one(spec, digits, store)
        if (bundle.card["rule"]["label"], spec.seed) in (("bp", 1), ("dfa", 1), ("dfa", 3)):
            measure_stored(bundle, draws=9)
    return judge_bundles(store.bundles())


@pytest.fixture(scope="session")
def page(trained: list[Judged], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(trained, tmp_path_factory.mktemp("full"))


def test_a_measured_rule_has_a_row_per_layer_and_says_how_many_seeds(trained: list[Judged]) -> None:
    table = full_rows(trained)
    assert [(row["rule"], row["layer"]) for row in table.rows] == [
        (rule, layer) for rule in ("bp", "dfa") for layer in (0, 1, 2)
    ]
    assert [_cells(table, rule, 0)["seeds"] for rule in ("bp", "dfa")] == ["1 of 3", "2 of 3"]


def test_a_value_is_the_median_over_the_seeds_measured(trained: list[Judged]) -> None:
    row = next(row for row in full_rows(trained).rows if (row["rule"], row["layer"]) == ("dfa", 1))
    tables = [b.measurements() for b in trained[1].bundles if b.members("full")]
    for key, quantity in {"cosine": "alignment.cosine@1", "rho": "perturbation.rho@1"}.items():
        numbers = [table.number(quantity, 1, 1) for table in tables]
        assert row[key] == median(number for number in numbers if number is not None)


def test_backprop_reads_as_itself(trained: list[Judged]) -> None:
    for layer in (0, 1, 2):
        cells = _cells(full_rows(trained), "bp", layer)
        ones = ("cosine, exact", "parameter cosine", "nudge ν", "ρ", "ρ ceiling")
        assert [cells[name] for name in ones] == ["+1.000"] * 5
        assert float(cells["null z (p)"].split(" (")[0]) > 5


def test_float64_error_stands_at_the_layer_it_was_taken_at(trained: list[Judged]) -> None:
    shown = [_cells(full_rows(trained), "bp", layer)["float64 error"] for layer in (0, 1, 2)]
    assert shown[:2] == ["—", "—"]
    assert "×10⁻" in shown[2]


def test_page_and_files_show_the_table_where_it_was_measured(page: Path) -> None:
    html, text = page.read_text(), (page.parent / "report.md").read_text()
    assert html.count('<table class="full">') == html.count("What the credit does</h3>") == 2
    assert text.count("The full tier at epoch 1, median over the seeds measured.") == 2
    assert 'id="fig-full-tier"' in html
    assert {file.name for file in page.parent.glob("tables/full.*")} == {"full.csv", "full.md", "full.tex"}


def test_a_rule_that_lacks_the_full_tier_is_named(page: Path) -> None:
    note = f"was not measured for frozen: {HOW}."
    assert note in page.read_text()
    assert note in (page.parent / "report.md").read_text()


def test_without_any_full_tier_one_sentence_says_how_to_get_it(runs: Any, tmp_path: Path) -> None:
    runs.add("bp", without=LATER)
    runs.add("frozen", without=LATER)
    page = write_report(runs.judged(), tmp_path)
    html = page.read_text()
    assert html.count(f"was not measured for any run: {HOW}.") == 1
    assert "Nudge" not in html
    assert not list(tmp_path.rglob("full*"))


def test_a_captured_model_is_not_told_to_do_what_it_cannot(runs: Any, tmp_path: Path) -> None:
    runs.add("mine", state="captured", without=LATER)
    assert HOW not in write_report(runs.judged(), tmp_path).read_text()


def test_a_layer_without_a_reading_says_not_measured_and_not_zero(runs: Any, tmp_path: Path) -> None:
    bundle = runs.add("dfa", without=LATER)
    _add_full(bundle, 2, {"nudge.ratio@1": (0.5, None, 0.25)})
    table = full_rows(runs.judged())
    assert [_cells(table, "dfa", layer)["nudge ν"] for layer in (0, 1, 2)] == [
        "+0.500",
        "not measured",
        "+0.250",
    ]
    assert [_cells(table, "dfa", layer)["ρ"] for layer in (0, 1, 2)] == ["not measured"] * 3
    stored = _read(table)
    assert [row["nudge"] for row in stored] == ["0.5", "", "0.25"]
    assert [row["nudge_gap"] for row in stored] == ["", "not measured", ""]
    html = write_report(runs.judged(), tmp_path).read_text()
    assert '<td class="n">not measured</td>' in html


def test_not_applicable_not_a_number_and_not_measured_are_three_things(runs: Any) -> None:
    runs.add("dfa", not_applicable=("nudge.ratio@1", "reference.float64_relerr@1"), without=LATER[-1:])
    bundle = runs.add("fa", without=LATER)
    _add_full(bundle, 2, {"perturbation.rho@1": (math.nan,) * 3, "alignment.stability@1": (0.0,) * 3})
    table = full_rows(runs.judged())
    assert _cells(table, "dfa", 2)["nudge ν"] == "not applicable"
    assert _cells(table, "dfa", 2)["float64 error"] == "not applicable"
    cells = _cells(table, "fa", 0)
    assert (cells["ρ"], cells["nudge ν"], cells["stability"]) == ("not a number", "not measured", "0.000")
    assert [row["rho"] for row in _read(table) if row["rule"] == "fa"] == ["nan"] * 3


def test_a_seed_with_a_gap_is_named_and_no_median_is_taken_over_the_others(runs: Any) -> None:
    for seed, value in ((1, 0.5), (2, None), (3, 0.7)):
        bundle = runs.add("dfa", seed=seed, without=LATER)
        _add_full(bundle, 2, {"nudge.ratio@1": (value,) * 3, "perturbation.rho@1": (0.1 * seed,) * 3})
    cells = _cells(full_rows(runs.judged()), "dfa", 1)
    assert cells["nudge ν"] == "not measured in 1 of 3 seeds"
    assert cells["ρ"] == "+0.200"


def test_the_last_epoch_measured_in_full_counts_and_epochs_are_not_mixed(runs: Any) -> None:
    for seed, epoch in ((1, 0), (2, 1)):
        bundle = runs.add("dfa", seed=seed, without=LATER)
        _add_full(bundle, epoch, {"nudge.ratio@1": (0.1 * seed,) * 3})
    judged = runs.judged()
    cells = _cells(full_rows(judged), "dfa", 0)
    assert (cells["epoch"], cells["nudge ν"], cells["seeds"]) == ("1", "+0.200", "1 of 2")
    assert [(run.seed, run.epoch) for run in full_runs(judged[0])] == [(2, 1)]


def test_figure_is_drawn_only_where_there_is_something_to_draw(runs: Any) -> None:
    bundle = runs.add("bp", without=LATER)
    assert "full-tier.svg" not in draw_figures(runs.judged())
    _add_full(bundle, 2, {"nudge.ratio@1": (1.0, None, math.nan)})
    assert "full-tier.svg" in draw_figures(runs.judged())


def _add_full(bundle: Bundle, epoch: int, values: dict[str, tuple[float | None, ...]]) -> None:
    """Add a full tier with just these readings, one per layer; None leaves its layer out."""
    table = Measurements()
    for quantity, by_layer in values.items():
        for layer, value in enumerate(by_layer):
            if value is not None:
                table.add(epoch, quantity, value, layer)
    bundle.commit([Member(f"full/epoch-{epoch:04d}.csv", "full", table.to_csv().encode(), epoch)])


def _cells(table: Table, rule: str, layer: int) -> dict[str, str]:
    rows = zip(table.rows, table.cells(), strict=True)
    found = next(cells for row, cells in rows if (row["rule"], row["layer"]) == (rule, layer))
    return dict(zip(table.titles, found, strict=True))


def _read(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_csv(table))))
