"""The report of a verification: the seed report's sections, every target, nothing that drops out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tracks.coin import coin, toss
from walkback.core.errors import BadInput
from walkback.judge.verification import Verification
from walkback.report.verification import write_verification
from walkback.tracks.verify import verify

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def found() -> Verification:
    return verify(
        coin(id=1),
        coin(toss(loaded=0.5), id=2, name="A|pipe & <b>tag</b> – ünïcode ≤"),
        coin(toss(count=50), id=3),
        coin(toss(before=lambda lab: lab.skip("There is no purse.")), id=4),
        coin(toss(before=lambda lab: [][1]), id=5),
    )


@pytest.fixture(scope="module")
def written(found, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("report") / "deep"
    assert write_verification(found, out, NOW) == out / "report.html"
    return out


def read(written: Path, name: str) -> str:
    return (written / name).read_bytes().decode("utf-8")


def test_every_promised_file_is_written(written):
    files = {str(p.relative_to(written)) for p in written.rglob("*") if p.is_file()}
    assert files == {"report.md", "report.html", "report.json", "junit.xml", "tables/tracks.csv"}


def test_markdown_has_the_sections_of_the_seed_report(written):
    text = read(written, "report.md")
    assert text.startswith("# Verification report\n\nGenerated: 2026-01-02 03:04:05+00:00\n")
    for row in (
        "| Passed | 1 |",
        "| Partial (inconclusive) | 1 |",
        "| Failed | 1 |",
        "| Errors | 1 |",
        "| Stubs (skipped) | 1 |",
        "| Tracks in all | 5 |",
        "| Seed | 0 |",
    ):
        assert row in text
    assert "(over 4 tracks)" in text, "the denominator is printed, and an error is in it"
    wanted = ["Claim", "Experiment", "Arms", "Settings", "Decision rule, fixed beforehand"]
    wanted += ["Key difference", "Interpretation", "Verdict", "Limits", "Purpose", "Areas for improvement"]
    first = text[text.index("## Track 1") : text.index("## Track 2")]
    assert [first.index(f"**{title}.**") for title in wanted] == sorted(
        first.index(f"**{title}.**") for title in wanted
    )
    assert re.search(r"\| tosses \| heads \|\n\| ---: \| ---: \|\n\| 10000 \| \d{4} \|", first)
    assert "| loaded | control | caught |" in first


def test_a_sabotage_that_passed_stands_out(written):
    text = read(written, "report.md")
    assert "This test cannot tell: it also passes when the coin is loaded." in text
    assert "| loaded | control | NOT caught |" in text


def test_names_are_text_in_every_target(written):
    assert "A\\|pipe & \\<b\\>tag\\</b\\> – ünïcode ≤" in read(written, "report.md")
    page = read(written, "report.html")
    assert "A|pipe &amp; &lt;b&gt;tag&lt;/b&gt; – ünïcode ≤" in page and "<b>tag" not in page
    assert "A|pipe & <b>tag</b> – ünïcode ≤" in read(written, "report.json")


def test_the_page_stands_alone(written):
    page = read(written, "report.html")
    assert (
        page.lstrip().startswith("<!doctype html>")
        and "<script" not in page
        and "http" not in page.replace("http-equiv", "")
    )
    assert page.count('id="track-') == 5


def test_json_is_the_answer_with_the_time_it_was_made(written, found):
    told = json.loads(read(written, "report.json"))
    assert told["generated"].startswith("2026-01-02") and told["counts"] == found.counts
    assert [track["id"] for track in told["tracks"]] == [1, 2, 3, 4, 5]


def test_junit_counts_every_track_and_lets_no_open_one_pass(written):
    suite = ElementTree.fromstring(read(written, "junit.xml")).find("testsuite")
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "2",
        "errors": "1",
        "skipped": "1",
    }
    kinds = [[child.tag for child in case] for case in suite.findall("testcase")]
    assert kinds == [[], ["failure"], ["failure"], ["skipped"], ["error"]]


def test_junit_holds_any_message(tmp_path):
    def raise_it(lab):
        raise ValueError("bell \x07, escape \x1b and a lone surrogate \ud800")

    write_verification(verify(coin(toss(before=raise_it))), tmp_path, NOW)
    ElementTree.fromstring(read(tmp_path, "junit.xml"))


def test_the_same_verdicts_and_time_give_the_same_bytes(found, written, tmp_path):
    write_verification(found, tmp_path, NOW)
    for path in written.rglob("*"):
        if path.is_file():
            assert (tmp_path / path.relative_to(written)).read_bytes() == path.read_bytes()


def test_nothing_to_report_is_refused(tmp_path):
    with pytest.raises(BadInput):
        write_verification(Verification([], 0, "quick"), tmp_path, NOW)


def test_reporting_does_not_load_torch():
    code = "import sys, walkback.report.verification; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
