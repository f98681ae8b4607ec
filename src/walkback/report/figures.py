"""The figures of a report, for screen and print: layer by layer, epoch by epoch, and the full tier.

The same numbers give the same bytes in every format.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from walkback.judge.assemble import Judged
from walkback.judge.evidence import Evidence
from walkback.judge.thresholds import Thresholds
from walkback.report.audit_tables import full_runs
from walkback.report.pens import Pen, legend_line, pens_of, plain_label, solid_pens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS: Mapping[str, Mapping[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


def draw_figures(judged: Sequence[Judged]) -> dict[str, bytes]:
    """`layer-profile`, `trajectory`, and `full-tier` where it was measured: file name to bytes."""
    drawings = {"layer-profile": _draw_layer_profile, "trajectory": draw_trajectory}
    if any(map(full_runs, judged)):
        drawings["full-tier"] = _draw_full_tier
    return {
        f"{name}.{ending}": data
        for name, draw in drawings.items()
        for ending, data in save_figure(name, partial(draw, judged)).items()
    }


_STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same glyphs on every machine
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


def save_figure(
    name: str, draw: Callable[[], Figure], formats: Iterable[str] = FORMATS
) -> dict[str, bytes]:
    """The drawing in every format, by ending, in walkback's own style."""
    import matplotlib.style

    saved = {}
    # The reader's own matplotlib settings are put aside while drawing and are back afterwards.
    with matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": name}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = draw()
        for ending in formats:
            out = io.BytesIO()
            figure.savefig(out, format=ending, metadata=dict(FORMATS[ending]))
            saved[ending] = out.getvalue()
    return saved


@dataclass(frozen=True)
class Curves:
    """The seeds of one rule over a shared x; NaN wherever there is no number to draw."""

    x: NDArray[np.float64]
    seeds: NDArray[np.float64]
    ended: Sequence[bool]

    @property
    def median(self) -> NDArray[np.float64]:
        """Only where every seed has a number: a median over survivors would flatter the rule."""
        return np.median(self.seeds, axis=0)  # NaN in, NaN out


def _draw_layer_profile(judged: Sequence[Judged]) -> Figure:
    figure, axes = make_panels(1, 3, height=2.75)
    panels = (
        ("State norm ‖h‖", "scale.state_norm@1", True),
        ("Reference norm ‖g‖", "reference.norm@1", True),
        ("Cosine to the reference", "alignment.cosine@1", False),
    )
    pens = solid_pens(judged)
    for axis, (title, quantity, log) in zip(axes, panels, strict=True):
        dress(axis, title, "layer", log)
        for pen, item in zip(pens, judged, strict=True):
            plot_curves(axis, pen, _over_layers(item.runs, quantity, log))
    for pen, item in zip(pens, judged, strict=True):
        plot_open(axes[2], pen, _over_layers(item.runs, "alignment.cosine_compat@1", False))
    mark_zero(axes[2])
    finish(figure, axes, pens, [_sample("exact", True), _sample("clamped", False)])
    return figure


def _draw_full_tier(judged: Sequence[Judged]) -> Figure:
    figure, axes = make_panels(1, 2, height=2.75)
    named = zip(solid_pens(judged), judged, strict=True)
    drawn = [(pen, runs) for pen, item in named if (runs := full_runs(item))]
    dress(axes[0], "Nudge ν (gradient: 1)", "layer", False)
    dress(axes[1], "Perturbation correlation ρ", "layer", False)
    for pen, runs in drawn:
        _shade_random(axes[0], pen, runs)
        plot_curves(axes[0], pen, _over_layers(runs, "nudge.ratio@1", False))
        plot_curves(axes[1], pen, _over_layers(runs, "perturbation.rho@1", False))
        plot_open(axes[1], pen, _over_layers(runs, "perturbation.ceiling@1", False))
    for axis in axes:
        mark_zero(axis)
    finish(figure, axes, [pen for pen, _ in drawn], [_sample("credit", True), _sample("ceiling", False)])
    return figure


