"""The figures of a metric audit: correlations with their intervals, and what the controls leave."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from walkback.metrics.admissible import admit
from walkback.metrics.crossfit import normal_scores
from walkback.report import words
from walkback.report.figures import make_panels, save_figure
from walkback.report.metric_content import MOST_POINTS, Effect, MetricReport, MetricSection
from walkback.report.metric_tables import show_p
from walkback.report.pens import COLOURS, plain_label

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
_BLUE, _ORANGE, _GREY = *COLOURS[:2], "#555555"


def draw_metric_figures(report: MetricReport, frame: pd.DataFrame) -> dict[str, bytes]:
    """Every figure that the report names: file name to bytes."""
    drawings = {figure.name: partial(_draw_overview, report.sections) for figure in report.figures}
    for section in report.sections:
        if section.figures:
            drawings[f"effects-{section.slug}"] = partial(_draw_effects, section)
            drawings[f"residuals-{section.slug}"] = partial(_draw_residuals, section, frame)
    return {
        f"{name}.{ending}": data
        for name, draw in drawings.items()
        for ending, data in save_figure(name, draw).items()
    }


def _draw_overview(sections: Sequence[MetricSection]) -> Figure:
    figure, (axis,) = make_panels(1, 1, height=0.75 + 0.36 * len(sections))
    _dress(axis, [section.name for section in sections], "rank correlation with the target")
    effects = [effect for section in sections for effect in section.effects[:2]]
    _band(axis, next((section.delta for section in sections if section.delta), None), effects)
    for row, section in enumerate(sections):
        for effect, shift in zip(section.effects[:2], (-0.14, 0.14), strict=False):
            _point(axis, row + shift, effect)
        _remark(axis, row, section.verdict.split(" (")[0])
    return figure


def _draw_effects(section: MetricSection) -> Figure:
    effects = section.effects
    figure, (axis,) = make_panels(1, 1, height=0.75 + 0.27 * len(effects))
    _dress(axis, [effect.name for effect in effects], f"correlation with {section.claim.target}")
    _band(axis, section.delta, effects)
    for row, effect in enumerate(effects):
        _point(axis, row, effect)
        p = "" if effect.p is None else f"   p {_relation(show_p(effect.p))}"
        _remark(axis, row, f"{words.cosine(effect.r)}{p}")
    if len(effects) > 2:
        axis.axhline(1.5, color="#bbbbbb", linewidth=0.6)  # ranks above, learners below
    return figure


def _draw_residuals(section: MetricSection, frame: pd.DataFrame) -> Figure:
    claim = section.claim
    rows = admit(frame, claim).frame
    before = normal_scores(rows[[claim.metric, claim.target]].to_numpy(float))
    after = np.asarray(section.residuals, dtype=float)
    figure, axes = make_panels(1, 2, height=3.0)
    reach = 1.06 * max(float(np.abs(before).max()), float(np.abs(after).max()))
    titles = ("Before the controls", f"What {section.best} leaves, out of fold")
    kinds = ("normal scores", "residuals")
    for axis, points, title, kind in zip(axes, (before, after), titles, kinds, strict=True):
        axis.set_title(title)
        axis.set_xlabel(f"{_label(claim.metric)}, {kind}")
        axis.set_ylabel(f"{_label(claim.target)}, {kind}")
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach))
        axis.set_axisbelow(True)
        axis.axhline(0, color="#999999", linewidth=0.7, zorder=0.5)
        _scatter(axis, points)
    return figure


def _scatter(axis: Axes, points: Array) -> None:
    """Evenly chosen rows as dots; means of tenths, in the order of the metric, in black."""
    drawn = points[np.linspace(0, len(points) - 1, min(len(points), MOST_POINTS)).astype(int)]
    axis.plot(*drawn.T, "o", color=_BLUE, markersize=2.3, markeredgewidth=0, alpha=0.5)
    parts = np.array_split(points[np.argsort(points[:, 0], kind="stable")], min(10, len(points)))
    means = np.array([part.mean(axis=0) for part in parts])
    axis.plot(*means.T, color="white", linewidth=3.2, zorder=3)
    axis.plot(*means.T, color="black", linewidth=1.4, marker="s", markersize=3.2, zorder=4)


def _dress(axis: Axes, names: Sequence[str], x_name: str) -> None:
    axis.set_yticks(range(len(names)), [_label(name) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlabel(_label(x_name))
    axis.grid(False, axis="y")
    axis.grid(True, axis="x")
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)


def _band(axis: Axes, delta: float | None, effects: Sequence[Effect]) -> None:
    """Room for all intervals, zero in the middle, and ±δ shaded between dashed lines."""
    ends = [abs(end) for effect in effects for end in (effect.r, *(effect.interval or ()))]
    reach = min(1.02, 1.12 * max([*ends, 1.3 * (delta or 0.2)]))
    axis.set_xlim(-reach, reach)
    axis.axvline(0, color="#999999", linewidth=0.8, zorder=0.6)
    if delta is not None:
        axis.axvspan(-delta, delta, color="#efefef", linewidth=0, zorder=0)
        for edge in (-delta, delta):
            axis.axvline(edge, color="#888888", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.7)
        axis.annotate(
            f"±δ = {delta:g}",
            (delta, 1),
            (2, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=7,
            color="#444444",
        )


def _point(axis: Axes, row: float, effect: Effect) -> None:
    """Raw is an open diamond, partial a square, a learner a circle: filled if it counts."""
    marker, colour = {"raw": ("D", _GREY), "partial": ("s", _ORANGE)}.get(effect.name, ("o", _BLUE))
    filled = effect.counted and effect.name != "raw"
    if effect.interval is not None:
        axis.plot(effect.interval, (row, row), color=colour, linewidth=1.5 if filled else 1.0, zorder=2)
    axis.plot(
        effect.r,
        row,
        marker=marker,
        markersize=5.5,
        color=colour,
        markerfacecolor=colour if filled else "white",
        zorder=3,
    )


def _remark(axis: Axes, row: float, text: str) -> None:
    """Words at the right of a row, outside of the panel."""
    axis.annotate(
        text,
        (1, row),
        (6, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        annotation_clip=False,
    )


def _relation(shown: str) -> str:
    return shown if shown.startswith("<") else f"= {shown}"


def _label(name: str) -> str:
    return plain_label(" ".join(name.split()))
