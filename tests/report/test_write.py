"""The folder a report is: complete, the same bytes for the same verdicts, and free of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from walkback.core.errors import BadInput
from walkback.judge.assemble import Judged
from walkback.report import write_report

EXPECTED = {
    "report.html",
    "report.md",
    *(
        f"tables/{name}.{end}"
        for name in ("verdicts", "layers", "full", "trajectory")
        for end in ("md", "csv", "tex")
    ),
    *(
        f"figures/{name}.{end}"
        for name in ("layer-profile", "trajectory", "full-tier")
        for end in ("svg", "pdf", "png")
    ),
}


def test_every_promised_file_is_written(written: Path) -> None:
    files = _files(written)
    assert set(files) == EXPECTED
    assert all(files.values())


def test_path_of_the_page_is_returned(audit: list[Judged], tmp_path: Path) -> None:
    assert write_report(audit[:1], tmp_path / "deep" / "out") == tmp_path / "deep" / "out" / "report.html"


def test_same_verdicts_give_same_bytes_whatever_the_readers_settings(
    audit: list[Judged], written: Path, tmp_path: Path
) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 20, "axes.grid": False, "svg.hashsalt": "other"}):
        write_report(audit, tmp_path)
        assert matplotlib.rcParams["font.size"] == 20
    assert _files(tmp_path) == _files(written)


def test_page_stays_small(written: Path) -> None:
    assert (written / "report.html").stat().st_size < 600_000


def test_files_name_no_folder_of_the_machine(audit: list[Judged], written: Path) -> None:
    store = str(audit[0].bundles[0].path.parent).encode()
    assert not [name for name, data in _files(written).items() if store in data]


def test_a_run_that_was_not_measured_yet_keeps_its_rule_from_passing_and_is_named(
    runs: Any, tmp_path: Path
) -> None:
    for seed in (1, 2, 3):
        runs.add("bp", seed=seed, accuracy=0.9)
        runs.add("dfa", seed=seed, accuracy=0.1)
        runs.add("frozen", seed=seed, accuracy=0.5)
    started = runs.start("bp", seed=4)
    runs.start("dfa", seed=4)
    bp, dfa, _ = runs.judged()
    assert bp.verdict.verdict == "INCOMPLETE(still training)"
    assert dfa.verdict.verdict == "FAIL(D3)", "what fires on the others is known all the same"
    write_report([bp, dfa], tmp_path, unmeasured=[started.path.name])
    files = {name: data.decode() for name, data in _files(tmp_path).items() if name.endswith(_TEXTS)}
    for name in ("report.html", "report.md"):
        assert f"not measured yet: {started.path.name}" in files[name]
        assert "Seed 4 has started and was not measured yet." in files[name]
    assert "3 (1 more not measured yet)" in files["tables/verdicts.md"]
    assert "3 finished, 1 not measured yet" in files["tables/verdicts.csv"]
    assert "bp,bp,4,,,,,,,not measured yet" in files["tables/trajectory.csv"]


def test_no_verdicts_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing to report"):
        write_report([], tmp_path)


def test_importing_the_report_loads_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, walkback.report, walkback.report.terminal\n"
        "heavy = {'torch', 'matplotlib', 'jinja2', 'rich', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_drawing_leaves_pyplot_and_torch_alone(audit: list[Judged], tmp_path: Path) -> None:
    store = audit[0].bundles[0].path.parent
    code = (
        "import sys; from pathlib import Path\n"
        "from walkback.judge.assemble import judge_bundles\n"
        "from walkback.report import write_report\n"
        "from walkback.store import Store\n"
        "write_report(judge_bundles(Store(sys.argv[1]).bundles()), Path(sys.argv[2]))\n"
        "heavy = {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, str(store), str(tmp_path / "out")], check=True)


_TEXTS = (".html", ".md", ".csv")


def _files(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
