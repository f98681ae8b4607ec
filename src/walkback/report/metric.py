"""Audits of metrics in, a folder out: report.html, report.md, tables, figures. Same audits, same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from walkback.core.errors import BadInput
from walkback.metrics.several import Audits
from walkback.report.csv import render_csv
from walkback.report.html import inline_figures, render_page
from walkback.report.latex import render_latex
from walkback.report.markdown import escape, join_blocks, render_table
from walkback.report.metric_content import MetricReport, MetricSection, build_metric_report
from walkback.report.metric_figures import draw_metric_figures
from walkback.store.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd

    from walkback.report.document import FigureText


def write_metric_report(audits: Audits, frame: pd.DataFrame, out: Path) -> Path:
    """Write everything below `out`; the path of report.html, which needs none of the other files.

    `frame` is the table that was audited: metric and target are drawn from it beside what the controls
    leave of them.
    """
    if not audits.verdicts:
        raise BadInput("There is nothing to report: no metric was audited.")
    report = build_metric_report(audits, frame)
    figures = draw_metric_figures(report, frame)
    files = _tables(report) | {f"figures/{name}": data for name, data in figures.items()}
    files["report.md"] = _markdown(report).encode()
    drawings = inline_figures(report.all_figures, figures)
    files["report.html"] = render_page("metric.html.j2", report=report, drawings=drawings).encode()
    for name, data in files.items():
        write_atomic(Path(out) / name, data)
    return Path(out) / "report.html"


def _tables(report: MetricReport) -> dict[str, bytes]:
    renderers = {"csv": render_csv, "tex": render_latex, "md": lambda table: render_table(table) + "\n"}
    return {
        f"tables/{table.name}.{ending}": render(table).encode()
        for table in report.tables
        for ending, render in renderers.items()
    }


def _markdown(report: MetricReport) -> str:
    blocks = [
        f"# {escape(report.title)}",
        escape(report.summary),
        "## The rows",
        render_table(report.rows),
        *(f"- {escape(note)}" for note in report.row_notes),
        "## Verdicts",
        *(f"- **{escape(s.name)}** — {escape(f'{s.verdict}: {s.sentence}')}" for s in report.sections),
        render_table(report.metrics),
        *_figures(report.figures),
        "## How to read this",
        *(f"- **{escape(term)}** — {escape(meaning)}" for term, meaning in report.reading),
        *(block for section in report.sections for block in _section(section)),
        "## What was asked",
        render_table(report.claim),
        "## Caveats",
        *(f"- {escape(note)}" for note in report.caveats),
    ]
    return join_blocks(blocks)


def _section(section: MetricSection) -> list[str]:
    return [
        f"## {escape(section.name)}: {escape(section.verdict)}",
        escape(f"{section.tone.words}. {section.sentence}"),
        render_table(section.reasons),
        *_figures(section.figures),
        *(
            render_table(table)
            for table in (section.groups, section.canon, section.rates)
            if table is not None
        ),
        *(f"- {escape(note)}" for note in section.notes),
    ]


def _figures(figures: Sequence[FigureText]) -> list[str]:
    return [f"![{escape(f.alt)}](figures/{f.name}.svg)\n\n{escape(f.caption)}" for f in figures]
