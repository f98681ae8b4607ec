"""Verdicts in a terminal: a table that fits 80 columns, and one verdict in full. Colour never alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from walkback.core.verdict import Verdict
from walkback.judge.assemble import Judged
from walkback.report import words
from walkback.report.audit_tables import verdict_rows

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

WIDTH = 80
_FOLDS = "rule"  # the column that gives way where the others need the width
_LONGEST_NAME = 16  # of a rule with its settings; where one is longer, settings are numbered and told below
_WIDEST = (16, 13)  # of a verdict in one line of the table, where there is room and where there is not
STYLES = {"pass": "green", "fail": "red", "open": "yellow", "base": "dim"}


def verdict_table(judged: Sequence[Judged]) -> Group:
    """One line per rule, as in the report; long cells wrap rather than vanish. Under it the settings that
    tell rules of one name apart, where they are too long to stand in it."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    source = verdict_rows(judged)
    names, settings = _numbered([cells[0] for cells in source.cells()], [item.label for item in judged])
    rows = [[_in_lines(cell) for cell in cells[1:-1]] for cells in source.cells()]
    titles = [column.title.replace(" ", "\n") for column in source.columns]
    least = min(8, max(map(len, names), default=0))
    others = [_widest(column) for column in zip(titles[1:-1], *rows, strict=True)]
    badges = [len(cells[-1]) for cells in source.cells() if len(cells[-1]) <= _WIDEST[0]]
    between = len("  ") * len(others) + len("  ✗ ")
    widest = _WIDEST[least + sum(others) + between + max(badges, default=0) > WIDTH]
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column, title in zip(source.columns, titles, strict=True):
        # Cells are Text, not markup: a label such as "[red]" is printed, not obeyed.
        shown.add_column(
            Text(title),
            justify="right" if column.numeric else "left",
            overflow="fold",
            no_wrap=column.header != _FOLDS,
            min_width=least if column.header == _FOLDS else None,
        )
    for item, name, cells in zip(judged, names, rows, strict=True):
        shown.add_row(Text(name), *map(Text, cells), _mark(item.verdict, widest))
    return Group(shown, *(Text(f"#{place} {told}", style="dim") for told, place in settings.items()))


def _numbered(names: Sequence[str], labels: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """`dfa #2` for `dfa (epochs=30, schedule=cosine)`, and what each number stands for."""
    if max(map(len, names), default=0) <= _LONGEST_NAME:
        return list(names), {}
    told = [name.removeprefix(label).strip() for name, label in zip(names, labels, strict=True)]
    places = {setting: place for place, setting in enumerate(dict.fromkeys(filter(None, told)), start=1)}
    shown = [
        f"{label} #{places[setting]}" if setting else label
        for label, setting in zip(labels, told, strict=True)
    ]
    return shown, places


def _widest(cells: Sequence[str]) -> int:
    return max(len(line) for cell in cells for line in cell.splitlines() or [""])


def _in_lines(cell: str) -> str:
    """An interval or a count under its number, in lines as short as they can be."""
    number, bracket, rest = cell.partition(" (")
    return number.replace(" [", "\n[") + bracket.replace(" ", "\n") + rest.replace(" ", "\n")


def print_verdict(verdict: Verdict, console: Console) -> None:
    """The verdict, each detector's sentence, the walk-back chain and the notes, wrapped to the console."""
    from rich.text import Text

    console.print(_mark(verdict) + Text(f"  {words.tone_of(verdict).words}.", style="bold"))
    if not words.is_baseline(verdict):
        console.print(Text(f"Claim: {verdict.claim}. Logic: {verdict.logic}.", style="dim"))
        console.print(_detectors(verdict))
        console.print()
        console.print(_chain(verdict))
        console.print()
    for note in verdict.notes:
        console.print(Text(note, style="dim"))


def _mark(verdict: Verdict, widest: int | None = None) -> Text:
    """The outcome with its sign; one that is wider than `widest` has its words under one another."""
    from rich.text import Text

    tone = words.tone_of(verdict)
    badge = "baseline" if words.is_baseline(verdict) else verdict.verdict
    if widest is not None and len(badge) > widest:
        badge = badge.replace("(", " (").replace(" ", "\n  ")
    return Text(f"{tone.sign} {badge}", style=STYLES[tone.name])


def _detectors(verdict: Verdict) -> Table:
    grid = _grid()
    for reason in verdict.reasons:
        style = {True: "red", False: "green", None: "yellow"}[reason.fires]
        _add(grid, reason.check, words.fires(reason), style, reason.sentence)
    return grid


def _chain(verdict: Verdict) -> Table:
    grid = _grid()
    for step in verdict.chain:
        style = {True: "green", False: "red", None: "yellow"}[step["survives"]]
        _add(
            grid, f"{step['step']}.", words.survives(step), style, f"{step['question']} {step['sentence']}"
        )
    return grid


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1, 0, 1))
    grid.add_column(no_wrap=True, min_width=2)
    grid.add_column(no_wrap=True, min_width=13)
    grid.add_column(ratio=1)
    return grid


def _add(grid: Table, label: str, word: str, style: str, sentence: str) -> None:
    from rich.text import Text

    grid.add_row(Text(label, style="bold"), Text(word, style=style), Text(sentence))
