"""Verdicts in, a folder out: report.html, report.md, tables and figures. Same verdicts, same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from walkback.core.errors import BadInput
from walkback.judge.assemble import Judged
from walkback.report.audit_content import build_report
from walkback.report.csv import render_csv
from walkback.report.document import Chapter, Drawing, Report
from walkback.report.figures import draw_figures, save_figure
from walkback.report.html import render_html
from walkback.report.latex import render_latex
from walkback.report.markdown import render_markdown, render_table
from walkback.report.table import Table
from walkback.store.files import write_atomic


def write_report(
    judged: Sequence[Judged],
    out: Path,
    *,
    title: str = "walkback audit",
    study: Chapter | None = None,
    unmeasured: Sequence[str] = (),
) -> Path:
    """Write everything below `out`; the path of report.html, which needs none of the other files.

    `unmeasured` names the runs that have started and show nothing yet.
    """
    if not judged:
        raise BadInput("There is nothing to report: no verdicts were given.")
    report = build_report(judged, title, study, unmeasured)
    figures = draw_figures(judged) | draw_all(study.drawings if study else ())
    files = _tables(report) | {f"figures/{name}": data for name, data in figures.items()}
    files["report.md"] = render_markdown(report).encode()
    files["report.html"] = render_html(report, figures).encode()
    for name, data in files.items():
        write_atomic(Path(out) / name, data)
    return Path(out) / "report.html"


def draw_all(drawings: Sequence[Drawing]) -> dict[str, bytes]:
    """File name to bytes, each drawing in every format."""
    return {
        f"{drawing.text.name}.{ending}": data
        for drawing in drawings
        for ending, data in save_figure(drawing.text.name, drawing.draw).items()
    }


def _tables(report: Report) -> dict[str, bytes]:
    renderers = {"csv": render_csv, "tex": render_latex, "md": lambda table: render_table(table) + "\n"}
    return {
        f"tables/{table.name}.{ending}": render(table).encode()
        for table in (report.verdicts, report.layers, report.trajectory, *_own(report))
        for ending, render in renderers.items()
    }


def _own(report: Report) -> Sequence[Table]:
    """The tables that not every report has."""
    full = () if report.full is None else (report.full,)
    return full if report.study is None else (*full, *report.study.tables)
