"""LaTeX that compiles: balanced, escaped, and with as many cells as columns."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkback.judge.assemble import Judged
from walkback.report.audit_tables import full_rows, layer_rows, trajectory_rows, verdict_rows
from walkback.report.latex import escape, render_latex


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a_b & 5% #1 $x$", r"a\_b \& 5\% \#1 \$x\$"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("3.98×10⁻⁹ ± ∞", r"3.98$\times$10$^{-9}$ $\pm$ $\infty$"),
        ("—", "---"),
        ("ν, ρ", r"$\nu$, $\rho$"),
        ("‖h_L‖ ≈ λ", r"$\Vert$h\_L$\Vert$ $\approx$ $\lambda$"),
        ("[x]", "{[}x{]}"),
        ("Nøkland é", "Nøkland é"),
        ("中\n", r"\texttt{U+4E2D} "),
    ],
)
def test_special_characters_are_printed_not_obeyed(text: str, latex: str) -> None:
    assert escape(text) == latex


@given(st.text())
def test_any_text_is_balanced_and_holds_no_bare_special(text: str) -> None:
    latex = escape(text)
    bare = re.sub(r"\\[&%$#_{}]", "", latex)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[&%#~]", bare.replace("~", "" if "\u00a0" in text else "~"))


def test_rows_have_as_many_cells_as_the_table_has_columns(audit: list[Judged]) -> None:
    for table in (verdict_rows(audit), layer_rows(audit), full_rows(audit), trajectory_rows(audit)):
        latex = render_latex(table)
        wanted = len(table.columns)
        assert re.search(rf"\\begin\{{(tabular|longtable)\}}\{{[lr]{{{wanted}}}\}}", latex)
        rows = [line for line in latex.splitlines() if line.endswith(r"\\") and " & " in line]
        assert len(rows) >= len(table.rows) + 1
        assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {wanted}


def test_environments_are_closed_in_order(audit: list[Judged]) -> None:
    for table in (verdict_rows(audit), layer_rows(audit), full_rows(audit), trajectory_rows(audit)):
        latex = render_latex(table)
        opened: list[str] = []
        for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", latex):
            if kind == "begin":
                opened.append(name)
            else:
                assert opened.pop() == name
        assert not opened
        assert latex.count(r"\toprule") == latex.count(r"\midrule")


def test_a_long_table_breaks_across_pages(runs: Any) -> None:
    runs.add("bp", epochs=60)
    assert r"\begin{longtable}" in render_latex(trajectory_rows(runs.judged()))
    assert r"\begin{table}" in render_latex(verdict_rows(runs.judged()))
