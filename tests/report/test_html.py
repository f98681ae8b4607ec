"""The page: whole in itself, safe for any label, and clear without colour."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from walkback.judge.assemble import Judged
from walkback.judge.protocol import DISCLAIMER
from walkback.report import write_report

HOSTILE = 'a_b & <script>alert(1)</script> | 50% #1 $x$ "q" \\frac{1}[2]'


class _Page(HTMLParser):
    """Tags with attributes, all ids, and the text outside of style and drawings."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._skip = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        self._skip += tag in ("style", "svg")

    def handle_endtag(self, tag: str) -> None:
        self._skip -= tag in ("style", "svg")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skip else data.replace("\u00a0", " ")

    @property
    def ids(self) -> list[str]:
        return [attrs["id"] for _, attrs in self.tags if "id" in attrs]


def test_page_fetches_nothing(written: Path) -> None:
    html = (written / "report.html").read_text()
    page = _Page(html)
    assert not re.findall(r"https?://|@import|url\((?!#)", html)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "img", "object", "embed"}
    links = [attrs[key] for _, attrs in page.tags for key in ("href", "xlink:href", "src") if key in attrs]
    assert links
    assert all(link.startswith("#") for link in links)


def test_every_id_is_unique_and_every_reference_is_met(written: Path) -> None:
    html = (written / "report.html").read_text()
    ids = _Page(html).ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html))
    used = {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html)}
    assert used <= set(ids)


def test_styles_of_a_figure_do_not_leak_into_the_page(written: Path) -> None:
    html = (written / "report.html").read_text()
    assert not re.search(r'<style type="text/css">\s*\*', html)


def test_labels_and_title_are_escaped(runs: Any, tmp_path: Path) -> None:
    runs.add("odd", label=HOSTILE)
    page = _Page(write_report(runs.judged(), tmp_path, title="<b>T</b> & co").read_text())
    assert "script" not in {tag for tag, _ in page.tags}
    assert HOSTILE in page.text
    assert "<b>T</b> & co" in page.text


def test_verdict_is_said_in_words_beside_its_colour(written: Path) -> None:
    text = _Page((written / "report.html").read_text()).text
    for words in ("The claim is walked back", "FAIL(D1+D2+D3)", "No reason found", "baseline, no verdict"):
        assert words in text
    assert (
        "Fires: D1, the largest growth of one block is 7000 in the median seed (limit 50, fires on 3 of 3"
        in text
    )
    assert DISCLAIMER in text


def test_chain_gamma_and_provenance_are_shown(audit: list[Judged], written: Path) -> None:
    text = _Page((written / "report.html").read_text()).text
    for step in audit[1].verdict.chain:
        assert step["question"] in text
        assert step["sentence"] in text
    for fact in ("Γ as usually reported", "exact cosine, mean over layers 1", "c0ffee", "AVX2", "d" * 64):
        assert fact in text


def test_baseline_gets_no_chain_and_no_detectors(runs: Any, tmp_path: Path) -> None:
    runs.add("frozen")
    text = _Page(write_report(runs.judged(), tmp_path).read_text()).text
    assert "step by step" not in text
    assert "Detectors" not in text


def test_runs_that_did_not_finish_are_named(runs: Any, tmp_path: Path) -> None:
    runs.add("bp", seed=7, state="running")
    runs.add("fa", seed=8, state="diverged", reason="loss is not finite")
    text = _Page(write_report(runs.judged(), tmp_path).read_text()).text
    assert "Seed 7: still running (epoch 2 of 2)." in text
    assert "Seed 8: diverged in epoch 2: loss is not finite." in text


def test_custom_threshold_is_shown_as_used(runs: Any, tmp_path: Path) -> None:
    from walkback.judge.thresholds import Thresholds

    runs.add("bp")
    judged = runs.judged(thresholds=Thresholds(growth=30))
    html = write_report(judged, tmp_path).read_text()
    assert re.search(r">growth</th><td[^>]*>50</td><td[^>]*>30</td>", html)
