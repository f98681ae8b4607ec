"""The report as one web page: no script, no other file, nothing fetched; it can be mailed and printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from walkback.report import words
from walkback.report.content import Report
from walkback.report.svg import inline_svg
from walkback.store.provenance import installed


def render_html(report: Report, figures: Mapping[str, bytes]) -> str:
    """`figures` holds `<name>.svg` for each figure of the report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    pages = Environment(
        autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters["keep_units"] = _keep_units
    drawings = {
        figure.name: Markup(
            inline_svg(figures[f"{figure.name}.svg"].decode(), f"fig-{figure.name}", figure.alt)
        )
        for figure in report.figures
    }
    page = pages.get_template("report.html.j2")
    return page.render(
        report=report, drawings=drawings, survives=words.survives, version=installed("walkback")
    )


def _keep_units(sentence: str) -> str:
    """A number stays on one line with its unit, its spread and what stands in parentheses beside it."""
    return re.sub(r"(?<=\d) (?=%|pp\b|±|\(\d)|(?<=±) ", "\u00a0", sentence)
