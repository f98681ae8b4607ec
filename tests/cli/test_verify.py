"""`walkback verify` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import answer, refused
from tests.tracks.coin import SOURCE
from walkback.cli.main import run

KEYS = {"id", "name", "outcome", "score", "seconds", "gates", "controls", "evidence"}


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_tracks.py").write_text(SOURCE)
    return tmp_path / "my_tracks.py"


def test_the_answer_has_the_documented_keys(file, capsys):
    code, found = answer(capsys, "verify", file, "--seed", 4)
    assert code == 0 and found["outcome"] == "PASS" and found["seed"] == 4 and found["report"] is None
    assert set(found["counts"]) == {"passed", "failed", "inconclusive", "skipped", "error", "total"}
    (track,) = found["tracks"]
    assert set(track) >= KEYS and track["evidence"] == "smoke" and track["score"] == 100
    assert [control["caught_by"] for control in track["controls"]] == ["share", "share"]


@pytest.mark.parametrize(
    ("change", "code", "outcome"),
    [
        (("else 0.5", "else 0.6"), 1, "FAIL"),
        (("0.7 if", "0.5 if"), 1, "FAIL"),
        (("heads = ", "heads = 1 / 0 or "), 1, "ERROR"),
        (("    share = ", "    lab.skip('no purse')\n    share = "), 3, "SKIPPED"),
        (("heads.mean()", "heads.mean(), interval=(0, 1)"), 3, "INCONCLUSIVE"),
    ],
)
def test_exit_codes(file, capsys, change, code, outcome):
    file.write_text(SOURCE.replace(*change))
    found, told = answer(capsys, "verify", file, "--workers", 1)
    assert (found, told["outcome"], told["counts"]["total"]) == (code, outcome, 1), told["tracks"]
    if outcome == "SKIPPED":
        assert told["tracks"][0]["sentence"] == "no purse" and told["tracks"][0]["score"] is None


def test_a_track_that_raises_shows_where_on_stderr_and_nothing_but_json_on_stdout(file, capsys):
    file.write_text(SOURCE.replace("heads = ", "heads = 1 / 0 or "))
    assert run(["verify", str(file), "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["counts"]["error"] == 1
    assert "ZeroDivisionError" in shown.err and "my_tracks.py" in shown.err


def test_a_report_is_written_and_running_again_goes_on(file, capsys):
    found = answer(capsys, "verify", file, "--out", "there")[1]
    assert Path(found["report"]).is_file() and Path("there/junit.xml").is_file() and found["kept"] == 0
    assert answer(capsys, "verify", file, "--out", "there")[1]["kept"] == 3
    run(["verify", str(file), "--out", "there"])
    shown = capsys.readouterr().out
    assert "1 passed, of 1 (quick, seed 0)" in shown and "3 passes" in shown and "report.html" in shown


def test_a_new_track_runs_and_its_sabotages_are_caught(file, capsys):
    assert answer(capsys, "verify", "--new", "my_claim") == (0, {"file": "my_claim.py"})
    code, found = answer(capsys, "verify", "my_claim.py")
    assert code == 0 and found["tracks"][0]["id"] == "my-claim"
    caught = {control["name"]: control["caught_by"] for control in found["tracks"][0]["controls"]}
    assert caught == {"sign flip": "gradient", "constant": "gradient", "easy inputs": "range"}
    assert run(["verify", "--new", "other_claim.py"]) == 0
    assert "Next: walkback verify other_claim.py" in capsys.readouterr().out
    refused(capsys, "verify", "--new", "my_claim", words="exists already")
    refused(capsys, "verify", "--new", "third", "--tracks", "1", words="Give it alone")
    refused(capsys, "verify", "--new", "no name", words="cannot be the name")


def test_tracks_are_listed(capsys):
    rows = answer(capsys, "ls", "tracks")[1]["tracks"]
    assert {1, 2, 3, 6} <= {row["id"] for row in rows} and all(row["controls"] >= 2 for row in rows)


def test_bad_input_is_told_in_one_sentence(file, capsys):
    refused(capsys, "verify", "none.py", words="There is no file none.py")
    refused(capsys, "verify", "--tracks", "222", words="Did you mean '22'")
    refused(capsys, "verify", file, "--tracks", "coins", words="Did you mean 'coin'")
    for nothing in (",", ""):
        refused(capsys, "verify", "--tracks", nothing, words="names no track")
    refused(capsys, "verify", file, "--out", file, words="is a file")
    (file.parent / "empty.py").write_text("x = 1\n")
    refused(capsys, "verify", "empty.py", words="defines no track")
    (file.parent / "broken.py").write_text("import no_such_thing\n")
    refused(capsys, "verify", "broken.py", words="No module named 'no_such_thing'")
