"""A table: raw values once, and how each readable column shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from walkback.report import words

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A readable column: the raw fields it is made of, and the function that shows them together."""

    header: str
    fields: tuple[str, ...]
    show: Callable[..., str] = words.text
    unit: str = ""
    numeric: bool = True

    @property
    def title(self) -> str:
        return f"{self.header} ({self.unit})" if self.unit else self.header

    def cell(self, row: Row) -> str:
        return self.show(*(row[name] for name in self.fields))


@dataclass(frozen=True)
class Table:
    """Raw rows by field name. `fields` orders the machine-readable columns, `columns` the readable."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    fields: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def titles(self) -> list[str]:
        return [column.title for column in self.columns]

    def cells(self) -> list[list[str]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows]
