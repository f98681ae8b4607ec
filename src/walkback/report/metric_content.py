"""What the report of a metric audit says, before any target renders it: rows first, then verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from walkback.core.verdict import Outcome, Verdict
from walkback.metrics.admissible import Claim
from walkback.metrics.decision import DOUBTS, LEAST_ROWS, NO_TESTS
from walkback.metrics.several import Audits
from walkback.report import words
from walkback.report.document import FigureText
from walkback.report.metric_readings import (
    Interval,
    alpha_of,
    claim_of,
    intervals_of,
    is_exact,
    is_gap,
    learners_of,
    standard_error,
)
from walkback.report.metric_tables import (
    canon_table,
    claim_table,
    group_table,
    learner_table,
    metric_table,
    rate_table,
    reason_table,
    row_table,
)
from walkback.report.table import Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Effect:
    """A correlation with what is known about it; `counted` is False for one that has no vote."""

    name: str
    r: float
    interval: Interval | None
    p: float | None = None
    counted: bool = True


@dataclass(frozen=True)
class MetricSection:
    """All about one metric. Refused and exact ones have no effects but, at most, the raw one."""

    name: str
    slug: str
    verdict: str
    tone: words.Tone
    sentence: str
    reasons: Table
    groups: Table | None
    canon: Table | None
    rates: Table | None
    notes: Sequence[str]
    figures: Sequence[FigureText]
    effects: Sequence[Effect]
    delta: float | None
    claim: Claim
    residuals: Sequence[Sequence[float]]
    best: str | None


@dataclass(frozen=True)
class MetricReport:
    title: str
    summary: str
    rows: Table
    row_notes: Sequence[str]
    sections: Sequence[MetricSection]
    metrics: Table
    figures: Sequence[FigureText]
    reading: Sequence[tuple[str, str]]
    claim: Table
    caveats: Sequence[str]
    tables: Sequence[Table]

    @property
    def all_figures(self) -> list[FigureText]:
        return [*self.figures, *(figure for section in self.sections for figure in section.figures)]


def build_metric_report(audits: Audits, frame: pd.DataFrame) -> MetricReport:
    verdicts = audits.verdicts
    rows, metrics, reasons = row_table(verdicts, frame), metric_table(audits), reason_table(verdicts)
    groups, learners, claim = group_table(audits), learner_table(verdicts), claim_table(verdicts)
    canon, rates = canon_table(audits), rate_table(audits)
    sections = [
        _section(index, name, verdict, reasons, (groups, canon, rates))
        for index, (name, verdict) in enumerate(verdicts.items(), 1)
    ]
    return MetricReport(
        title=_title(verdicts),
        summary=_summary(verdicts, frame),
        rows=rows,
        row_notes=_row_notes(rows, len(frame)),
        sections=sections,
        metrics=metrics,
        figures=_overview(sections),
        reading=READING,
        claim=claim,
        caveats=(*CAVEATS, *_adjusted_note(audits), *_rates_note(audits)),
        tables=[
            table for table in (rows, metrics, reasons, learners, groups, canon, rates, claim) if table.rows
        ],
    )


TONES = {
    Outcome.INDEPENDENT: words.Tone("pass", "✓", "Tells more than what it was compared with"),
    Outcome.PROXY: words.Tone("fail", "✗", "Tells nothing more than what it was compared with"),
    Outcome.FAIL: words.Tone("fail", "✗", "Goes the other way than claimed"),
    Outcome.INCONCLUSIVE: words.Tone("open", "?", "Not decided: the evidence leaves it open"),
    Outcome.REFUSED: words.Tone("refused", "–", "Not answered: these rows cannot carry the question"),
}

READING = (
    (
        "INDEPENDENT",
        "Every test that counts finds the association, with one sign, on at least "
        f"{LEAST_ROWS} independent rows. “Of this reading of the loss” is added where the baseline was "
        "read once: a second, noisy reading of the same loss would pass as well.",
    ),
    (
        "PROXY",
        "The association is shown to be smaller than δ, by every measure that counts. “Exact”: the metric "
        "is a function of a control, so that what is left is rounding and no number is shown for it. "
        "“Silent”: it goes with the target neither with the controls nor without.",
    ),
    (
        "INCONCLUSIVE",
        "Neither is shown. “Nuisance-sensitive”: some tests find the association and some do not, or what "
        "they find may be the controls' own, so the answer hangs on how the controls are modelled.",
    ),
    ("FAIL (wrong sign)", "Every test that counts finds the opposite of the direction that was claimed."),
    ("REFUSED", "The question cannot be asked of these rows. The reasons are given, and no numbers."),
    (
        "raw, partial",
        "Rank correlation of metric and target: as it is, and given baseline and controls.",
    ),
    (
        "p, BH, max-T",
        "p belongs to the partial correlation, had it been the only one asked for. BH (Benjamini–Hochberg) "
        "bounds the share of false finds among all metrics, max-T the chance of a single one; both are "
        "from permutations that the metrics share.",
    ),
    (
        "class",
        "Raw against partial, by published rules: survives, washout (the controls take it away), "
        "sign-inversion and reverse-inversion (they turn it round), hidden-after-control (they bring it "
        "out), weak-or-mixed. It describes; the verdict does not use it.",
    ),
    (
        "learners",
        "Ways to predict metric and target from the controls, out of fold. The test asks whether what "
        "is left of both still goes together. A learner that predicts clearly worse than the best has not "
        "taken the controls out, and does not count.",
    ),
    (
        "rest, bend",
        "What a test may find though nothing is there: what learners miss of a metric that the controls "
        "predict nearly whole, and curved or uneven effects of a noisily read loss, or of controls.",
    ),
    ("equivalence", "Whether the partial correlation is shown to lie inside ±δ, and what that would take."),
    (words.MISSING, "Not measured, or not applicable. It never stands for zero."),
)

CAVEATS = (
    "An association that these controls do not account for may be due to something that was not recorded. "
    "No verdict says that a metric causes anything.",
    "A verdict holds for these rows: other nets, data or ranges of the controls were not looked at.",
    "Rows of a group table describe the groups: the verdict does not depend on them.",
)


def sentence_of(verdict: Verdict) -> str:
    """What was found about the claim, in one sentence; of a refusal, its reasons."""
    if verdict.outcome is Outcome.REFUSED or is_exact(verdict):
        return " ".join(reason.sentence for reason in verdict.reasons)
    evidence = verdict.evidence
    claim = claim_of(verdict)
    tests = [r for r in verdict.reasons if r.check not in NO_TESTS and r.status == "ok"]
    found = sum(reason.fires is False for reason in tests)
    partial = f"partial {words.cosine(evidence.get('partial'))}"
    if verdict.outcome is Outcome.INDEPENDENT:
        return f"{claim.sentence}: each of the {len(tests)} tests that count finds it ({partial})."
    if verdict.outcome is Outcome.FAIL:
        return (
            f"Not as claimed: each of the {len(tests)} tests that count finds an association of "
            f"{claim.metric} and {claim.target} that is not {claim.direction} ({partial})."
        )
    given = f"Given {', '.join(claim.confounders)}, what" if claim.confounders else "What"
    if verdict.outcome is Outcome.PROXY:
        return (
            f"{given} {claim.metric} shares with {claim.target} is shown to be smaller than "
            f"±{evidence['equivalence']['delta']:g} ({partial})."
        )
    few = f", but there are fewer than {LEAST_ROWS} independent rows" if "fewer" in verdict.verdict else ""
    return (
        f"It is open whether {claim.sentence}: {found} of {len(tests)} tests that count find it ({partial})"
        f"{few}{_doubt(verdict)}{_not_small(verdict)}."
    )


def _doubt(verdict: Verdict) -> str:
    """Why tests that find the association are not believed."""
    told = {
        "bend": ", but curved or uneven effects of the baseline or of controls look the same",
        "rest": ", but the controls predict nearly all of the metric, and what learners miss is like it",
    }
    return "".join(told[r.check] for r in verdict.reasons if r.check in DOUBTS and r.fires)


def _section(
    index: int, name: str, verdict: Verdict, reasons: Table, others: tuple[Table, Table, Table]
) -> MetricSection:
    slug = f"{index}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-').lower()[:40] or 'metric'}"
    learners = learners_of(verdict)
    best = min(learners, key=lambda test: test["error"])["learner"] if learners else None
    groups, canon, rates = (_own(table, name, table.caption) for table in others)
    return MetricSection(
        name=name,
        slug=slug,
        verdict=verdict.verdict,
        tone=TONES.get(verdict.outcome, TONES[Outcome.INCONCLUSIVE]),
        sentence=sentence_of(verdict),
        reasons=_own(reasons, name, _REASON_CAPTIONS.get(verdict.outcome, _REASONS)),
        groups=groups if groups.rows else None,
        canon=canon if canon.rows else None,
        rates=rates if rates.rows else None,
        notes=[note for note in verdict.notes if note not in _said_above(verdict)],
        figures=_figures(slug, name, verdict, best) if best else (),
        effects=_effects(verdict),
        delta=(verdict.evidence.get("equivalence") or {}).get("delta"),
        claim=claim_of(verdict),
        residuals=verdict.evidence.get("residuals") or () if best else (),
        best=best,
    )


_REASONS = (
    "INDEPENDENT needs every counted test to find the association; the equivalence is what PROXY needs."
)
_REASON_CAPTIONS = {Outcome.REFUSED: "Why the question cannot be asked of these rows."}


def _said_above(verdict: Verdict) -> list[str]:
    """Notes on the rows, which the page gives before any verdict."""
    return [note for note in verdict.notes if re.match(r"\d+ rows (were left out|equal an earlier)", note)]


def _own(table: Table, name: str, caption: str) -> Table:
    """One metric's part, without the column that would repeat its name."""
    rows = tuple(row for row in table.rows if row["metric"] == name)
    return replace(table, caption=caption, columns=table.columns[1:], rows=rows)


