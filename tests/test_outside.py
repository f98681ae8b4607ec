"""Packages that bring their own rules: their code is part of a run, and their mistakes are their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from walkback.core import outside
from walkback.core.errors import BadInput, WalkbackError
from walkback.core.outside import code_of, fault_of_others

RULE = """
import torch
from walkback.rules.dfa import DFA


class Noisy(DFA):
    name, about, citation = "noisy", "DFA with noise on its credits", "none"
    scale = 1.0

    def credits(self, trace):
        return [a + self.scale * torch.randn_like(a) for a in super().credits(trace)]


class Broken(DFA):
    name, about, citation = "broken", "one that fails", "none"

    def credits(self, trace):
        raise ValueError("no credit today")


class Short(DFA):
    name, about, citation = "short", "one that forgets a layer", "none"

    def credits(self, trace):
        return super().credits(trace)[:-1]
"""
LINE = 1 + RULE.splitlines().index('        raise ValueError("no credit today")')


@pytest.fixture
def package(tmp_path) -> Path:
    """A package with three rules, installed as far as Python knows."""
    site = tmp_path / "site"
    info = site / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = [f"{name.lower()} = theirs_rules:{name}" for name in ("Noisy", "Broken", "Short")]
    (info / "entry_points.txt").write_text("[walkback.rules]\n" + "\n".join(points) + "\n")
    (site / "theirs_rules.py").write_text(RULE)
    return site


def train(site: Path, store: Path, rule: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-c", "from walkback.cli.main import main; main()", "train", "--json"]
    sizes = ["--data", "digits", "--epochs", "1", "--width", "8", "--depth", "1", "--seeds", "1"]
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*command, *sizes, "--rules", rule, "--store", str(store), *options],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def files_of(store: Path) -> dict[str, bytes]:
    return {
        file.relative_to(store).as_posix(): file.read_bytes()
        for file in sorted(store.rglob("*"))
        if file.suffix in (".csv", ".safetensors", ".json")
    }


def test_a_rule_that_draws_is_repeatable_and_its_code_is_part_of_the_run(package, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for store, rules, workers in ((one, "noisy", "1"), (two, "noisy,frozen", "2")):
        done = train(package, store, rules, "--workers", workers)
        assert done.returncode == 0, done.stderr
    again = {name: data for name, data in files_of(two).items() if "-noisy-" in name}
    assert files_of(one) == again and len(again) >= 4
    card = next(json.loads(data) for name, data in again.items() if name.endswith("bundle.json"))["card"]
    assert card["code"].keys() == {"rule noisy"}
    module = package / "theirs_rules.py"
    module.write_text(module.read_text().replace("scale = 1.0", "scale = 0.0"))
    refused = train(package, one, "noisy")
    assert refused.returncode == 2 and "other code of the rule noisy" in refused.stdout + refused.stderr
    assert train(package, tmp_path / "three", "noisy").returncode == 0


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("broken", f"ValueError: no credit today (line {LINE} of theirs_rules.py)"),
        ("short", "1 credits for 2 states."),
    ],
)
def test_a_mistake_in_somebody_elses_rule_is_theirs(package, tmp_path, rule, told):
    failed = train(package, tmp_path / "runs", rule)
    assert failed.returncode == 2 and told in failed.stdout + failed.stderr
    assert "bug in walkback" not in failed.stdout + failed.stderr


def test_an_error_of_ours_stays_ours(monkeypatch):
    monkeypatch.setattr(outside, "_PACKAGES", set())  # other tests register entry points of their own
    try:
        int("x")
    except ValueError as error:
        assert fault_of_others(error) is None


def test_walkbacks_own_code_is_not_part_of_a_run():
    from walkback.rules.dfa import DFA

    assert code_of(DFA) == ""
    assert code_of(pytest.raises).startswith("_pytest ")


class Fussy(WalkbackError):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}", "Neither.")


@pytest.mark.parametrize("error", [Fussy(1, 2), BadInput("a", "b")])
def test_an_error_of_any_kind_crosses_between_processes(error):
    import pickle

    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error) and (back.message, back.hint) == (error.message, error.hint)
    assert str(back) == str(error)
