"""Diagnostic C: does the credit point anywhere, compared with what chance gives? It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from walkback.judge.diagnostics import no_number
from walkback.judge.evidence import Evidence


def judge_credit(runs: Sequence[Evidence]) -> dict[str, Any]:
    """The deep mean cosine of each seed, its null, and one sentence."""
    cosines = [run.value("alignment.deep_cosine@1") for run in runs]
    p = [run.number("alignment.deep_null_p@1") for run in runs]
    z = [run.number("alignment.deep_null_z@1") for run in runs]
    return {
        "value": cosines,
        "null_p": p,
        "null_z": z,
        "sentence": _sentence(
            [c for c in cosines if c is not None],
            [v for v in p if v is not None],
            [run.gap("alignment.deep_cosine@1") for run in runs],
        ),
    }


def _sentence(cosines: Sequence[float], p: Sequence[float], gaps: Sequence[str]) -> str:
    runs = len(gaps)
    if any(gaps):
        return no_number("The direction of the credit", gaps)
    found = f"The deep cosine is {fmean(cosines):+.3f}"
    if len(p) < runs:
        return f"{found}; it was not compared with chance (walkback measure does that)."
    outside = sum(value <= 0.05 for value in p)
    return f"{found}; it lies outside its null (p ≤ .05) on {outside} of {runs} seeds."
