"""How each rule is drawn, wherever it appears.

Rules differ by colour (Okabe and Ito's, safe for colour-blind readers), marker and line style, so that
grey print is enough. Baselines are dark crosses on dotted lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from walkback.judge.assemble import Judged
from walkback.judge.naming import names_of

if TYPE_CHECKING:
    from matplotlib.lines import Line2D


@dataclass(frozen=True)
class Pen:
    """How one rule is drawn wherever it appears."""

    name: str
    colour: str
    marker: str
    dashes: Any
    width: float = 1.6


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("s", "o", "^", "D", "v", "P", "X")  # seven to six colours: pairs repeat after 42 rules
_DASHES = ("-", (0, (5, 1.2)), (0, (6, 1.2, 1.2, 1.2)), (0, (3, 1)), (0, (8, 2)))
_DARK, _CROSSES, _DOTTED = ("#000000", "#555555"), ("x", "+", "1", "2", "3"), (0, (1, 1.3))
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
USUAL = {"bp": 0, "dfa": 1, "fa": 2}  # pens that are these rules' own, in every report and figure


def rule_pen(name: str, place: int) -> Pen:
    colour, marker = COLOURS[place % len(COLOURS)], _MARKERS[place % len(_MARKERS)]
    return Pen(name, colour, marker, _DASHES[place % len(_DASHES)])


def baseline_pen(name: str, place: int) -> Pen:
    shade, cross = divmod(place % (len(_DARK) * len(_CROSSES)), len(_CROSSES))
    return Pen(name, _DARK[shade], _CROSSES[cross], _DOTTED, 1.1)


def pens_of(judged: Sequence[Judged]) -> list[Pen]:
    baselines, others = count(), count(len(USUAL))
    return [
        baseline_pen(name, next(baselines))
        if item.role == "baseline"
        else rule_pen(name, USUAL[name] if name in USUAL else next(others))
        for name, item in zip(names_of(judged), judged, strict=True)
    ]


def solid_pens(judged: Sequence[Judged]) -> list[Pen]:
    """Where dashes mean "clamped" or "ceiling", rules are told apart by colour and marker alone."""
    return [pen if pen.dashes == _DOTTED else replace(pen, dashes="-") for pen in pens_of(judged)]


def legend_line(pen: Pen) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        color=pen.colour,
        marker=pen.marker,
        linestyle=pen.dashes,
        linewidth=pen.width,
        markersize=4.5,
        label=plain_label(pen.name),
    )


def plain_label(name: str) -> str:
    """Shown as written: no `$` starts maths, no leading underscore hides the entry, and a character that no
    SVG can hold is replaced."""
    short = name if len(name) <= 48 else f"{name[:47]}…"
    safe = _NOT_IN_XML.sub("\ufffd", short).replace("$", r"\$")
    return f" {safe}" if safe.startswith("_") else safe
