"""The stem × blocks table of D3: is it the blocks that learned, or the stem?

A stem trained by another rule changes what frozen blocks can reach, so "gain over frozen" has more than
one meaning. Each contrast holds the stem's rule fixed and asks about the blocks alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from walkback.core.verdict import Reason
from walkback.judge.diagnostics import judge_depth
from walkback.judge.evidence import Evidence
from walkback.judge.thresholds import Thresholds

Cells = Mapping[tuple[str, str], Sequence[Evidence]]  # (rule of the stem, rule of the blocks) → seeds


def contrasts(rule: str, cells: Cells, thresholds: Thresholds) -> dict[str, Reason]:
    """Trained against frozen blocks for each stem of which both cells ran to their end on all of the rule's
    seeds: one control more or less on one of them must not decide over all."""
    found = {}
    seeds = {run.seed for run in cells.get((rule, rule), ())}
    for stem in ("bp", rule):
        trained, fixed = cells.get((stem, rule), ()), cells.get((stem, "frozen"), ())
        by_seed = {run.seed: run for run in fixed if _ended(run)}
        done = {run.seed for run in trained if _ended(run)}
        if trained and done == seeds <= set(by_seed):
            found[f"stem by {stem}"] = judge_depth(trained, [by_seed[r.seed] for r in trained], thresholds)
    return found


def stem_blocks(rule: str, cells: Cells, thresholds: Thresholds) -> dict[str, Any]:
    """The table for the report: mean accuracy of each cell that was run, and each contrast."""
    own = cells.get((rule, rule), ())
    return {
        "cells": [
            {"stem": stem, "blocks": blocks, "accuracy": _accuracy(runs, own)}
            for (stem, blocks), runs in cells.items()
            if runs
        ],
        "contrasts": {
            name: {"gain": reason.value, "interval": reason.interval, "fires": reason.fires}
            for name, reason in contrasts(rule, cells, thresholds).items()
        },
    }


def with_contrasts(headline: Reason, found: Mapping[str, Reason]) -> Reason:
    """D3 with what the contrasts say: where they disagree it fires, and says why."""
    said = {name: reason.fires for name, reason in found.items() if reason.fires is not None}
    if headline.fires is not None:
        said["against frozen blocks under a backprop stem"] = headline.fires
    if len(set(said.values())) < 2:
        return headline
    useful = [name for name, fires in said.items() if not fires]
    useless = [name for name, fires in said.items() if fires]
    sentence = (
        f"{headline.sentence} The answer depends on the stem: the blocks help ({', '.join(useful)}), "
        f"and do not ({', '.join(useless)})."
    )
    return replace(headline, fires=True, status="stem-dependent", sentence=sentence)


def _ended(run: Evidence) -> bool:
    return run.status.get("state") not in ("running", "diverged")


def _accuracy(runs: Sequence[Evidence], own: Sequence[Evidence]) -> float | None:
    """The mean of a cell that has all of the rule's seeds, all of them at one epoch: else it is a gap."""
    whole = sorted(str(run.seed) for run in runs) == sorted(str(run.seed) for run in own)
    if not whole or len({run.epoch for run in (*runs, *own)}) > 1 or any(run.rate_open for run in runs):
        return None
    values = [run.accuracy for run in runs]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