def _figures(slug: str, name: str, verdict: Verdict, best: str) -> tuple[FigureText, ...]:
    claim, level = claim_of(verdict), f"{100 * (1 - 2 * alpha_of(verdict)):g} %"
    kind = "bootstrap intervals" if verdict.evidence.get("bootstrap") else f"{level} intervals"
    counts = [effect for effect in _effects(verdict) if not effect.counted]
    hollow = f" Open: {', '.join(effect.name for effect in counts)}, not counted." if counts else ""
    return (
        FigureText(
            f"effects-{slug}",
            f"Correlations of {name} with {claim.target}, raw, partial and by each learner, as points with "
            "intervals around zero.",
            f"Stability. Raw and partial rank correlation with {kind}; below, what each learner leaves, "
            f"± 1.96 standard errors.{hollow} Shaded: inside ±δ, where PROXY needs the partial interval "
            "to be.",
        ),
        FigureText(
            f"residuals-{slug}",
            f"Two scatter plots of {name} against {claim.target}: before and after the controls are taken "
            "out.",
            f"Left: {name} against {claim.target}, both as normal scores. Right: what the best learner "
            f"({best}) leaves of both, out of fold, on the same scale. Black: means of tenths of the rows; "
            "level means that nothing is left." + _drawn_of(verdict.evidence["n"]),
        ),
    )


