"""A pytest plugin: a track is also a test, and a verdict can be asserted.

Tracks are collected from test modules, from files named `track_*.py` or `*_tracks.py`, and from files named
on the command line. `--walkback-full` runs them in full, `--walkback-seed N` with another seed.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from walkback.core.verdict import Verdict

FILES = ("track_*.py", "*_tracks.py")


def assert_trustworthy(verdict: Verdict) -> None:
    """Fail unless the verdict is PASS or INDEPENDENT; the message is the verdict with its reasons.

    Missing evidence is not trust: INCOMPLETE, INCONCLUSIVE and SKIPPED fail too.
    """
    __tracebackhide__ = True
    if verdict.outcome.exit_code != 0:
        raise AssertionError(str(verdict))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("walkback")
    group.addoption("--walkback-full", action="store_true", help="run tracks in full")
    group.addoption("--walkback-seed", type=int, default=0, help="seed of tracks")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Track files that pytest would not look into by itself."""
    patterns = parent.config.getini("python_files")
    path = file_path.as_posix()
    known = any(fnmatch(path, f"*/{p}") if "/" in p else fnmatch(file_path.name, p) for p in patterns)
    if known or parent.session.isinitpath(file_path):
        return None
    if not any(fnmatch(file_path.name, pattern) for pattern in FILES):
        return None
    return pytest.Module.from_parent(parent, path=file_path)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Tracks that a module makes, under whatever name; one that it imports is tested where it is made."""
    report = yield
    doctests = type(collector).__name__ == "DoctestModule"  # a second collector of the same file
    if isinstance(collector, pytest.Module) and not doctests and report.outcome == "passed":
        from walkback.core.errors import WalkbackError

        try:
            report.result = [*report.result, *_items(collector)]
        except WalkbackError as error:  # a track that cannot be run is this file's error, not the session's
            report.outcome, report.longrepr, report.result = "failed", str(error), []
    return report


def _items(collector: pytest.Module) -> list[pytest.Item]:
    if "walkback.tracks.track" not in sys.modules:  # if nobody has loaded it, nothing is a track
        return []
    from walkback.tracks.find import tracks_made_in

    names = {id(thing): name for name, thing in vars(collector.obj).items()}
    return [
        TrackItem.from_parent(collector, name=names.get(id(track), f"track {track.id}"), track=track)
        for track in tracks_made_in(collector.obj.__name__)
    ]


class TrackItem(pytest.Item):
    def __init__(self, *, track: Any, **given: Any) -> None:
        super().__init__(**given)
        self.track = track

    def runtest(self) -> None:
        option = self.config.getoption
        verdict = self.track.run(seed=option("walkback_seed"), full=option("walkback_full"))
        if verdict.outcome.value == "SKIPPED":
            pytest.skip(" ".join(verdict.notes))
        assert_trustworthy(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The verdict alone: a traceback into the harness says nothing about the claim."""
        said = isinstance(excinfo.value, AssertionError)
        return str(excinfo.value) if said else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"track {self.track.id}: {self.track.name}"
