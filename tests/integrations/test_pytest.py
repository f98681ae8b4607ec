"""A track is also a test, and a verdict can be asserted."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.tracks.coin import SOURCE, coin, toss
from walkback.integrations.pytest import assert_trustworthy

INSTALLED = any(point.name == "walkback" for point in entry_points(group="pytest11"))
PLUGIN = [] if INSTALLED else ["-p", "walkback.integrations.pytest"]


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *PLUGIN, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_track_files_are_tests(tmp_path):
    (tmp_path / "my_tracks.py").write_text(SOURCE)
    (tmp_path / "test_mine.py").write_text(
        SOURCE.replace('"coin"', '"other"') + "\n\ndef test_plain(): pass\n"
    )
    (tmp_path / "test_theirs.py").write_text(
        "from my_tracks import track\n\n\ndef test_it(): track.run()\n"
    )
    (tmp_path / "elsewhere.py").write_text(SOURCE)
    code, said = run(tmp_path)
    assert code == 0 and "4 passed" in said, said
    assert "2 passed" in run(tmp_path, "elsewhere.py", "my_tracks.py")[1]


def test_a_track_that_does_not_pass_fails_with_its_verdict_and_a_skipped_one_is_skipped(tmp_path):
    blind = SOURCE.replace("0.7 if", "0.5 if")
    skips = SOURCE.replace('"coin"', '"away"').replace(
        "    share =", '    lab.skip("no purse")\n    share ='
    )
    (tmp_path / "my_tracks.py").write_text(blind)
    (tmp_path / "track_away.py").write_text(skips)
    code, said = run(tmp_path)
    assert code == 1 and "This test cannot tell" in said and "no purse" in said
    assert re.search(r"1 failed, 1 skipped", said) and "Traceback" not in said


def test_a_track_without_an_experiment_is_its_files_error_and_the_other_tests_run(tmp_path):
    (tmp_path / "my_tracks.py").write_text(SOURCE.split("@track.experiment")[0])
    (tmp_path / "test_other.py").write_text("def test_it(): pass\n")
    code, said = run(tmp_path, "--continue-on-collection-errors")
    assert code == 1 and "Track coin has no experiment" in said
    assert "1 passed, 1 error" in said and "INTERNALERROR" not in said


def test_a_file_that_pytest_looks_into_by_its_folder_is_collected_once(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/my_tracks.py").write_text(SOURCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\npython_files = sub/*_tracks.py\n")
    assert "1 passed" in run(tmp_path)[1]


def test_a_file_that_is_also_searched_for_doctests_runs_its_tracks_once(tmp_path):
    (tmp_path / "my_tracks.py").write_text(SOURCE)
    assert "1 passed" in run(tmp_path, "--doctest-modules")[1]


def test_the_seed_and_the_mode_are_options(tmp_path):
    shown = SOURCE.replace(
        "    lab.report(", "    assert (lab.seed, lab.is_full) == (5, True)\n    lab.report("
    )
    (tmp_path / "my_tracks.py").write_text(shown)
    assert run(tmp_path)[0] == 1
    assert run(tmp_path, "--walkback-full", "--walkback-seed", "5")[0] == 0


def test_a_verdict_can_be_asserted():
    assert_trustworthy(coin().run())
    for untrusted in (toss(share=0.6), toss(count=50), toss(before=lambda lab: lab.skip("no purse"))):
        with pytest.raises(AssertionError, match="Heads come up in half"):
            assert_trustworthy(coin(untrusted).run())


def test_tracks_that_no_name_leads_to_are_tests_too(tmp_path):
    failing = SOURCE.replace('"coin"', '"lost"').replace("else 0.5", "else 0.9")
    (tmp_path / "my_tracks.py").write_text(failing + SOURCE)
    code, said = run(tmp_path)
    assert code == 1 and "1 failed, 1 passed" in said, said
    assert "1 passed" in run(tmp_path, "my_tracks.py::track")[1]
