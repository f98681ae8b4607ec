"""Verdicts in a terminal: a table that fits 80 columns, and one verdict in full. Colour never alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from walkback.core.verdict import Verdict
from walkback.judge.assemble import Judged
from walkback.report import words
from walkback.report.audit_tables import verdict_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_FOLDS = "rule"  # the column that gives way where the others need the width
_WIDEST = 16  # of a verdict in one line of the table: beyond it rules would lose their names
STYLES = {"pass": "green", "fail": "red", "open": "yellow", "base": "dim"}


def verdict_table(judged: Sequence[Judged]) -> Table:
    """One line per rule, as in the report; long cells wrap rather than vanish."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    source = verdict_rows(judged)
    longest = max((len(cells[0]) for cells in source.cells()), default=0)
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in source.columns:
        # Cells are Text, not markup: a label such as "[red]" is printed, not obeyed.
        shown.add_column(
            Text(column.title.replace(" ", "\n")),
            justify="right" if column.numeric else "left",
            overflow="fold",
            no_wrap=column.header != _FOLDS,
            min_width=min(8, longest) if column.header == _FOLDS else None,
        )
    for item, cells in zip(judged, source.cells(), strict=True):
        plain = [Text(_in_lines(cell)) for cell in cells[1:-1]]
        shown.add_row(Text(cells[0]), *plain, _mark(item.verdict, _WIDEST))
    return shown


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