def draw_trajectory(judged: Sequence[Judged], pens: Sequence[Pen] = ()) -> Figure:
    figure, axes = make_panels(2, 2, height=4.6)
    growth, reference, quantity = _limits(judged)
    title = "Reference validity r/128" if "validity" in quantity else "Reference ‖g‖, mean-reduced"
    panels = (
        ("Test accuracy (%)", "accuracy.test@1", False),
        ("Largest growth of one block", "scale.growth_max@1", True),
        (title, quantity, True),
        ("Deep cosine (layers ≥ 1)", "alignment.deep_cosine@1", False),
    )
    pens = pens or pens_of(judged)
    for axis, (title, quantity, log) in zip(axes, panels, strict=True):
        dress(axis, title, "epoch", log)
        scale = 100.0 if quantity == "accuracy.test@1" else 1.0
        for pen, item in zip(pens, judged, strict=True):
            plot_curves(axis, pen, over_epochs(item.runs, quantity, log, scale))
    mark_threshold(axes[1], growth, "D1 fires above", above=True)
    mark_threshold(axes[2], reference, "D2 fires below", above=False)
    finish(figure, axes, pens, [])
    return figure


def _limits(judged: Sequence[Judged]) -> tuple[float, float, str]:
    """The thresholds the verdicts used, and which reference quantity D2 looked at."""
    verdict = judged[0].verdict
    quantity = "reference.compat@1" if verdict.logic == "paper" else "reference.validity@1"
    limits = {reason.check: reason.threshold for reason in verdict.reasons}
    default = Thresholds()
    return limits.get("D1", default.growth), limits.get("D2", default.validity), quantity


def _over_layers(runs: Sequence[Evidence], quantity: str, log: bool) -> Curves:
    layers = sorted({layer for run in runs for layer in run.measurements.layers(run.epoch)})
    table = [[drawable(run.number(quantity, layer), log) for layer in layers] for run in runs]
    return _curves(layers, table, [False] * len(runs))


def over_epochs(runs: Sequence[Evidence], quantity: str, log: bool, scale: float) -> Curves:
    epochs = sorted({epoch for run in runs for epoch in run.measurements.epochs})
    table = [_by_epoch(run, quantity, epochs, log, scale) for run in runs]
    return _curves(epochs, table, [run.status.get("state") == "diverged" for run in runs])


def _by_epoch(run: Evidence, quantity: str, epochs: Sequence[int], log: bool, scale: float) -> list[float]:
    found = {r.epoch: r.number for r in run.measurements if r.quantity == quantity and r.layer is None}
    return [scale * drawable(found.get(epoch), log) for epoch in epochs]


def _curves(x: Sequence[int], table: list[list[float]], ended: Sequence[bool]) -> Curves:
    seeds = np.array(table, dtype=np.float64).reshape(len(table), len(x))
    return Curves(np.array(x, dtype=np.float64), seeds, ended)


def drawable(value: float | None, log: bool) -> float:
    """The value, or NaN for a gap: a missing number is not drawn, least of all as zero."""
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return math.nan
    return value


