"""The docs say what the code does: rendered pages are current, links lead somewhere, examples run."""

from __future__ import annotations

import importlib.util
import math
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from walkback.store import Store
from walkback.studies import schedule
from walkback.studies.answers import Answers, data_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PINS = re.findall(r"(?m)^matplotlib==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def render():
    found = importlib.util.spec_from_file_location("render", ROOT / "docs" / "render.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def rendered() -> dict[str, str]:
    return render().pages()


@pytest.fixture(scope="module")
def results() -> dict[str, bytes]:
    """All of docs/results, made again from the runs that are committed there."""
    return render().results()


@pytest.mark.parametrize("name", ["quantities.md", "thresholds.md", "registry.md", "tracks.md"])
def test_rendered_pages_are_current(name):
    shown = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert shown == rendered()[name], "run `make docs`"


def test_results_are_byte_for_byte_those_of_the_committed_runs(results):
    for name, data in results.items():
        if not name.endswith(".svg"):
            assert (RESULTS / name).read_bytes() == data, f"docs/results/{name}: run `make docs`"


@pytest.mark.skipif(version("matplotlib") not in PINS, reason="another matplotlib draws other bytes")
def test_figures_are_byte_for_byte_those_of_the_committed_runs(results):
    for name in (name for name in results if name.endswith(".svg")):
        assert (RESULTS / name).read_bytes() == results[name], f"docs/results/{name}: run `make docs`"


def test_nothing_lies_among_the_results_that_is_not_made_from_the_runs(results):
    made = [*RESULTS.glob("*.md"), *RESULTS.glob("tables/*"), *RESULTS.glob("figures/*")]
    assert {file.relative_to(RESULTS).as_posix() for file in made} == set(results)


def test_the_growth_of_dfa_is_told_as_the_published_run_has_it():
    store = Store.existing(RESULTS / "cifar10")
    (run,) = Answers(store, data_of(store, ["cifar10"])).one(schedule.ARM, "dfa").runs

    def size(epoch: int, layer: int) -> float:
        return run.measurements.number("scale.state_norm@1", epoch, layer)

    def power(layer: int, first: int, last: int) -> str:
        return f"S^{math.log(size(last, layer) / size(first, layer)) / math.log(last / first):.1f}"

    said = " ".join((ROOT / "docs/explanation/why-dfa-explodes.md").read_text(encoding="utf-8").split())
    deep, stem = ([power(layer, 2, 10), power(layer, 20, 100)] for layer in (4, 0))
    assert f"it grows like {deep[0]} from epoch 2 to 10 and like {deep[1]} from 20 to 100" in said
    assert f"‖h_0‖ like {stem[0]} and {stem[1]}" in said
    first, *others = (size(100, layer) / size(100, layer - 1) for layer in range(1, 5))
    assert f"is {round(first, -2):.0f} times what it reads" in said
    assert all(f"{other:.1f} times" in said for other in others)


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_every_link_leads_to_a_file(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} → {target}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing its compiler
@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_python_examples_run(page, tmp_path, monkeypatch):
    """All ```python blocks of a page, one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    if "from transformers import" in page.read_text(encoding="utf-8"):
        pytest.importorskip("transformers", reason="the extra `transformers` is not installed")
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