MOST_POINTS = 400  # per panel: more would only blacken it, and the page would grow with the table


def _drawn_of(n: int) -> str:
    return f" {MOST_POINTS} of {n} rows are drawn; the means are of all." if n > MOST_POINTS else ""


def _overview(sections: Sequence[MetricSection]) -> tuple[FigureText, ...]:
    """All metrics in one figure, where there is more than one to compare."""
    if sum(bool(section.effects) for section in sections) < 2:
        return ()
    return (
        FigureText(
            "metrics",
            "Raw and partial correlation of every metric with the target, as points with intervals.",
            "Raw (open diamond) against partial (filled square) rank correlation, with intervals. Shaded: "
            "inside ±δ. A metric that was refused, or is a function of a control, has no partial one.",
        ),
    )


def _effects(verdict: Verdict) -> list[Effect]:
    evidence = verdict.evidence
    if verdict.outcome is Outcome.REFUSED or is_gap(evidence.get("raw")):
        return []
    raw_interval, interval = intervals_of(verdict)
    found = [Effect("raw", evidence["raw"], raw_interval)]
    if is_exact(verdict) or is_gap(evidence.get("partial")):
        return found
    found.append(Effect("partial", evidence["partial"], interval, evidence["p"]))
    for test in learners_of(verdict):
        if not is_gap(test["r"]):
            se = standard_error(test)
            found.append(_learner_effect(test["learner"], test, se, test["eligible"]))
    twin = evidence["tests"].get("twin")
    if twin and not is_gap(twin["r"]):
        found.append(_learner_effect("twin", twin, standard_error(twin), True))
    return found


