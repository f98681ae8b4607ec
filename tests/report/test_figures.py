"""Figures that show gaps as gaps, cope with any label, and say how a rule is drawn in two ways."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from walkback.report.figures import _limits, draw_figures, drawable, mark_threshold, over_epochs
from walkback.report.pens import USUAL, baseline_pen, pens_of, rule_pen
from walkback.report.svg import inline_svg


def test_each_format_is_what_its_name_says(written: Path) -> None:
    for name in ("layer-profile", "trajectory", "full-tier"):
        assert (written / f"figures/{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (written / f"figures/{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (written / f"figures/{name}.svg").read_bytes()


def test_metadata_tells_no_date_and_no_program(written: Path) -> None:
    assert b"CreationDate" not in (written / "figures/trajectory.pdf").read_bytes()
    assert b"Software" not in (written / "figures/trajectory.png").read_bytes()
    assert b"dc:date" not in (written / "figures/trajectory.svg").read_bytes()


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_gap(value: float | None) -> None:
    assert math.isnan(drawable(value, log=False))


def test_zero_is_drawn_unless_the_axis_is_logarithmic() -> None:
    assert drawable(0.0, log=False) == 0.0
    assert math.isnan(drawable(0.0, log=True))


@pytest.mark.parametrize("threshold", [1e-7, 2e-3, 1e3])
def test_a_marker_at_the_edge_is_not_cut_by_the_frame(threshold: float) -> None:
    """A curve within half a decade has a margin of a hair once a far threshold is in sight."""
    axis, curve = Figure().add_subplot(), np.array([3e-4, 1.04e-3])
    axis.set_yscale("log")
    axis.plot([0, 1], curve)
    mark_threshold(axis, threshold, "D2 fires below", above=False)
    low, high = np.log(axis.get_ylim())
    places = (np.log([*curve, threshold]) - low) / (high - low)
    assert places.min() > 0.03 and places.max() < 0.97


def test_median_is_drawn_only_where_every_seed_has_a_number(runs: Any) -> None:
    runs.add("bp", seed=1, accuracy=0.5)
    runs.add("bp", seed=2, accuracy=math.nan)
    item = runs.judged()[0]
    curves = over_epochs(item.runs, "accuracy.test@1", log=False, scale=1.0)
    assert np.isnan(curves.median).all()
    assert (curves.seeds[0] == 0.5).all()


def test_a_run_with_nothing_to_show_is_drawn_without_a_warning(runs: Any) -> None:
    per_layer = (
        "scale.state_norm@1",
        "reference.norm@1",
        "alignment.cosine@1",
        "alignment.cosine_compat@1",
    )
    single = ("accuracy.test@1", "scale.growth_max@1", "reference.validity@1", "alignment.deep_cosine@1")
    runs.add("bp", without=single, not_applicable=per_layer)
    runs.add("fa", growth=math.inf, validity=0.0, accuracy=math.nan, state="diverged")
    assert draw_figures(runs.judged())


def test_any_label_can_be_drawn(runs: Any) -> None:
    for label in ("$x", "a$b$_c", "_hidden", r"\frac", "中文", "x" * 200):
        runs.add("odd", label=label)
    assert draw_figures(runs.judged())


def test_a_label_with_control_characters_leaves_every_drawing_well_formed(runs: Any) -> None:
    for label in ("\x07bell", "\x1b[31mred", "null\x00z", "half \uffff"):
        runs.add("odd", label=label)
    drawn = draw_figures(runs.judged())
    for name in [name for name in drawn if name.endswith(".svg")]:
        ElementTree.fromstring(drawn[name])


def test_rules_differ_in_more_than_colour(runs: Any) -> None:
    for index in range(20):
        runs.add("rule", label=f"r{index:02d}")
    runs.add("frozen")
    pens = pens_of(runs.judged())
    assert len({(pen.colour, pen.marker) for pen in pens}) == len(pens)
    assert len({(pen.marker, pen.dashes) for pen in pens}) == len(pens)


def test_ten_baselines_are_told_apart() -> None:
    pens = [baseline_pen(f"frozen {place}", place) for place in range(10)]
    assert len({(pen.colour, pen.marker) for pen in pens}) == 10


def test_a_usual_rule_keeps_its_pen_whatever_else_is_drawn(runs: Any) -> None:
    for rule in ("adaptive", "bp", "dfa", "fa"):
        runs.add(rule)
    pens = {pen.name: pen for pen in pens_of(runs.judged())}
    assert [pens[name] for name in USUAL] == [rule_pen(name, place) for name, place in USUAL.items()]
    assert len({pen.colour for pen in pens.values()}) == 4


def test_paper_logic_draws_the_reference_it_judged(runs: Any) -> None:
    runs.add("bp")
    assert _limits(runs.judged())[2] == "reference.validity@1"
    assert _limits(runs.judged(logic="paper"))[2] == "reference.compat@1"


def test_inlined_drawings_share_no_ids() -> None:
    svg = (
        '<?xml version="1.0"?>\n'
        '<svg width="1pt" height="1pt" viewBox="0 0 1 1" xmlns="http://www.w3.org/2000/svg">'
        '<g id="a"><use xlink:href="#a" x="1.23456"/>'
        '<path clip-path="url(#a)" d="M 0.98765 1 \nL 12.345 4 "/></g></svg>'
    )
    one = inline_svg(svg, "one", 'say "x" & <y>')
    assert 'id="one-a"' in one
    assert 'href="#one-a"' in one
    assert "url(#one-a)" in one
    assert 'x="1.23"' in one
    assert 'd="M0.99 1L12.3 4"' in one
    assert 'aria-label="say &quot;x&quot; &amp; &lt;y>"' in one
    assert "http" not in one
