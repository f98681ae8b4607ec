"""Verdicts on tracks in, a folder out: report.md, report.html, report.json and junit.xml."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from walkback.core.canonical import plain
from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome, Reason, Verdict
from walkback.judge.verification import Verification, of_kind
from walkback.report import words
from walkback.report.csv import render_csv
from walkback.report.html import render_page
from walkback.report.junit import render_junit
from walkback.report.markdown import escape, join_blocks, render_table
from walkback.report.table import Column, Table
from walkback.store.files import write_atomic


@dataclass(frozen=True)
class TrackSection:
    """All about one track."""

    title: str
    verdict: str
    tone: words.Tone
    facts: str
    paragraphs: Sequence[tuple[str, str]]  # before the tables
    table: Table | None
    checks: Table
    controls: Table
    closing: Sequence[tuple[str, str]]  # and after them


@dataclass(frozen=True)
class VerificationReport:
    title: str
    generated: str
    summary: str
    metrics: Table
    tracks: Table
    sections: Sequence[TrackSection]
    notes: Sequence[str]


def write_verification(found: Verification, out: Path, generated: datetime) -> Path:
    """Write everything below `out`; the path of report.html, which needs none of the other files."""
    if not found.verdicts:
        raise BadInput("There is nothing to report: no track was run.")
    report = build_verification_report(found, generated)
    answer = {"generated": report.generated, **found.to_dict()}
    files = {
        "report.md": _markdown(report),
        "report.html": render_page("verification.html.j2", report=report),
        "report.json": json.dumps(plain(answer), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "junit.xml": render_junit(found),
        "tables/tracks.csv": render_csv(report.tracks),
    }
    for name, text in files.items():
        write_atomic(Path(out) / name, text.encode("utf-8"))
    return Path(out) / "report.html"


def build_verification_report(found: Verification, generated: datetime) -> VerificationReport:
    counts = found.counts
    return VerificationReport(
        title="Verification report",
        generated=generated.isoformat(sep=" ", timespec="seconds"),
        summary=f"{counts['passed']} of {words.plural(counts['total'], 'track')} passed. A track passes "
        "only if its claim holds, and fails under each of its sabotages.",
        metrics=_metrics(found),
        tracks=_tracks(found.verdicts),
        sections=[_section(verdict) for verdict in found.verdicts],
        notes=NOTES,
    )


NOTES = (
    "Passing certifies no more than the claim as it is worded, under the limits that stand beside it.",
    "The score is 100 × the weighted share of all gates, decisions and controls that went as they should. "
    "A track that did not pass scores 49 at most, one that raised an error 0. It ranks, and proves "
    "nothing.",
    "Smoke: does it run at all. Directional: few seeds, the direction can be trusted. Conclusive: as many "
    "seeds or as much precision as the decision rule asks for.",
)
TONES = {
    Outcome.PASS: words.Tone("pass", "✓", "The claim holds, and fails under every sabotage"),
    Outcome.FAIL: words.Tone("fail", "✗", "The claim is walked back"),
    Outcome.ERROR: words.Tone("fail", "!", "The track raised an error"),
    Outcome.INCONCLUSIVE: words.Tone("open", "?", "Not decided: the evidence cannot tell"),
    Outcome.SKIPPED: words.Tone("base", "–", "Not run"),
}
# The words of the report whose form this is, beside the outcomes that they stand for.
_METRICS = {
    "passed": "Passed",
    "inconclusive": "Partial (inconclusive)",
    "failed": "Failed",
    "error": "Errors",
    "skipped": "Stubs (skipped)",
    "total": "Tracks in all",
}


def _metrics(found: Verification) -> Table:
    counts, score = found.counts, found.average_score
    rows = [{"metric": told, "value": str(counts[name])} for name, told in _METRICS.items()]
    scored = counts["total"] - counts["skipped"]
    over = words.plural(scored, "track")
    average = words.MISSING if score is None else f"{score:.1f} / 100 (over {over})"
    rows += [
        {"metric": "Average score", "value": average},
        {"metric": "Seed", "value": str(found.seed)},
        {"metric": "Mode", "value": found.mode},
        {"metric": "Computing time", "value": duration(found.seconds)},
    ]
    return _plain_table("metrics", "All tracks together; those that raised an error are counted.", rows)


def _tracks(verdicts: Sequence[Verdict]) -> Table:
    columns = (
        Column("#", ("id",), numeric=False),
        Column("track", ("name",), numeric=False),
        Column("status", ("status",), numeric=False),
        Column("evidence", ("evidence",), numeric=False),
        Column("score", ("score",), _score),
        Column("time", ("seconds",), duration),
        Column("peak memory", ("peak_mb",), words.count, "MB"),
    )
    rows = tuple(
        {
            "id": verdict.evidence["id"],
            "name": verdict.evidence["name"],
            "status": verdict.verdict,
            "evidence": verdict.evidence["level"],
            "score": verdict.evidence["score"],
            "seconds": verdict.evidence["seconds"],
            "peak_mb": verdict.evidence["peak_mb"],
        }
        for verdict in verdicts
    )
    caption = "Every track that was asked for. Time is that of one thread, controls included."
    return Table("tracks", caption, columns, tuple(rows[0]), rows)


def _section(verdict: Verdict) -> TrackSection:
    known = verdict.evidence
    arms = "; ".join(f"{name}: {told}" for name, told in known["arms"].items())
    settings = ", ".join(f"{name} {value}" for name, value in known["settings"].items())
    return TrackSection(
        title=f"Track {known['id']}: {known['name']}",
        verdict=verdict.verdict,
        tone=TONES[verdict.outcome],
        facts=f"Score {_score(known['score'])}, evidence {known['level']}, {duration(known['seconds'])}, "
        f"seed {known['seed']}.",
        paragraphs=_told(
            ("Claim", verdict.claim),
            ("Experiment", known["experiment"]),
            ("Arms", f"{arms}."),
            ("Settings", settings and f"{settings}."),
            ("Decision rule, fixed beforehand", known["rule"]),
        ),
        table=_evidence_table(known["rows"]),
        checks=_reason_table("checks", "Gates and decisions.", _checks(verdict)),
        controls=_reason_table("controls", _CONTROLS, of_kind(verdict, "control")),
        closing=_told(
            ("Key difference", known["difference"]),
            ("Interpretation", known["interpretation"]),
            ("Verdict", f"{verdict.verdict}. {' '.join(verdict.notes)}"),
            ("Limits", known["limits"]),
            ("Purpose", known["purpose"]),
            ("Areas for improvement", known["improve"]),
        ),
    )


_CONTROLS = "The same experiment with one thing broken, which must fail; positive controls must pass."


def _told(*parts: tuple[str, str]) -> list[tuple[str, str]]:
    return [(title, text) for title, text in parts if text]


def _checks(verdict: Verdict) -> list[Reason]:
    return [*of_kind(verdict, "gate"), *of_kind(verdict, "decision")]


def _reason_table(name: str, caption: str, reasons: Sequence[Reason]) -> Table:
    rows = [
        {"name": reason.name, "kind": reason.check, "result": _result(reason), "sentence": reason.sentence}
        for reason in reasons
    ]
    return _plain_table(name, caption, rows)


def _result(reason: Reason) -> str:
    """As it should be or not, in the words of its kind."""
    if reason.check == "control":
        return {False: "caught", True: "NOT caught", None: "error"}[reason.fires]
    return {False: "holds", True: "does not hold", None: "open"}[reason.fires]


def _evidence_table(rows: Sequence[dict[str, Any]]) -> Table | None:
    if not rows:
        return None
    numeric = {name: all(isinstance(row[name], (int, float)) for row in rows) for name in rows[0]}
    columns = tuple(
        Column(name.replace("_", " "), (name,), _cell, numeric=numeric[name]) for name in rows[0]
    )
    return Table("evidence", "What was measured.", columns, tuple(rows[0]), tuple(rows))


def _plain_table(name: str, caption: str, rows: Sequence[dict[str, str]]) -> Table:
    fields = tuple(rows[0]) if rows else ("name",)
    columns = tuple(Column(field, (field,), numeric=False) for field in fields)
    return Table(name, caption, columns, fields, tuple(rows))


def _cell(value: Any) -> str:
    return words.number(value) if isinstance(value, float) else words.text(value)


def _score(score: float | None) -> str:
    return words.MISSING if score is None else f"{score:.0f}"


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def _markdown(report: VerificationReport) -> str:
    blocks = [
        f"# {escape(report.title)}",
        f"Generated: {escape(report.generated)}",
        "## Executive summary",
        escape(report.summary),
        render_table(report.metrics),
        render_table(report.tracks),
        *(block for section in report.sections for block in _section_blocks(section)),
        "## Notes",
        *(f"- {escape(note)}" for note in report.notes),
    ]
    return join_blocks(blocks)


def _section_blocks(section: TrackSection) -> list[str]:
    return [
        f"## {escape(section.title)}",
        f"**{section.tone.sign} {escape(section.verdict)}** — {escape(section.facts)}",
        *_paragraphs(section.paragraphs),
        *([render_table(section.table)] if section.table else []),
        *(render_table(table) for table in (section.checks, section.controls) if table.rows),
        *_paragraphs(section.closing),
    ]


def _paragraphs(parts: Sequence[tuple[str, str]]) -> list[str]:
    return [f"**{escape(title)}.** {escape(text)}" for title, text in parts]
