"""The figures of the FA paper, redrawn from stored measurements, with its own numbers beside them.

Filled marks are seeds, a bar their mean, on a logarithmic axis their median; an open diamond is the
paper's number, with its spread over seeds where it gives one. What was not run says so in its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from walkback.judge.thresholds import Thresholds
from walkback.report import words
from walkback.report.answer import (
    ABSENT,
    ACCURACY,
    EXACT,
    GAMMA,
    GROWTH,
    NOT_RUN,
    REFERENCE,
    STATE,
    VALIDITY,
    Answer,
    Measure,
)
from walkback.report.document import FigureText
from walkback.report.figures import (
    draw_trajectory,
    drawable,
    dress,
    finish,
    has_data,
    make_panels,
    mark_threshold,
    over_epochs,
    plot_curves,
)
from walkback.report.pens import COLOURS, USUAL, Pen, baseline_pen, legend_line, rule_pen
from walkback.report.published import published
from walkback.report.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_INK, _GREY = "#222222", "#666666"
_LIMIT: dict[str, Any] = {"color": _GREY, "linewidth": 0.9, "linestyle": (0, (3, 2)), "zorder": 1}
_FROZEN: dict[str, Any] = {"color": "black", "linewidth": 1.1, "linestyle": (0, (1, 1.3)), "zorder": 1}
_DIAMOND: dict[str, Any] = {
    "marker": "D",
    "markersize": 4.5,
    "markerfacecolor": "white",
    "color": _INK,
    "elinewidth": 0.9,
    "linestyle": "",
    "zorder": 4,
}
_LOG = (STATE, REFERENCE, GROWTH, VALIDITY)

# One look per rule in all figures: colour, marker and line, so that grey print is enough.
_PENS = {
    **{name: rule_pen(name, place) for name, place in USUAL.items()},
    **{name: baseline_pen(name, place) for place, name in enumerate(("frozen", "shallow"))},
    "dfa, public code": Pen("dfa, public code", COLOURS[3], "^", (0, (3, 1))),
}

_WEIGHTS = (
    "Filled marks: seeds; lines: their mean, on the logarithmic axes their median; open diamonds: the "
    "paper's numbers, of accuracies and at λ = 1e-4 those of its code's notes; the cosine is theirs as a "
    "library reads it. Where ‖h_L‖ is larger under the stronger penalty, it is the stem's, which no "
    "penalty holds."
)
_TEXTS = {
    "figure-1": FigureText(
        "figure-1",
        "Four panels with one row per rule: accuracy, mean cosine, size of the last state, size of the "
        "reference gradient; measured seeds as filled marks, the paper's numbers as open diamonds.",
        "Figure 1. The audit of whole rules at the last epoch. Under each rule: its verdict, logic paper. "
        "Filled marks: seeds; bar: their mean, on the logarithmic axes their median; open diamond: the "
        "paper's number, with its deviation over seeds, a gradient as it would be over our 512 rows. "
        "Dotted: our frozen blocks of the rule's own recipe; dashed: the threshold of D2, taken "
        "literally.",
    ),
    "figure-2": FigureText(
        "figure-2",
        "Two panels over epochs and two panels with one row per net: growth of one block, and the "
        "validity of the reference.",
        "Figure 2. Above: when the detectors fire, epoch by epoch (100 epochs of a cosine; bold: median "
        "over seeds, thin: single seeds). Below: the same two values at the tenth of ten epochs at a "
        "constant rate, net by net; nets with a norm before the head come first. Dashed: the thresholds.",
    ),
    "figure-3": FigureText(
        "figure-3",
        "Four panels over the weight of the penalty: accuracy, size of the last state, validity of the "
        "reference, deep cosine; DFA and backprop under the same penalty.",
        f"Figure 3. The penalty on every branch, summed over features, 30 epochs. {_WEIGHTS} Dotted: "
        "frozen blocks; dashed: D2 fires below it. Shaded: mean ± two deviations of the deep cosine under "
        "fresh feedback.",
    ),
    "public-code": FigureText(
        "public-code",
        "Four panels over the weight of the penalty: accuracy, size of the last state, validity of the "
        "reference, deep cosine; DFA as we read the paper and as its public code has it.",
        "DFA with its penalty as we read the paper, and with the block, the index and the length of each "
        f"sample's credit that its public code has, 30 epochs. {_WEIGHTS} Dashed: D2 fires below it. "
        "Shaded: mean ± two deviations of the deep cosine under fresh feedback, ours.",
    ),
    "figure-4": FigureText(
        "figure-4",
        "Four panels, one per reading of a detector: the share of epochs at which it fires, over its "
        "threshold, for backprop and for DFA.",
        "Figure 4 (ours: that part of the paper is lost). How often each detector fires over seeds and "
        "epochs as its threshold moves: on backprop every firing is false. Dashed: the default.",
    ),
    "figure-5": FigureText(
        "figure-5",
        "A grid: rules down, bodies of evidence across; each cell says whether the rule is trusted.",
        "Figure 5 (ours: that part of the paper is lost). What each body of evidence decides about each "
        "rule. A tick trusts it, a cross walks it back, a question mark leaves it open.",
    ),
}


def figure_text(name: str) -> FigureText:
    return _TEXTS[name]


def net_figure_text(net: str, rows: Sequence[Answer]) -> FigureText:
    name = f"architecture-{'-'.join(net.lower().split())}"
    alt = "Four panels over epochs: test accuracy, largest block growth, reference validity, deep cosine."
    several = any(len(row.runs) > 1 for row in rows)
    lines = "Bold: median over seeds; thin: single seeds." if several else "One seed at the most."
    caption = f"{net}, epoch by epoch, at a {rows[0].spec['schedule']} rate. {lines}"
    return FigureText(name, alt, caption)


def draw_five_rules(rows: Sequence[Answer]) -> Figure:
    figure, axes = make_panels(1, 4, height=0.9 + 0.36 * len(rows))
    measures = (ACCURACY, GAMMA, STATE, REFERENCE)
    titles = ("Accuracy", "Γ, clamped", "‖$h_L$‖", "‖$g_L$‖, mean-reduced")
    names = [f"{row.name}\n{_verdict(row)}" for row in rows]
    for axis, measure, title in zip(axes, measures, titles, strict=True):
        _dress_rows(axis, title, names, log=measure in _LOG)
        for place, row in enumerate(rows):
            _dots(axis, place - 0.08, row, measure)
            if number := published(row.name.split(",")[0], measure.paper):
                spread = None if number.sd is None else [number.sd]
                value = number.over(row.batch) if row.runs else number.value
                axis.errorbar([value], [place + 0.2], xerr=spread, **_DIAMOND)
        axis.tick_params(labelleft=axis is axes[0])
    for place, row in enumerate(rows):
        if (beside := _baseline(row)) is not None:
            axes[0].plot([beside] * 2, [place - 0.4, place + 0.4], **_FROZEN)
    _mark_limit(axes[3], Thresholds().compat, "D2 fires left of it")
    _legend(figure, [_key("o", _INK, "measured"), _key("D", "white", "paper")])
    return figure


def _baseline(row: Answer) -> float | None:
    """The mean accuracy of the frozen blocks that a rule was judged against; None for a baseline."""
    if row.case is None or row.runs[0].role == "baseline":
        return None
    return words.mean_of([None if base is None else base.accuracy for base in row.case.baselines])


def draw_time_and_nets(time: Sequence[Answer], nets: Mapping[str, Sequence[Answer]]) -> Figure:
    figure, axes = make_panels(2, 2, height=5.6)
    pens = [_named(_PENS[row.name], row) for row in time]
    quantities = ("scale.growth_max@1", "reference.validity@1")
    titles = ("Largest growth of one block", "Reference validity r/128")
    for axis, quantity, title in zip(axes, quantities, titles, strict=False):
        dress(axis, title, "epoch", True)
        for pen, row in zip(pens, time, strict=True):
            if row.runs:
                plot_curves(axis, pen, over_epochs(row.runs, quantity, True, 1.0))
    limits = Thresholds()
    mark_threshold(axes[0], limits.growth, "D1 fires above", above=True, end="right")
    mark_threshold(axes[1], limits.validity, "D2 fires below", above=False, end="right")
    names = [net.replace(" without ", "\nwithout ") for net in nets]
    for axis, measure, limit, title, fires in (
        (axes[2], GROWTH, limits.growth, "Largest growth after ten epochs", "D1 fires right of it"),
        (axes[3], VALIDITY, limits.validity, "r/128 after ten epochs", "D2 fires left of it"),
    ):
        _dress_rows(axis, title, names, log=True)
        for place, rows in enumerate(nets.values()):
            for offset, row in zip((-0.17, 0.17), rows, strict=True):
                _dots(axis, place + offset, row, measure, f"{row.name}: ")
        _mark_limit(axis, limit, fires)
        axis.tick_params(labelleft=axis is axes[2])
    finish(figure, axes[:2], pens, [])
    return figure


def draw_penalty(
    rows: Mapping[str, Sequence[Answer]], weights: Sequence[str], frozen: Answer | None = None
) -> Figure:
    """`rows` have an answer for each weight; those of DFA say which of the paper's rows stands there."""
    figure, axes = make_panels(2, 2, height=4.8)
    titles = ("Accuracy", "‖$h_L$‖", "Reference validity r/128", "Deep cosine, exact")
    for axis, measure, title in zip(axes, (ACCURACY, STATE, VALIDITY, EXACT), titles, strict=True):
        _dress_weights(axis, title, _weight_names(rows, weights), log=measure in _LOG)
        for shift, (rule, answers) in zip((-0.08, 0.08), rows.items(), strict=True):
            _plot_weights(axis, answers, measure, _PENS[rule], shift)
    for axis, quantity in zip(axes, ("accuracy", "state norm", "", "deep cosine"), strict=True):
        # Without a penalty the paper's own are longer: only the notes of its code have the same length.
        names = ["dfa, 30 epochs", *(answer.name for answer in rows["dfa"][1:])]
        for place, name in enumerate(names):
            if number := published(name, quantity):
                spread = None if number.sd is None else [number.sd]
                axis.errorbar([place + 0.25], [number.value], yerr=spread, **_DIAMOND)
    mark_threshold(axes[2], Thresholds().validity, "D2 fires below", above=False, end="right")
    _shade_null(axes[3], rows["dfa"])
    axes[3].axhline(0, color="#999999", linewidth=0.7, zorder=0.5)
    if frozen is not None and frozen.runs:
        axes[0].axhline(_middle(frozen, ACCURACY), **_FROZEN)
    for axis in axes:
        if not has_data(axis):
            axis.set_yticks([])
    named = (*rows, "frozen") if frozen is not None else rows
    _legend(figure, [*(_line_key(_PENS[rule]) for rule in named), _key("D", "white", "paper, DFA")])
    return figure


Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]  # detector → group → (threshold, share)


