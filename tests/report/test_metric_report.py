"""The report of a metric audit: rows before verdicts, refusals without numbers, any name as text."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome, Verdict
from walkback.metrics.fisher import tost
from walkback.metrics.several import Audits, audit_all
from walkback.report import words
from walkback.report.metric import write_metric_report
from walkback.report.metric_content import sentence_of
from walkback.report.metric_readings import intervals_of

HOSTILE = "<b>|\\query $x$ & </style>"
METRICS = ("news", HOSTILE, "flat", "label")


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    """120 runs and two repeats: a metric with news, a copy of the loss, a constant, and text."""
    rng = np.random.default_rng(3)
    loss, rest = rng.normal(size=120), rng.normal(size=(2, 120))
    table = pd.DataFrame(
        {
            "news": loss + rest[0],
            HOSTILE: np.exp(loss),
            "flat": 1.0,
            "label": "text",
            "acc": 0.8 * rest[0] + 0.6 * rest[1] - loss,
            "loss": loss,
            "half": np.repeat(["a", "b"], 60),
        }
    )
    table = pd.concat([table, table[:2]], ignore_index=True)
    table.loc[5, "news"] = math.nan
    return table


@pytest.fixture(scope="session")
def audits(frame: pd.DataFrame) -> Audits:
    return audit_all(frame, METRICS, "acc", "loss", group="half", canon=True, simulated=2)


@pytest.fixture(scope="session")
def folder(audits: Audits, frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_metric_report(audits, frame, tmp_path_factory.mktemp("metric")).parent


@pytest.fixture(scope="session")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


def test_the_canon_and_the_audits_own_error_rates_stand_beside_the_verdict(page, folder, audits):
    told = text_of(page)
    assert "What others measure" in told and "How often this audit errs" in told
    with (folder / "tables/canon.csv").open(newline="") as file:
        canon = {(row["metric"], row["measure"]): row for row in csv.DictReader(file)}
    kendall = audits.canon["news"]["kendall"]["value"]
    assert float(canon["news", "Kendall τ"]["value"]) == pytest.approx(kendall)
    assert not any(metric in ("flat", "label") for metric, _ in canon), "a refusal shows no numbers"
    assert set(rows_of(folder, "simulated")) == {"news"}


def test_a_report_without_a_simulation_says_so(frame, tmp_path):
    alone = audit_all(frame, ["news"], "acc", "loss")
    page = write_metric_report(alone, frame, tmp_path).read_text()
    assert "was not simulated" in text_of(page) and "<h3>How often this audit errs" not in page


def text_of(html: str) -> str:
    """What a reader sees: no styles, no drawings, no tags."""
    bare = re.sub(r"<style.*?</style>|<svg.*?</svg>", "", html, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", " ", bare)).replace("\u00a0", " ")


def rows_of(folder: Path, table: str) -> dict[str, dict[str, str]]:
    with (folder / f"tables/{table}.csv").open(newline="") as file:
        return {row["metric"]: row for row in csv.DictReader(file)}


def test_outcomes_are_those_the_frame_was_made_for(audits: Audits) -> None:
    outcomes = [verdict.outcome for verdict in audits.verdicts.values()]
    assert outcomes == [Outcome.INDEPENDENT, Outcome.PROXY, Outcome.REFUSED, Outcome.REFUSED]


def test_every_promised_file_is_written(folder: Path) -> None:
    found = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    tables = {
        f"tables/{t}"
        for t in ("rows", "metrics", "reasons", "learners", "groups", "canon", "simulated", "claim")
    }
    figures = {f"figures/{f}" for f in ("metrics", "effects-1-news", "residuals-1-news")}
    expected = {f"{table}.{end}" for table in tables for end in ("csv", "md", "tex")}
    expected |= {f"{figure}.{end}" for figure in figures for end in ("svg", "pdf", "png")}
    assert found == expected | {"report.html", "report.md"}


def test_page_and_markdown_say_every_verdict_and_its_sentence(
    audits: Audits, page: str, folder: Path
) -> None:
    shown = re.sub(r"\s+", " ", text_of(page))
    plain = re.sub(r"\\(.)", r"\1", (folder / "report.md").read_text())
    for verdict in audits.verdicts.values():
        for words_ in (verdict.verdict, sentence_of(verdict), *(r.sentence[1:] for r in verdict.reasons)):
            assert words_ in shown
            assert words_ in plain


def test_repeated_and_dropped_rows_come_before_any_verdict(page: str) -> None:
    shown = text_of(page)
    first = shown.index("INDEPENDENT (of this reading")
    assert shown.index("1 row was left out") < first
    assert shown.index("2 rows identical to an earlier one") < first


def test_rows_of_a_refused_column_are_unknown_not_zero(folder: Path) -> None:
    with (folder / "tables/rows.csv").open(newline="") as file:
        counts = {row["metrics"]: row for row in csv.DictReader(file)}
    assert set(list(counts["label"].values())[1:]) == {""}
    assert counts["news"]["dropped"] == "1"


@pytest.mark.parametrize("name", ["flat", "label"])
def test_refused_metric_has_reasons_and_no_numbers(name: str, folder: Path, page: str) -> None:
    row = rows_of(folder, "metrics")[name]
    assert {key for key, value in row.items() if value} == {"metric", "outcome", "verdict"}
    cells = re.search(rf'<tr><th scope="row">{name}</th>(.*?REFUSED.*?)</tr>', page)
    assert cells is not None
    assert cells[1].count(words.MISSING) == 7


def test_numbers_of_a_late_refusal_are_not_shown(
    audits: Audits, frame: pd.DataFrame, tmp_path: Path
) -> None:
    known = audits.verdicts["news"]
    late = Verdict(Outcome.REFUSED, "REFUSED", known.claim, "metric", known.reasons[:1])
    late = replace(late, evidence=known.evidence)
    write_metric_report(replace(audits, verdicts={"news": late}), frame, tmp_path)
    assert rows_of(tmp_path, "metrics")["news"]["partial"] == ""
    assert not (tmp_path / "figures").exists()
    assert not (tmp_path / "tables/groups.csv").exists()


def test_exact_proxy_shows_no_number_of_what_is_left(folder: Path) -> None:
    row = rows_of(folder, "metrics")[HOSTILE]
    assert row["raw"]
    assert not row["partial"] + row["p"] + row["class"]


def test_names_stay_text_and_the_page_fetches_nothing(page: str) -> None:
    assert HOSTILE in text_of(page)
    assert "<b>" not in page
    assert page.count("</style>") == len(re.findall(r"<style", page))
    assert not re.findall(r"https?://|@import|url\((?!#)|<script|<img", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_hostile_metric_can_be_drawn(frame: pd.DataFrame, audits: Audits, tmp_path: Path) -> None:
    named = frame.rename(columns={"news": HOSTILE, HOSTILE: "copy"})
    known = audits.verdicts["news"]
    verdict = replace(known, evidence={**known.evidence, "metric": HOSTILE})
    html = write_metric_report(replace(audits, verdicts={HOSTILE: verdict}), named, tmp_path).read_text()
    assert "<b>" not in html
    assert "\\query $x$ &amp; &lt;/style" in html
    assert (tmp_path / "figures/effects-1-b-query-x-style.svg").is_file()


def test_same_audits_give_same_bytes(
    audits: Audits, frame: pd.DataFrame, folder: Path, tmp_path: Path
) -> None:
    again = write_metric_report(audits, frame, tmp_path).parent
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in files:
        assert (again / file.relative_to(folder)).read_bytes() == file.read_bytes()


def test_groups_are_shown_where_there_are_some(page: str) -> None:
    shown = text_of(page)
    assert "half=a" in shown
    assert "half=b" in shown


def test_intervals_are_those_of_the_equivalence_test(audits: Audits) -> None:
    verdict = audits.verdicts["news"]
    raw, partial = intervals_of(verdict)
    assert raw is not None
    assert partial is not None
    assert raw[0] < verdict.evidence["raw"] < raw[1]
    n = verdict.evidence["n"]
    for (low, high), k, r in ((raw, 0, verdict.evidence["raw"]), (partial, 1, verdict.evidence["partial"])):
        half = 1.06 * 1.6448536269514722 / math.sqrt(n - k - 3)
        assert (math.atanh(low), math.atanh(high)) == pytest.approx(
            (math.atanh(r) - half, math.atanh(r) + half)
        )
    assert max(map(abs, partial)) == pytest.approx(tost(verdict.evidence["partial"], n, 1).smallest_delta)


def test_bootstrap_interval_comes_first_where_there_is_one(audits: Audits) -> None:
    verdict = audits.verdicts["news"]
    drawn = {"raw_percentile": (0.1, 0.2), "percentile": (0.3, 0.4), "bca": (math.nan, math.nan)}
    verdict = replace(verdict, evidence={**verdict.evidence, "bootstrap": drawn})
    assert intervals_of(verdict) == ((0.1, 0.2), (0.3, 0.4))


def test_nothing_to_report_is_said_in_words(audits: Audits, frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing to report"):
        write_metric_report(replace(audits, verdicts={}), frame, tmp_path)
