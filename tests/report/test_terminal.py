"""Verdicts in 80 columns: whole words, no markup from labels, a word beside every colour."""

from __future__ import annotations

import io
import math
from typing import Any

from rich.console import Console

from walkback.judge.assemble import Judged
from walkback.report.terminal import print_verdict, verdict_table


def test_table_fits_80_columns_and_keeps_verdicts_whole(audit: list[Judged]) -> None:
    text = _printed(verdict_table(audit))
    assert max(map(len, text.splitlines())) <= 80
    for words in ("✗ FAIL(D1+D2+D3)", "✓ PASS", "= baseline", "92.0 ± 1.0"):
        assert words in text


def test_a_seed_without_readings_leaves_names_and_verdicts_whole(runs: Any) -> None:
    runs.add("frozen")
    for seed in (1, 2, 3):
        gone = {"growth": math.nan, "validity": math.nan, "state": "diverged"} if seed == 3 else {}
        runs.add("dfa", seed=seed, **{"growth": 900.0, "validity": 1e-9, **gone})
    judged = runs.judged()
    text = _printed(verdict_table(judged))
    assert max(map(len, text.splitlines())) <= 80
    assert "dfa" in text and f"✗ {judged[0].verdict.verdict}" in text


def test_a_rule_that_still_trains_keeps_its_name_and_its_verdict(runs: Any) -> None:
    for seed in (1, 2, 3):
        runs.add("bp", seed=seed, accuracy=0.85 + 0.01 * seed)
        runs.add("frozen", seed=seed, accuracy=0.5)
    runs.start("bp", seed=4)
    text = _printed(verdict_table(runs.judged()))
    assert max(map(len, text.splitlines())) <= 80
    for words in ("bp", "? INCOMPLETE", "(still", "training)", "measured", "87.0 ± 1.0"):
        assert words in text


def test_settings_that_tell_rules_apart_are_numbered_and_told_below_the_table(runs: Any) -> None:
    for epochs in (30, 100):
        for seed in (1, 2, 3):
            own = {"seed": seed, "epochs": epochs}
            runs.add("dfa", growth=10300.0, validity=5.5e-10, accuracy=0.19 + 0.01 * seed, **own)
            runs.add("frozen", accuracy=0.41, **own)
    text = _printed(verdict_table(runs.judged()))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for name in ("dfa #1", "dfa #2"):
        assert any(line.startswith(name) for line in lines), name
    assert sorted(line[3:] for line in lines[-2:]) == ["(epochs=100)", "(epochs=30)"]
    assert text.count("D1+D2+D3)") == 2, "no verdict loses its end"


def test_markup_in_a_label_is_printed_not_obeyed(runs: Any) -> None:
    runs.add("odd", label="[red]x[/]")
    judged = runs.judged()
    assert "[red]x[/]" in _printed(verdict_table(judged))
    console = _console()
    print_verdict(judged[0].verdict, console)
    assert "[red]x[/]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_verdict_in_full_has_every_reason_and_step(audit: list[Judged]) -> None:
    verdict = audit[1].verdict
    console = _console()
    print_verdict(verdict, console)
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "✗ FAIL(D1+D2+D3) The claim is walked back." in text
    for check in ("D1 fires", "D2 fires", "D3 fires", "1. stands", "4. walked back"):
        assert check in text
    assert "Passing certifies nothing" in text


def test_unknown_is_neither_fires_nor_quiet(runs: Any) -> None:
    runs.add("bp")
    console = _console()
    print_verdict(runs.judged()[0].verdict, console)
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "D3 not known" in text
    assert "Not decided: evidence is missing" in text


def test_baseline_is_printed_without_a_claim(runs: Any) -> None:
    runs.add("frozen")
    console = _console()
    print_verdict(runs.judged()[0].verdict, console)
    assert "assigns credit" not in console.file.getvalue()  # type: ignore[attr-defined]


def _console() -> Console:
    return Console(width=80, file=io.StringIO())


def _printed(thing: object) -> str:
    console = _console()
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined]