def draw_thresholds(names: Mapping[str, str], groups: Mapping[str, str], curves: Curves) -> Figure:
    figure, axes = make_panels(1, len(names), height=2.75)
    others = Pen("", COLOURS[3], "v", (0, (2, 1)))
    pens = dict(zip(groups, (_PENS["bp"], _PENS["dfa"], others), strict=True))
    for axis, (name, title) in zip(axes, names.items(), strict=True):
        dress(axis, title.replace("g_L", "$g_L$"), "threshold", False)
        axis.set_xscale("log")
        axis.minorticks_off()
        axis.set_ylim(-4, 104)
        axis.set_ylabel("epochs that fire (%)" if axis is axes[0] else "")
        for group, points in curves[name].items():
            pen = pens[group]
            x, y = [value for value, _ in points], [100 * share for _, share in points]
            axis.plot(x, y, color=pen.colour, marker=pen.marker, linestyle=pen.dashes, markersize=4)
        axis.axvline(getattr(Thresholds(), name), **_LIMIT)
        if not curves[name]:
            _say_not_run(axis)
    drawn = {group for points in curves.values() for group in points}
    titles = {g: title if g in drawn else f"{title} ({NOT_RUN})" for g, title in groups.items()}
    _legend(figure, [_line_key(pens[group], title) for group, title in titles.items()])
    return figure


