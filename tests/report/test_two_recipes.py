"""A store that holds one rule under two recipes or on two nets: no question may take them for one."""

from __future__ import annotations

from typing import Any

import pytest

from walkback.judge.ablate import ablate
from walkback.judge.assemble import judge_bundles
from walkback.judge.multiverse import multiverse
from walkback.judge.replay import first_firing, histories, replay
from walkback.judge.sweep import sweep
from walkback.report.audit_content import build_report
from walkback.store import Bundle, Store

SHORT, LONG = "dfa (epochs=2)", "dfa (epochs=4)"


@pytest.fixture
def both(runs: Any) -> list[Bundle]:
    """DFA that explodes in two epochs, and the same rule and seed quiet over four."""
    runs.add("dfa", growth=900.0, validity=1e-9, accuracy=0.3, epochs=2)
    runs.add("dfa", growth=2.0, validity=1e-3, accuracy=0.9, epochs=4)
    for epochs in (2, 4):
        runs.add("frozen", accuracy=0.6, epochs=epochs)
    return Store(runs.path).bundles()


def test_replay_follows_each_run_by_itself(both: list[Bundle]) -> None:
    rows = {(row["rule"], row["detector"]): row for row in first_firing(replay(histories(both)))}
    assert {rule for rule, _ in rows} == {SHORT, LONG}
    assert [rows[SHORT, d]["stays_from"] for d in ("D1", "D2", "D3")] == [1, 1, 1]
    assert [rows[LONG, d]["first"] for d in ("D1", "D2", "D3")] == [None, None, None]
    assert (rows[SHORT, "D1"]["epochs"], rows[LONG, "D1"]["epochs"]) == (2, 4)


def test_a_sweep_counts_the_epochs_of_the_run_whose_verdict_it_shows(both: list[Bundle]) -> None:
    rows = [row for row in sweep(both) if row["threshold"] == "growth" and row["default"]]
    assert {row["rule"]: (row["fired"], row["known"]) for row in rows} == {SHORT: (2, 2), LONG: (0, 4)}
    assert {row["rule"]: row["outcome"] for row in rows} == {SHORT: "FAIL", LONG: "PASS"}


def test_under_a_grid_the_chosen_rate_keeps_its_counts(runs: Any) -> None:
    for rate, held_out in ((0.01, 0.5), (0.1, 0.9)):
        for rule in ("dfa", "frozen"):
            runs.add(rule, lr=rate, lr_grid="0.01,0.1", accuracy=held_out, growth=900.0)
    rows = [row for row in sweep(Store(runs.path).bundles()) if row["threshold"] == "growth"]
    assert {row["known"] for row in rows} == {2}


def test_ablation_and_multiverse_name_the_recipe(both: list[Bundle]) -> None:
    assert {row["rule"]: row["full"] for row in ablate(both)} == {SHORT: "walked back", LONG: "trustworthy"}
    assert {row["rule"]: row["default"] for row in multiverse(both)} == {SHORT: "FAIL", LONG: "PASS"}


def test_nets_are_named_by_what_tells_them_apart(runs: Any) -> None:
    for net in ("toy(depth=2,width=8)", "toy(depth=4,width=8)", "other(size=3)"):
        runs.add("dfa", net=net)
    rows = first_firing(replay(histories(Store(runs.path).bundles())))
    assert {row["rule"] for row in rows} == {
        "dfa (net=toy(depth=2))",
        "dfa (net=toy(depth=4))",
        "dfa (net=other)",
    }


def test_the_summary_counts_a_rule_once_however_many_settings_it_has(both: list[Bundle]) -> None:
    assert build_report(judge_bundles(both), "t").summary.startswith("1 rule in 2 settings on ")