def _learner_effect(name: str, test: Mapping[str, Any], se: float | None, counted: bool) -> Effect:
    r = test["r"]
    interval = None if se is None else (r - 1.96 * se, r + 1.96 * se)
    return Effect(name, r, interval, test["p"], counted)


def _not_small(verdict: Verdict) -> str:
    shown = next((r.fires for r in verdict.reasons if r.check == "equivalence"), None)
    return "" if shown else "; nor is it shown to be small"


def _row_notes(rows: Table, n: int) -> list[str]:
    """What a reader must know of the rows before reading on; that all is well is said too."""
    notes = [f"The table has {words.plural(n, 'row')}."]
    for row in rows.rows:
        who = f"{row['metrics']}: " if len(rows.rows) > 1 else ""
        if row["n"] is None:
            notes.append(f"{who}the rows were not counted, because the columns themselves were refused.")
            continue
        if row["dropped"]:
            notes.append(
                f"{who}{_were(row['dropped'])} left out, because a value is missing or not finite."
            )
        if row["identical"] or row["same_design"]:
            notes.append(
                f"{who}{words.plural(row['identical'], 'row')} identical to an earlier one, and "
                f"{row['same_design']} of an earlier one's design."
            )
        if row["repeated"]:
            notes.append(f"{who}{_were(row['repeated'])} left out, because another is the same run.")
    known = [row for row in rows.rows if row["n"] is not None]
    if any(max(row["identical"], row["same_design"]) > row["repeated"] for row in known):
        notes.append("Pooled files may hold the same runs; a run that counts twice makes p too small.")
    return notes if len(notes) > 1 else [f"{notes[0]} None was left out, and none repeats another."]


def _were(number: int) -> str:
    return f"{words.plural(number, 'row')} {'was' if number == 1 else 'were'}"


def _title(verdicts: Mapping[str, Verdict]) -> str:
    claims = [claim_of(verdict) for verdict in verdicts.values()]
    beyond = ", ".join(dict.fromkeys(name for claim in claims for name in claim.confounders))
    who = f"{claims[0].metric} tells" if len(claims) == 1 else f"{len(claims)} metrics tell"
    return f"What {who} about {claims[0].target}" + (f" beyond {beyond}" if beyond else "")


def _summary(verdicts: Mapping[str, Verdict], frame: pd.DataFrame) -> str:
    ends: dict[str, int] = {}
    for verdict in verdicts.values():
        ends[verdict.outcome.value] = ends.get(verdict.outcome.value, 0) + 1
    told = ", ".join(f"{number} {outcome}" for outcome, number in ends.items())
    metrics = words.plural(len(verdicts), "metric")
    return f"{metrics} audited on a table of {words.plural(len(frame), 'row')}: {told}."


def _rates_note(audits: Audits) -> Iterator[str]:
    if not audits.rates:
        yield (
            "How often this audit errs on rows of this design was not simulated; "
            "walkback metric audit --simulate 200 does."
        )


def _adjusted_note(audits: Audits) -> Iterator[str]:
    if len(audits.verdicts) > 1 and not audits.adjusted:
        yield "p was not corrected for the number of metrics: fewer than two could be tested together."
    for n in dict.fromkeys(row["n"] for row in audits.adjusted.values()):
        yield f"BH and max-T were taken on the {words.count(n)} rows that all tested metrics have."
