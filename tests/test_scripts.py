"""The scripts that people run first: the example, and the wrappers with the artifact's command lines."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from walkback.store import Store

ROOT = Path(__file__).parents[1]


def test_the_example_audits_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = importlib.util.spec_from_file_location("example", ROOT / "examples" / "example_usage.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    verdict = module.main()
    assert verdict.outcome.value in ("PASS", "FAIL")
    assert "Trained blocks gain" in capsys.readouterr().out


def test_a_rule_from_outside_is_checked_and_audited_in_forty_lines(monkeypatch, capsys):
    from walkback.rules import rules

    file = ROOT / "examples" / "own_rule.py"
    own = file.read_text(encoding="utf-8").split("@rules.register")[1].split("def main")[0]
    assert len(own.strip().splitlines()) < 40
    monkeypatch.setattr(rules, "_entries", dict(rules._entries))
    found = importlib.util.spec_from_file_location("own_rule", file)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.main()
    told = capsys.readouterr().out
    assert "fail:" not in told and "feedback tensors are used" in told
    assert "binary-dfa assigns credit to deep layers" in told and "D3:" in told


def test_the_hugging_face_example_trains_and_audits_both_models(capsys):
    pytest.importorskip("transformers", reason="the extra `transformers` is not installed")
    found = importlib.util.spec_from_file_location("huggingface", ROOT / "examples" / "huggingface.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    for verdict in module.main(steps=5):
        assert verdict.outcome.value in ("PASS", "FAIL") and len(verdict["layers"]) == 3
        assert verdict["diagnostics"]["D3_depth_utility"]["interval"] is not None
        assert all(layer["cosine"] is not None for layer in verdict["layers"])
    told = capsys.readouterr().out
    assert "vit" in told and "gpt2" in told and told.count("dfa assigns credit to deep layers") == 2


def call(script: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "reproduce" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "train_methods.py --arch resmlp --methods bp fa dfa --seeds 42 123 456 --epochs 100",
            "--net resmlp --rules 'bp,fa(form=block),dfa' --seeds 42,123,456 --epochs 100 --data cifar10",
        ),
        ("frozen_baseline.py --seeds 42", "--rules frozen --seeds 42 --epochs 100"),
        (
            "penalty_sweep.py --lambdas 0 1e-4 1e-2",
            "dfa+penalty(0),dfa+penalty(0.0001),dfa+penalty(0.01),bp+penalty(0)",
        ),
    ],
)
def test_the_artifacts_own_command_lines_become_walkback_commands(line, words):
    script, *arguments = line.split()
    done = call(script, *arguments, "--dry-run")
    assert done.returncode == 0 and words in done.stdout, done


def test_a_wrapper_really_trains(tmp_path):
    arguments = ["--lambdas", "0", "1e-2", "--seeds", "1", "--epochs", "1", "--data", "digits"]
    done = call("penalty_sweep.py", *arguments, "--store", str(tmp_path / "s"))
    assert done.returncode == 0, done.stderr
    labels = {bundle.card["rule"]["label"] for bundle in Store(tmp_path / "s").bundles()}
    assert labels == {
        "dfa+penalty(0.0)",
        "dfa+penalty(0.01)",
        "bp+penalty(0.0)",
        "bp+penalty(0.01)",
        "frozen",
    }


def test_run_all_is_a_dry_run_of_all_three(tmp_path):
    done = subprocess.run(
        ["bash", str(ROOT / "reproduce" / "run_all.sh"), "--dry-run", "--epochs", "1"],
        capture_output=True,
        text=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "STORE": str(tmp_path / "s")},
    )
    assert done.returncode == 0 and done.stdout.count("walkback train") == 3, done


def test_run_all_takes_its_store_from_where_the_report_reads_it():
    command = ["bash", str(ROOT / "reproduce" / "run_all.sh"), "--store", "mine"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2 and "STORE=DIR" in done.stderr
