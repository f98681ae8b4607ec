"""The report as Markdown: the same tables and sentences, for a repository or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from walkback.report import words
from walkback.report.document import Chapter, FigureText, Report, Section
from walkback.report.table import Table


def render_markdown(report: Report) -> str:
    blocks = [
        f"# {escape(report.title)}",
        escape(report.summary),
        *(f"- **{escape(s.name)}** — {escape(f'{s.badge}: {s.why}')}" for s in report.sections),
        *_study(report.study),
        "## Verdicts",
        render_table(report.verdicts),
        "## Figures",
        *map(render_figure, report.figures),
        *(block for section in report.sections for block in _section(section)),
        "## Thresholds",
        render_table(report.thresholds),
        "## Recipe and provenance",
        *(render_table(table) for table in (report.recipe, report.identity, report.environment)),
        "## Notes",
        "\n".join(f"- {escape(note)}" for note in report.notes),
    ]
    return join_blocks(blocks)


def render_table(table: Table) -> str:
    """A pipe table under its caption; numbers are aligned to the right."""
    rule = ["---:" if column.numeric else "---" for column in table.columns]
    lines = [_line(map(escape, table.titles)), _line(rule)]
    lines += [_line(map(escape, cells)) for cells in table.cells()]
    return f"{escape(table.caption)}\n\n" + "\n".join(lines)


def render_figure(figure: FigureText) -> str:
    """An image that lies in `figures/`, and its caption."""
    return f"![{escape(figure.alt)}](figures/{figure.name}.svg)\n\n{escape(figure.caption)}"


def escape(text: str) -> str:
    """Text that stays text: no pipe ends a cell, nothing turns into a tag, a link, emphasis or maths."""
    return re.sub(r"([\\`*_\[\]<>|~$#])", r"\\\1", re.sub(r"\s+", " ", text))


def _study(study: Chapter | None) -> list[str]:
    if study is None:
        return []
    ours = [escape(f"Ours: {study.ours}.")] if study.ours else []
    figures = [render_figure(drawing.text) for drawing in study.drawings]
    return ["## The study", escape(study.question), *ours, *map(render_table, study.tables), *figures]


def _section(section: Section) -> list[str]:
    return [
        f"## {escape(section.name)}: {escape(section.badge)}",
        escape(f"{section.tone.words}. {section.about}"),
        "\n".join(map(_step, section.steps)),
        *([render_table(section.diagnostics)] if section.steps else []),
        render_table(section.credit),
        escape(section.direction),
        *([render_table(section.stem_blocks)] if section.stem_blocks else []),
        render_table(section.layers),
        *([render_table(section.full)] if section.full else []),
        "\n".join(f"- {escape(note)}" for note in section.notes),
    ]


def _step(step: Mapping[str, Any]) -> str:
    question, sentence = escape(step["question"]), escape(step["sentence"])
    return f"{step['step']}. **{question}** *{words.survives(step)}.* {sentence}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def join_blocks(blocks: list[str]) -> str:
    """One empty line between blocks, none between the items of a list."""
    text = "\n\n".join(block for block in blocks if block)
    return re.sub(r"(?m)(^- .*)\n\n(?=- )", r"\1\n", text) + "\n"
