"""The tables of a metric audit.

A refusal shows no numbers, and what is left of an exact copy is rounding: of neither is one shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from walkback.core.verdict import Outcome, Reason, Verdict
from walkback.metrics.ledger import is_number
from walkback.metrics.several import Audits
from walkback.report import words
from walkback.report.metric_readings import (
    alpha_of,
    claim_of,
    intervals_of,
    is_exact,
    is_gap,
    learners_of,
    standard_error,
)
from walkback.report.table import Column, Row, Table

if TYPE_CHECKING:
    import pandas as pd


def row_table(verdicts: Mapping[str, Verdict], frame: pd.DataFrame) -> Table:
    """Which rows could be used and which repeat others; metrics that agree on it share a line."""
    shared: dict[tuple[int | None, ...], list[str]] = {}
    for name, verdict in verdicts.items():
        shared.setdefault(_row_counts(verdict, frame), []).append(name)
    fields = ("metrics", "n", "dropped", "identical", "same_design", "repeated")
    rows = tuple(
        dict(zip(fields, (_names(names, len(verdicts)), *counts), strict=True))
        for counts, names in shared.items()
    )
    columns = (
        Column("metric", ("metrics",), numeric=False),
        Column("complete rows", ("n",), words.count),
        Column("left out", ("dropped",), words.count),
        Column("identical", ("identical",), words.count),
        Column("same design", ("same_design",), words.count),
        Column("repeats left out", ("repeated",), words.count),
    )
    caption = (
        "Counted before any statistic. Left out: a value is missing or not finite. Identical: equals an "
        "earlier row in metric, target and all controls. Same design: repeats an earlier row's controls, "
        "the seed included. Repeats left out: the same run once more."
    )
    return Table("rows", caption, columns, fields, rows)


def metric_table(audits: Audits) -> Table:
    columns = (
        Column("metric", ("metric",), numeric=False),
        Column("n", ("n",), words.count),
        Column("raw", ("raw",), words.cosine),
        Column("partial", ("partial",), words.cosine),
        Column("p", ("p",), show_p),
        Column("BH", ("bh",), show_p),
        Column("max-T", ("max_t",), show_p),
        Column("class", ("class",), numeric=False),
        Column("verdict", ("verdict",), numeric=False),
    )
    caption = (
        "Rank correlation of each metric with the target, raw and given the controls, its p alone and "
        "corrected for the number of metrics, and the verdict."
    )
    rows = tuple(
        _metric_row(name, verdict, audits.adjusted.get(name, {}))
        for name, verdict in audits.verdicts.items()
    )
    return Table("metrics", caption, columns, _METRIC_FIELDS, rows)


def reason_table(verdicts: Mapping[str, Verdict]) -> Table:
    columns = (
        Column("metric", ("metric",), numeric=False),
        Column("check", ("check",), numeric=False),
        Column("value", ("value",), words.cosine),
        Column("p", ("p",), show_p),
        Column("counted", ("counted",), numeric=False),
        Column("in words", ("sentence",), numeric=False),
    )
    rows = tuple(_reason_row(name, reason) for name, v in verdicts.items() for reason in v.reasons)
    fields = ("metric", "check", "value", "p", "counted", "fires", "threshold", "status", "sentence")
    return Table("reasons", "Every check behind the verdicts.", columns, fields, rows)


def learner_table(verdicts: Mapping[str, Verdict]) -> Table:
    columns = (
        Column("metric", ("metric",), numeric=False),
        Column("learner", ("learner",), numeric=False),
        Column("r", ("r",), words.cosine),
        Column("standard error", ("se",), words.number),
        Column("p", ("p",), show_p),
        Column("error out of fold", ("error",), words.number),
        Column("counted", ("eligible",), _yes, numeric=False),
    )
    rows = tuple(
        {"metric": name, **test, "se": standard_error(test)}
        for name, verdict in verdicts.items()
        for test in learners_of(verdict)
    )
    caption = "Correlation of what each learner leaves of metric and target, out of fold."
    fields = ("metric", "learner", "r", "se", "z", "p", "error", "eligible")
    return Table("learners", caption, columns, fields, rows)


def group_table(audits: Audits) -> Table:
    columns = (
        Column("metric", ("metric",), numeric=False),
        Column("group", ("group",), numeric=False),
        Column("n", ("n",), words.count),
        Column("raw", ("raw",), words.cosine),
        Column("partial", ("partial",), words.cosine),
        Column("p", ("p",), show_p),
        Column("BH", ("bh",), show_p),
        Column("max-T", ("max_t",), show_p),
        Column("class", ("class",), numeric=False),
    )
    rows = tuple(
        {"metric": name, **group}
        for name, verdict in audits.verdicts.items()
        if verdict.outcome is not Outcome.REFUSED
        for group in groups_of(name, verdict, audits)
    )
    caption = (
        "The same correlations within each group, the group's own column no longer a control; BH and max-T "
        "correct for all metrics and groups."
    )
    fields = ("metric", "group", "n", "raw", "partial", "p", "bh", "max_t", "adjusted_n", "class")
    return Table("groups", caption, columns, fields, rows)


def groups_of(name: str, verdict: Verdict, audits: Audits) -> Iterator[Row]:
    """What was found in each group, and what is left of its p after all metrics and groups."""
    for found in verdict.evidence.get("groups") or ():
        told = audits.by_group.get(name, {}).get(found["group"], {})
        yield {**found, "bh": told.get("bh"), "max_t": told.get("max_t"), "adjusted_n": told.get("n")}


def canon_table(audits: Audits) -> Table:
    """What others measure, in one line each; where it cannot be computed, why."""
    columns = (
        Column("metric", ("metric",), numeric=False),
        Column("measure", ("measure",), numeric=False),
        Column("value", ("value",), words.cosine),
        Column("in words", ("sentence",), numeric=False),
    )
    rows = tuple(
        {"metric": name, **row} for name, found in audits.canon.items() for row in _canon_rows(found)
    )
    caption = (
        "The established measures on the same rows, in the direction of the claim (else of the raw "
        "correlation): beside the verdict, never part of it."
    )
    return Table("canon", caption, columns, ("metric", "measure", "value", "sentence"), rows)


def rate_table(audits: Audits) -> Table:
    """How often this audit errs on tables of this design whose truth is known."""
    columns = (
        Column("metric", ("metric",), numeric=False),
        Column("true partial correlation", ("effect",), words.cosine),
        Column("called INDEPENDENT, %", ("share",), words.percent),
        Column("from, %", ("low",), words.percent),
        Column("to, %", ("high",), words.percent),
        Column("tables", ("runs",), words.count),
    )
    rows = tuple(
        {
            "metric": name,
            **rate.to_dict(),
            "kind": kind,
            "low": rate.interval[0],
            "high": rate.interval[1],
        }
        for name, rates in audits.rates.items()
        for kind, rate in rates.items()
    )
    caption = (
        "The audit audited: simulated tables with these rows' controls and clusters, and how often they "
        "were called INDEPENDENT, with a 95 % interval. At zero every such call is wrong."
    )
    fields = ("metric", "kind", "effect", "found", "runs", "share", "low", "high")
    return Table("simulated", caption, columns, fields, rows)


def claim_table(verdicts: Mapping[str, Verdict]) -> Table:
    """What all audits share; where a control is itself audited, it is no control of its own."""
    claims = [claim_of(verdict) for verdict in verdicts.values()]
    controls = dict.fromkeys(name for claim in claims for name in claim.controls)
    tested = [verdict for verdict in verdicts.values() if verdict.evidence.get("equivalence")]
    facts = {
        "target": claims[0].target,
        "baseline": claims[0].baseline,
        "controls": ", ".join(controls),
        "second reading of the baseline": claims[0].twin,
        "rows belong together by": claims[0].cluster,
        "claimed direction": claims[0].direction,
        "δ, below which an association counts as none": _shared(
            verdict.evidence["equivalence"]["delta"] for verdict in tested
        ),
        "α, the level of every test": _shared(map(alpha_of, tested)),
    }
    rows = tuple({"fact": fact, "value": value} for fact, value in facts.items())
    columns = (Column("what", ("fact",), numeric=False), Column("value", ("value",), numeric=False))
    return Table("claim", "The claim and its limits.", columns, ("fact", "value"), rows)


def show_p(value: float | None) -> str:
    """A p that is too small for a float is still not zero."""
    return "< 10⁻³⁰⁰" if value == 0 else words.number(value)


_METRIC_FIELDS = (
    *("metric", "n", "raw", "raw_low", "raw_high", "partial", "partial_low", "partial_high", "p"),
    *("permutation_p", "bh", "max_t", "adjusted_n", "class", "outcome", "verdict"),
)


def _canon_rows(found: Mapping[str, Any]) -> Iterable[Row]:
    """One row per measure that applies, in the order of the canon."""
    for key, (measure, field, told) in _CANON.items():
        if key in found:
            score = found[key]
            value = score[field]
            sentence = score["reason"] or told(score)
            yield {"measure": measure, "value": None if is_gap(value) else value, "sentence": sentence}


def _regret_words(score: Mapping[str, Any]) -> str:
    baseline = "" if is_gap(score["baseline"]) else f", the baseline's {words.number(score['baseline'])}"
    return (
        f"Target lost by picking the metric's first run{baseline}, a random run's "
        f"{words.number(score['random'])}; a larger target counts as better."
    )


_CANON: Mapping[str, tuple[str, str, Callable[[Mapping[str, Any]], str]]] = {
    "kendall": ("Kendall τ", "value", lambda s: f"Over {s['of']} runs, ties as in τ-b."),
    "granulated": (
        "granulated τ (ψ)",
        "psi",
        lambda s: (
            "Mean over one-hyper-parameter slices: "
            + ", ".join(words.cosine(None if is_gap(a["value"]) else a["value"]) for a in s["axes"])
            + "."
        ),
    ),
    "conditional_information": (
        "conditional information",
        "value",
        lambda s: f"Share of the target's order, over {min(s['bins'])} to {max(s['bins'])} bins.",
    ),
    "sign_error": (
        "robust sign-error",
        "robust",
        lambda s: (
            f"Worst of {s['environments']} environments ({s['worst']}); mean {words.cosine(s['mean'])}."
        ),
    ),
    "increment": (
        "ΔR²",
        "delta",
        lambda s: (
            f"Out of fold, ± {words.number(s['se'])}: from {words.cosine(s['without'])} to "
            f"{words.cosine(s['with_metric'])}."
        ),
    ),
    "regret": ("selection regret", "metric", _regret_words),
}


def _metric_row(name: str, verdict: Verdict, adjusted: Mapping[str, float | None]) -> Row:
    row: dict[str, Any] = dict.fromkeys(_METRIC_FIELDS)
    row |= {"metric": name, "outcome": verdict.outcome.value, "verdict": verdict.verdict}
    if verdict.outcome is Outcome.REFUSED:
        return row
    evidence = verdict.evidence
    row |= {"n": evidence["n"], "raw": evidence["raw"]}
    if is_exact(verdict):
        return row
    raw, partial = (interval or (None, None) for interval in intervals_of(verdict))
    row |= {"raw_low": raw[0], "raw_high": raw[1], "partial_low": partial[0], "partial_high": partial[1]}
    row |= {"partial": evidence["partial"], "p": evidence["p"], "class": evidence["compat"]["class"]}
    row |= {"permutation_p": evidence["tests"]["permutation"]["p"]}
    return row | {"bh": adjusted.get("bh"), "max_t": adjusted.get("max_t"), "adjusted_n": adjusted.get("n")}


def _reason_row(name: str, reason: Reason) -> Row:
    return {
        "metric": name,
        "check": reason.check,
        "value": reason.value,
        "p": reason.detail.get("p"),
        "counted": _counted(reason),
        "fires": reason.fires,
        "threshold": reason.threshold,
        "status": reason.status,
        "sentence": reason.sentence[:1].upper() + reason.sentence[1:],
    }


def _counted(reason: Reason) -> str:
    if reason.check in ("admissible", "exact"):
        return "decides"
    if reason.status != "ok":
        return {"missing": "cannot be computed"}.get(reason.status, reason.status)
    parts = {"equivalence": "for PROXY", "bend": "against the twin", "rest": "against learners"}
    return parts.get(reason.check, "counted")


def _yes(value: bool) -> str:
    return "counted" if value else "not counted"


def _row_counts(verdict: Verdict, frame: pd.DataFrame) -> tuple[int | None, ...]:
    """Complete, left out, identical, same design; unknown where the columns were refused by their kind."""
    evidence, claim = verdict.evidence, claim_of(verdict)
    numbers = [claim.metric, claim.target, *filter(None, (claim.baseline, claim.twin))]
    sound = all(is_number(frame[name]) for name in numbers)
    if not sound or claim.target in (claim.metric, *claim.confounders):
        return (None,) * 5
    repeats = evidence["duplicates"]
    found = evidence["n"], evidence["dropped"], repeats["identical"], repeats["same_design"]
    return *found, evidence.get("repeated", 0)


def _names(names: Sequence[str], of: int) -> str:
    return f"all {of} metrics" if len(names) == of > 1 else ", ".join(names)


def _shared(values: Iterable[float]) -> str | None:
    return ", ".join(dict.fromkeys(map(words.limit, values))) or None
