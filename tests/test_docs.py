"""The docs say what the code does: rendered pages are current, links lead somewhere, examples run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rendered() -> dict[str, str]:
    found = importlib.util.spec_from_file_location("render", ROOT / "docs" / "render.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.pages()


@pytest.mark.parametrize("name", ["quantities.md", "thresholds.md", "registry.md"])
def test_rendered_pages_are_current(name):
    shown = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert shown == rendered()[name], "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_every_link_leads_to_a_file(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} → {target}"


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_python_examples_run(page, tmp_path, monkeypatch):
    """All ```python blocks of a page, one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
