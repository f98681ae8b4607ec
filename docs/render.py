"""Renders the pages that are tables in code or made from stored runs, so that the docs cannot drift."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from walkback.core.quantities import QUANTITIES
from walkback.core.spec import Call
from walkback.data import datasets
from walkback.judge.thresholds import Thresholds
from walkback.nets import nets
from walkback.report import published
from walkback.report.audit_content import identity_table, recipe_table
from walkback.report.csv import render_csv
from walkback.report.document import Drawing
from walkback.report.figures import save_figure
from walkback.report.markdown import escape, render_figure, render_table
from walkback.report.table import Table
from walkback.rules import modifiers, resolve_addition, resolve_rule, rules
from walkback.store import Store
from walkback.store.files import write_atomic
from walkback.studies import five_rule, paper, studies
from walkback.studies.agreement import points_of
from walkback.studies.answers import Answers, data_of
from walkback.tracks import Track
from walkback.tracks.find import find_tracks

FOLDER, RESULTS = (Path(__file__).parent / name for name in ("reference", "results"))
PAGES, RUNS = RESULTS / "pages", RESULTS / "cifar10"
FIRST_FINDINGS = ("the public code", "what an index hides", "the stem", "EP in the paper", "the border")
COMMAND = "walkback audit paper --judge-only --store docs/results/cifar10"
# Read off the files: all 60,000 have the tables of quality 75 and colour at half the resolution; how far
# they are from the original's pixels is what reproduce/lossless_cifar10.py prints.
JPEG_FILES = "698de7705365b0328ed055655d221bd9934e8d93a1984e4f841d09fa92bed49f"
IMAGES = (
    "Where a table does not say `cifar10-lossless`, images were read from JPEG files (quality 75, colour "
    "at half\nthe resolution), whose pixels are 8.0 of 255 (root mean square) away from the original "
    "release's:\n[what that is worth](controls.md#encoding)."
)
RESULTS_NOTE = "<!-- Rendered by `make docs` from pages/ and the runs in cifar10/; do not edit. -->\n\n"
NOTE = "<!-- Rendered by `make docs` from the code; do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """File name → text of every rendered page."""
    return {
        "quantities.md": quantities(),
        "thresholds.md": thresholds(),
        "registry.md": registry(),
        "tracks.md": tracks(),
    }


def quantities() -> str:
    rows = [(f"`{q.id}`", "layer" if q.per_layer else "net", q.meaning) for q in QUANTITIES.values()]
    words = (
        "Every reading has an epoch, a layer (0 = stem output, L = deepest) where it is per layer, a value "
        "and a status: `ok`, `nan`, `inf`, `not_applicable`, or `below_floor` (in tables of others: ours "
        "give what a floor takes as a number). h_l is a state, g_l the reference gradient there (per row, "
        "of the summed loss), a_l the rule's credit, e = softmax − onehot. A row is a sample, or a token "
        "where every token has a label."
    )
    return f"{NOTE}# Quantities\n\n{words}\n\n" + table(("id", "per", "meaning"), rows)


def thresholds() -> str:
    rows = [(f"`{r['name']}`", r["value"], r["source"], r["reason"]) for r in Thresholds.table()]
    words = "All in `judge/thresholds.py`. Change one in a call: `Thresholds(growth=30)`."
    return f"{NOTE}# Thresholds\n\n{words}\n\n" + table(("name", "value", "source", "reason"), rows)


def registry() -> str:
    rule_rows = [
        (
            f"`{resolve_rule(name)}`",
            rules[name].role,
            rules[name].about,
            rules[name].citation,
            rules[name].ours,
        )
        for name in rules
    ]
    for name in modifiers:
        added, written = modifiers[name], f"`R+{resolve_addition(Call(name))}`"
        rule_rows.append((written, "addition", added.about, added.citation, added.ours))
    net_rows = [(f"`{n}`", ", ".join(f"{k}={v}" for k, v in nets[n].defaults.items())) for n in nets]
    data_rows = [(f"`{name}`", datasets[name].about) for name in datasets]
    return (
        f"{NOTE}# Rules, nets and data sets\n\n## Rules\n\n"
        + table(("written in full", "role", "what it does", "source", "ours"), rule_rows)
        + "\n## Nets\n\n"
        + table(("name", "parameters and defaults"), net_rows)
        + "\n## Data sets\n\n"
        + table(("name", "what it is"), data_rows)
    )


def tracks() -> str:
    words = (
        "What `walkback verify` runs. Every bound stands in the track's file and is fixed before a number "
        "is seen. A missed gate makes a track INCONCLUSIVE, a missed identity gate or decision FAIL, as "
        "does a control under which the track still passes. "
        "[Why](../explanation/verification.md), and [how to write one](../how-to/write-a-track.md)."
    )
    return f"{NOTE}# Tracks\n\n{words}\n" + "".join(map(_track, find_tracks()))


def _track(track: Track) -> str:
    checks = [(check.name, check.title, check.says, check.bounds) for check in track.checks]
    controls = [(control.name, control.title, control.breaks) for control in track.controls]
    controls += [(control.name, control.title, control.holds) for control in track.positive]
    levels = f"Quick: {track.level['quick']}. Full: {track.level['full']}."
    return (
        f"\n## Track {track.id}: {track.name}\n\n{track.claim}\n\n{track.words} {levels}\n\n"
        + table(("check", "kind", "number", "bound"), checks)
        + "\n"
        + table(("control", "kind", "the same experiment when"), controls)
    )


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def results(folder: Path = RUNS) -> dict[str, bytes]:
    """File name → bytes of all that docs/results shows, from the runs in a folder and nothing else."""
    store = Store.existing(folder)
    answers = Answers(store, data_of(store, [arm.data for arm in paper.ARMS]))
    tables = {found.name: found for found in paper.tables(answers)}
    drawings = {found.text.name: found for found in paper.figures(answers)}
    return {
        **{name: text.encode() for name, text in results_pages(answers, tables, drawings).items()},
        **{f"tables/{name}.csv": render_csv(found).encode() for name, found in tables.items()},
        **{f"figures/{name}.svg": draw_svg(found) for name, found in drawings.items()},
    }


def results_pages(
    answers: Answers, tables: dict[str, Table], drawings: dict[str, Drawing]
) -> dict[str, str]:
    """The templates in docs/results/pages with tables, figures and sentences filled in."""

    def show_table(name: str, hide: str = "") -> str:
        """The table, what all its rows share, the command that makes it, and its numbers for machines."""
        found, shared = fold(tables[name])
        shown = replace(found, columns=tuple(c for c in found.columns if c.header != hide))
        return f"{render_table(shown)}\n\n{f'All rows: {shared}. ' * bool(shared)}{show_source(name)}"

    def show_source(name: str) -> str:
        return f"`{COMMAND}` writes `report/tables/{name}.md`; [CSV](tables/{name}.csv)."

    def show_drawing(name: str) -> str:
        source = f"`{COMMAND}` writes `report/figures/{name}.svg`, and as PDF and PNG."
        return f"{render_figure(drawings[name].text)}\n\n{source}"

    def show_question(name: str) -> str:
        ours = f" Ours: {studies[name].ours}." if studies[name].ours else ""
        return escape(studies[name].question + ours)

    judged = [answer.artifact for answer in answers.of(five_rule.ARM) if answer.artifact]
    nets = [name for name in drawings if name.startswith("architecture-")]
    context = {
        "table": show_table,
        "question": show_question,
        "source": show_source,
        "figure": show_drawing,
        "escape": escape,
        "command": COMMAND,
        "images": IMAGES if answers.dataset(five_rule.ARM.data).identity == JPEG_FILES else "",
        "store": "docs/results/cifar10",
        "finished": len(tables["provenance"].rows),
        "planned": len(paper.STUDY.runs(answers.data)),
        "paper_runs": published.RUNS,
        "record": "\n\n".join(map(render_table, (recipe_table(judged), identity_table(judged)))),
        "points": points_of(answers),
        "summary": {row["about"]: row["finding"] for row in tables["summary"].rows},
        "findings": {row["about"]: row["finding"] for row in tables["findings"].rows},
        "first": FIRST_FINDINGS,
        "nets": [(name, drawings[name].text.caption.split(",")[0]) for name in nets],
    }
    templates = Environment(loader=FileSystemLoader(PAGES), undefined=StrictUndefined, trim_blocks=True)
    return {
        file.removesuffix(".j2"): RESULTS_NOTE + templates.get_template(file).render(context) + "\n"
        for file in sorted(templates.list_templates())
    }


def fold(found: Table) -> tuple[Table, str]:
    """Without what a reader of a page can do without: the runs behind a row, which its CSV names, and
    seeds and recipe where all rows have the same, which is told once instead."""
    shared = {
        column.header: cells.pop()
        for column in found.columns
        if column.header in ("seeds", "recipe")
        and len(cells := {column.cell(row) for row in found.rows}) == 1
        and len(found.rows) > 1
    }
    named = ("runs", False)  # a column of names: elsewhere runs are counted under that header
    kept = tuple(c for c in found.columns if (c.header, c.numeric) != named and c.header not in shared)
    if "seeds" in shared:
        shared["seeds"] += " seed" + "s" * (shared["seeds"] != "1")
    return replace(found, columns=kept), "; ".join(shared.values())


def draw_svg(drawing: Drawing) -> bytes:
    return save_figure(drawing.text.name, drawing.draw, ["svg"])["svg"]


if __name__ == "__main__":
    for name, text in pages().items():
        write_atomic(FOLDER / name, text.encode())
        sys.stdout.write(f"reference/{name}\n")
    for name, data in results().items():
        write_atomic(RESULTS / name, data)
        sys.stdout.write(f"results/{name}\n")
