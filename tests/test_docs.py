"""The docs say what the code does: rendered pages are current, links lead somewhere, examples run."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

import walkback
from walkback.report.table import Column, Table
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


def test_what_all_rows_share_is_told_once_and_what_they_count_stays():
    columns = [
        Column("rule", ("rule",), numeric=False),
        Column("runs", ("n",)),
        Column("seeds", ("seeds",)),
        Column("recipe", ("recipe",), numeric=False),
        Column("runs", ("runs",), numeric=False),
    ]
    rows = [{"rule": r, "n": 2, "seeds": 3, "recipe": "10 epochs", "runs": "f00"} for r in "ab"]
    found, shared = render().fold(Table("t", "", tuple(columns), ("rule",), tuple(rows)))
    assert (found.titles, shared) == (["rule", "runs"], "3 seeds; 10 epochs")
    rows[1]["seeds"] = 1
    found, shared = render().fold(Table("t", "", tuple(columns), ("rule",), tuple(rows)))
    assert (found.titles, shared) == (["rule", "runs", "seeds"], "10 epochs")
    assert render().fold(Table("t", "", tuple(columns), ("rule",), tuple(rows[:1])))[1] == "", "of one row"


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
    assert f"is {round(first, -2):.0f} times that of what it reads" in said
    assert all(f"{other:.1f} times" in said for other in others)


@functools.cache
def tracked() -> frozenset[Path] | None:
    """Every file that git knows here, and their folders; None where this is no checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return None
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return frozenset([*files, *(folder for file in files for folder in file.parents)])


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """What a link to this page can name, by GitHub's rules: its headings, numbered where they repeat."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    found, seen = set(re.findall(r'<a (?:id|name)="([^"]+)"', text)), Counter()
    for heading in re.findall(r"(?m)^#{1,6} +(.+?)[ #]*$", text):
        slug = slug_of(heading)
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


def slug_of(heading: str) -> str:
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)  # of a link, its words
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def broken_links(page: Path) -> list[str]:
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    broken = []
    for name, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if re.match(r"https?:|mailto:", name):
            continue
        target = (page.parent / name).resolve() if name else page
        known = tracked()
        lost = not target.exists() or (known is not None and target not in known)
        if lost or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{page.name} → {name}{anchor and '#'}{anchor}")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_every_link_leads_to_a_committed_file_and_a_heading_of_it(page):
    assert broken_links(page) == []


def test_a_link_to_no_heading_or_to_an_uncommitted_file_is_broken(tmp_path, monkeypatch):
    page, draft = tmp_path / "page.md", tmp_path / "draft.md"
    draft.write_text("# Draft\n")
    page.write_text(
        "# The `walkback` page, *twice*\n# Again\n# Again\n```\n# no heading\n```\n<a id='x'></a>\n"
        "[1](#the-walkback-page-twice) [2](#again-1) [3](#again-2) [4](#no-heading) [5](draft.md#draft)\n"
    )
    monkeypatch.setitem(globals(), "tracked", lambda: None)
    assert broken_links(page) == ["page.md → #again-2", "page.md → #no-heading"]
    monkeypatch.setitem(globals(), "tracked", lambda: {page})
    assert broken_links(page)[2:] == ["page.md → draft.md#draft"]


def test_a_source_release_holds_every_committed_file_that_its_tests_may_read():
    known = tracked()
    if known is None:
        pytest.skip("not a checkout")
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    taken = {
        name for line in re.findall(r"(?m)^(?:graft|include) (.+)$", manifest) for name in line.split()
    }
    by_itself = {"src", "README.md", "LICENSE", "MANIFEST.in", "pyproject.toml"}
    top = {file.relative_to(ROOT).parts[0] for file in known if file.is_relative_to(ROOT) and file != ROOT}
    assert {name for name in top if not name.startswith(".")} == taken | by_itself


def test_version_and_license_are_the_same_wherever_they_are_said():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^version: (.+)$", cited) == [project["version"]]
    assert re.findall(r"(?m)^license: (.+)$", cited) == [project["license"]]


def bare(thing) -> str:
    """A signature without its types; what has no short name is …"""
    signature = inspect.signature(thing)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    shown = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return re.sub(r"=<[^>]*>(?: at \w+>)?", "=…", shown)


@pytest.mark.parametrize("name", walkback.__all__)
def test_every_public_name_is_on_the_page_of_the_python_api_as_it_is_called(name):
    page = (ROOT / "docs" / "reference" / "python-api.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"(?ms)^### (\w+)$(.*?)(?=^##|\Z)", page))
    assert "```python\n" in sections[name]
    thing, told = getattr(walkback, name), " ".join(sections[name].split())
    if name == "credit_metrics":
        called = re.findall(r"(?m)^(\w+)\(", sections[name].split("```")[1])
        assert "cosine" in called and all(f"{n}{bare(getattr(thing, n))}" in told for n in called)
    elif name == "Bundle":
        assert all(f"{name}.{m}{bare(getattr(thing, m))}" in told for m in ("from_model", "open"))
    elif name == "Outcome":
        assert set(re.findall(r"`([A-Z]+)`", sections[name])) == {outcome.name for outcome in thing}
    elif callable(thing):
        assert f"{name}{bare(thing)}" in told


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