_SIGNS = {"trustworthy": "✓", "walked back": "✗", "not known": "?", **{gap: gap for gap in ABSENT}}
_SHADES = {
    "trustworthy": "#e3f2fa",
    "walked back": "#f2b58a",
    "not known": "#d9d9d9",
    **dict.fromkeys(ABSENT, "white"),
}


def draw_decisions(table: Table, evidence: Sequence[str]) -> Figure:
    figure, (axis,) = make_panels(1, 1, height=1.0 + 0.3 * len(table.rows))
    axis.grid(False)
    axis.set(xlim=(0, len(evidence)), ylim=(len(table.rows), 0))
    for place, row in enumerate(table.rows):
        for column, name in enumerate(evidence):
            _cell(axis, column, place, row[name])
    axis.set_xticks([column + 0.5 for column in range(len(evidence))], evidence)
    axis.set_yticks([place + 0.5 for place in range(len(table.rows))], [row["rule"] for row in table.rows])
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)
    return figure


def draw_net(rows: Sequence[Answer]) -> Figure:
    """The trajectory of a net's rules; an empty plate that says so where none was run."""
    judged = [row.artifact for row in rows if row.artifact is not None]
    if judged:
        return draw_trajectory(judged, [_PENS[item.label] for item in judged])
    figure, (axis,) = make_panels(1, 1, height=1.2)
    _say_not_run(axis)
    return figure


