"""The plan of the house: who may import whom, and that the answer wing never loads torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "walkback"

# room: the rooms it may import from. `app` rooms may use all.
TABLE = {
    "core": {"core"},
    "store": {"core", "store"},
    "judge": {"core", "store", "judge"},
    "metrics": {"core", "store", "metrics"},
    "report": {"core", "store", "judge", "metrics", "report"},
    "data": {"core", "data"},
    "nets": {"core", "nets"},
    "rules": {"core", "nets", "rules"},
    "train": {"core", "nets", "rules", "train"},
    "measure": {"core", "nets", "rules", "measure"},
}
APP = {
    "run",
    "studies",
    "tracks",
    "integrations",
    "protocol",
    "check",
    "credit_metrics",
    "cli",
    "__init__",
    "__main__",
}
NO_TORCH = {"core", "store", "judge", "metrics", "report"}


def imported(file: Path) -> set[str]:
    """Every module a file names in an import, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are written in full"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(SOURCE)) for f in FILES])
def test_each_room_imports_only_from_the_rooms_below_it(file):
    room = room_of(file)
    assert room in TABLE or room in APP, f"{room} has no place in the import table"
    if room in APP:
        return
    ours = {name.split(".")[1] for name in imported(file) if name.startswith("walkback.")}
    assert ours <= TABLE[room], f"{file} imports {ours - TABLE[room]}"
    if room in NO_TORCH:
        assert not any(name.split(".")[0] == "torch" for name in imported(file))


def loads(code: str) -> str:
    check = f"import sys\n{code}\nprint('torch' in sys.modules)"
    return subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout


def test_importing_walkback_or_its_command_does_not_load_torch():
    assert "False" in loads("import walkback, walkback.cli.main")
    assert "False" in loads("import walkback; walkback.Verdict, walkback.Thresholds, walkback.Outcome")
    assert "True" in loads("import walkback; walkback.FAProtocol"), "the check itself can tell"


def test_every_public_name_exists():
    import walkback

    for name in walkback.__all__:
        assert getattr(walkback, name) is not None
    with pytest.raises(AttributeError):
        walkback.no_such_name
