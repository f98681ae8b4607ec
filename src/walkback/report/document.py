"""What a report is made of, whatever it is about and whatever it is rendered to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from walkback.report import words
from walkback.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureText:
    """A figure's file name, its caption, and what it shows for those who cannot see it."""

    name: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Section:
    """All about one rule."""

    name: str
    about: str
    claim: str
    badge: str
    tone: words.Tone
    why: str
    steps: Sequence[Mapping[str, Any]]
    diagnostics: Table
    credit: Table
    direction: str
    stem_blocks: Table | None
    layers: Table
    full: Table | None
    notes: Sequence[str]


@dataclass(frozen=True)
class Drawing:
    """A figure that is still to be drawn, and what is said about it."""

    text: FigureText
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Chapter:
    """What a study asks, which part of it is walkback's own, and the tables and figures it is read from."""

    question: str
    ours: str
    tables: Sequence[Table]
    drawings: Sequence[Drawing] = ()


@dataclass(frozen=True)
class Report:
    title: str
    summary: str
    study: Chapter | None
    sections: Sequence[Section]
    figures: Sequence[FigureText]
    verdicts: Table
    layers: Table
    full: Table | None
    trajectory: Table
    thresholds: Table
    recipe: Table
    identity: Table
    environment: Table
    notes: Sequence[str]