def _named(pen: Pen, row: Answer) -> Pen:
    return pen if row.runs else replace(pen, name=f"{pen.name} ({row.gap})")


def _verdict(row: Answer) -> str:
    if row.paper is None:
        return row.gap
    return "baseline" if row.paper.role == "baseline" else row.paper.verdict.verdict


def _values(row: Answer, measure: Measure) -> list[float]:
    """One per seed; NaN where there is no number to draw."""
    return [drawable(measure.read(run), measure in _LOG) for run in row.runs]


def _middle(row: Answer, measure: Measure) -> float:
    """The mean over seeds, on a logarithmic axis the median, for a mean of powers of ten is the largest;
    NaN, which draws nothing, if there is none or a seed has no number."""
    middle = words.median_of if measure in _LOG else words.mean_of
    values = _values(row, measure)
    return math.nan if any(map(math.isnan, values)) else drawable(middle(values), False)


def _dress_rows(axis: Axes, title: str, names: Sequence[str], *, log: bool) -> None:
    """One row per name, the first on top."""
    axis.set_title(title)
    axis.set_axisbelow(True)
    if log:
        axis.set_xscale("log")
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", length=0)
    axis.minorticks_off()


def _mark_limit(axis: Axes, value: float, label: str) -> None:
    """A grey upright line where a detector fires, named along its foot, where rows that break are rare."""
    axis.axvline(value, **_LIMIT)
    where = axis.get_xaxis_transform()
    style: dict[str, Any] = {"rotation": 90, "ha": "right", "va": "bottom", "fontsize": 6, "color": _GREY}
    axis.text(value, 0.02, label, transform=where, zorder=1.5, **style)


