"""The report as one web page: no script, no other file, nothing fetched; it can be mailed and printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from walkback.report import words
from walkback.report.document import FigureText, Report
from walkback.report.svg import inline_svg
from walkback.store.provenance import installed


def render_html(report: Report, figures: Mapping[str, bytes]) -> str:
    """`figures` holds `<name>.svg` for each figure of the report."""
    own = [drawing.text for drawing in report.study.drawings] if report.study else []
    drawings = inline_figures([*report.figures, *own], figures)
    return render_page("report.html.j2", report=report, drawings=drawings, survives=words.survives)


def render_page(template: str, **content: Any) -> str:
    """A template of this package, everything in it escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    pages = Environment(
        autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters["keep_units"] = _keep_units
    return pages.get_template(template).render(version=installed("walkback"), **content)


def inline_figures(texts: Iterable[FigureText], figures: Mapping[str, bytes]) -> dict[str, str]:
    """Drawings by name, as markup that stands in the page itself."""
    from markupsafe import Markup

    return {
        text.name: Markup(inline_svg(figures[f"{text.name}.svg"].decode(), f"fig-{text.name}", text.alt))
        for text in texts
    }


def _keep_units(sentence: str) -> str:
    """A number stays on one line with its unit, its spread and what stands in parentheses beside it."""
    return re.sub(r"(?<=\d) (?=%|pp\b|±|\(\d)|(?<=±) ", "\u00a0", sentence)