def make_panels(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    # 7.1 inches: the text width of an A4 page with narrow margins, so 8 pt stays 8 pt in print.
    figure = Figure(figsize=(7.1, height), layout="constrained", facecolor="white")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def dress(axis: Axes, title: str, x_name: str, log: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_title(title)
    axis.set_xlabel(x_name)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axis.set_axisbelow(True)
    if log:
        axis.set_yscale("log")
        axis.minorticks_off()


def plot_curves(axis: Axes, pen: Pen, curves: Curves) -> None:
    """Thin lines for seeds, a bold one for their median."""
    if len(curves.seeds) > 1:
        for values in curves.seeds:
            axis.plot(curves.x, values, color=pen.colour, linewidth=0.6, alpha=0.45)
    axis.plot(
        curves.x,
        curves.median,
        color=pen.colour,
        linestyle=pen.dashes,
        linewidth=pen.width,
        marker=pen.marker,
        markersize=4,
        markevery=max(1, len(curves.x) // 8),
        zorder=3,
    )
    for values, ended in zip(curves.seeds, curves.ended, strict=True):
        if ended:
            _mark_end(axis, pen, curves.x, values)


def _mark_end(axis: Axes, pen: Pen, x: NDArray[np.float64], values: NDArray[np.float64]) -> None:
    known = np.flatnonzero(np.isfinite(values))
    if len(known):
        last = known[-1]
        axis.plot(x[last], values[last], marker="x", markersize=8, markeredgewidth=2, color=pen.colour)


def plot_open(axis: Axes, pen: Pen, curves: Curves) -> None:
    """Medians of what a quantity is read beside, open and dashed."""
    axis.plot(
        curves.x,
        curves.median,
        color=pen.colour,
        linewidth=1.0,
        linestyle=(0, (3, 2)),
        marker=pen.marker,
        markersize=6.5,
        markerfacecolor="white",
        zorder=2.5,  # below the filled ones: where both agree, a ring around a dot
    )


def _shade_random(axis: Axes, pen: Pen, runs: Sequence[Evidence]) -> None:
    """Where ν of random directions lies: what counts as zero."""
    mean, sd = (_over_layers(runs, f"nudge.band_{name}@1", False) for name in ("mean", "sd"))
    low, high = mean.median - sd.median, mean.median + sd.median
    axis.fill_between(mean.x, low, high, color=pen.colour, alpha=0.15, linewidth=0)


def mark_zero(axis: Axes) -> None:
    axis.axhline(0, color="#999999", linewidth=0.7, zorder=0.5)


def mark_threshold(axis: Axes, value: float, label: str, *, above: bool, end: str = "left") -> None:
    """A grey line where a detector fires, named at one of its ends."""
    if not has_data(axis):
        return
    low, high = axis.get_ylim()
    low, high = min(low, value / 6), max(high, value * 6)  # room for its name on either side
    room = (high / low) ** 0.04  # and for a marker at the edge: margins were made for the curves alone
    axis.set_ylim(low / room, high * room)
    axis.axhline(value, color="#666666", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    axis.annotate(
        label,
        (0 if end == "left" else 1, value),
        (3 if end == "left" else -3, 2 if above else -2),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha=end,  # every run starts on the quiet side, so the left corner is mostly free
        va="bottom" if above else "top",
        fontsize=7,
        color="#444444",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        zorder=1.5,  # over the grid and under the curves: a name must hide no data
    )


def finish(figure: Figure, axes: Sequence[Axes], pens: Sequence[Pen], extra: list[Line2D]) -> None:
    """One legend above all panels, and a word in panels that have nothing to show."""
    for axis in axes:
        if not has_data(axis):
            axis.set(xticks=[], yticks=[])
            axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color="#666666")
    if extra:
        axes[-1].legend(handles=extra, loc="best", fontsize=7, handlelength=2.6)
    handles = [legend_line(pen) for pen in pens]
    columns = _legend_columns(pens)
    figure.set_figheight(figure.get_figheight() + 0.17 * (math.ceil(len(pens) / columns) - 1))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=columns,
        handlelength=3.2,
        columnspacing=1.6,
    )


def _legend_columns(pens: Sequence[Pen]) -> int:
    """As many as fit the width: about 110 characters, ten of them taken by a line's sample."""
    longest = max(len(plain_label(pen.name)) for pen in pens)
    return min(len(pens), max(1, 110 // (longest + 10)))


def has_data(axis: Axes) -> bool:
    """Whether anything measured is drawn; lines that span the panel do not count."""
    own = (line for line in axis.get_lines() if line.get_transform() == axis.transData)
    return any(np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any() for line in own)


def _sample(label: str, filled: bool) -> Line2D:
    from matplotlib.lines import Line2D

    face = "#555555" if filled else "white"
    dashes = "-" if filled else (0, (3, 2))
    return Line2D(
        [],
        [],
        color="#555555",
        linestyle=dashes,
        linewidth=1.2,
        marker="o",
        markersize=4.5,
        markerfacecolor=face,
        label=label,
    )