def _dots(axis: Axes, place: float, row: Answer, measure: Measure, whose: str = "") -> None:
    """Seeds as filled marks and a bar at their middle, or in words why there is nothing to see."""
    pen, values = _PENS.get(row.name, Pen("", _INK, "o", "-")), _values(row, measure)
    if all(map(math.isnan, values)):
        gap, where = row.gap or "no number", axis.get_yaxis_transform()
        axis.text(0.03, place, whose + gap, transform=where, va="center", fontsize=6.5, color=_GREY)
        return
    style: dict[str, Any] = {"marker": pen.marker, "color": pen.colour, "linestyle": ""}
    axis.plot(values, [place] * len(values), markersize=4.5, **style)
    if len(values) > 1:
        bar = {**style, "marker": "|", "markersize": 11, "markeredgewidth": 1.4}
        axis.plot(_middle(row, measure), place, **bar)


def _dress_weights(axis: Axes, title: str, names: Sequence[str], *, log: bool) -> None:
    axis.set_title(title)
    axis.set_axisbelow(True)
    if log:
        axis.set_yscale("log")
    axis.set_xlim(-0.5, len(names) - 0.5)
    axis.set_xticks(range(len(names)), names)
    axis.minorticks_off()


def _plot_weights(axis: Axes, rows: Sequence[Answer], measure: Measure, pen: Pen, shift: float) -> None:
    style: dict[str, Any] = {"marker": pen.marker, "color": pen.colour, "linestyle": "", "markersize": 4}
    for place, row in enumerate(rows):
        values = _values(row, measure)
        axis.plot([place + shift] * len(values), values, **style)
    x, middles = [place + shift for place in range(len(rows))], [_middle(row, measure) for row in rows]
    axis.plot(x, middles, color=pen.colour, linestyle=pen.dashes, linewidth=1.4)


def _weight_names(rows: Mapping[str, Sequence[Answer]], weights: Sequence[str]) -> list[str]:
    """Each weight, and under it which rules were not run with it."""
    names = []
    for place, weight in enumerate(weights):
        gaps = {rule: answers[place].gap for rule, answers in rows.items()}
        missing = ", ".join(f"{rule}: {gap}" for rule, gap in gaps.items() if gap)
        names.append(f"λ = {weight}" + f"\n{missing}" * bool(missing))
    return names


def _shade_null(axis: Axes, rows: Sequence[Answer]) -> None:
    """Mean ± two deviations of the deep cosine under fresh feedback, at each weight that has it."""
    for place, row in enumerate(rows):
        mean, sd = (
            words.mean_of([run.number(f"alignment.deep_null_{kind}@1") for run in row.runs])
            for kind in ("mean", "sd")
        )
        if mean is not None and sd is not None:
            ends, low, high = [place - 0.3, place + 0.3], mean - 2 * sd, mean + 2 * sd
            axis.fill_between(ends, low, high, color="#bbbbbb", alpha=0.5, linewidth=0)


def _cell(axis: Axes, column: int, place: int, decision: str) -> None:
    from matplotlib.patches import Rectangle

    shade, sign = _SHADES[decision], _SIGNS[decision]
    axis.add_patch(Rectangle((column, place), 1, 1, facecolor=shade, edgecolor="white", linewidth=2))
    size, colour = (6.5, _GREY) if decision in ABSENT else (11, _INK)
    axis.text(column + 0.5, place + 0.5, sign, ha="center", va="center", fontsize=size, color=colour)


def _say_not_run(axis: Axes) -> None:
    axis.set(xticks=[], yticks=[])
    axis.text(0.5, 0.5, NOT_RUN, transform=axis.transAxes, ha="center", va="center", color=_GREY)


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    figure.legend(handles=list(handles), loc="outside upper center", ncols=len(handles), handlelength=2.6)


def _key(marker: str, face: str, label: str) -> Line2D:
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"linestyle": "", "color": _INK, "markersize": 5}
    return Line2D([], [], marker=marker, markerfacecolor=face, label=label, **style)


def _line_key(pen: Pen, label: str = "") -> Line2D:
    return legend_line(replace(pen, name=label or pen.name))
