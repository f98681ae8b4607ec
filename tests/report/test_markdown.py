"""Markdown that renders as written, whatever a label contains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from walkback.report.audit_tables import verdict_rows
from walkback.report.markdown import escape, render_table


def test_a_pipe_in_a_label_does_not_end_its_cell(runs: Any) -> None:
    runs.add("odd", label="a|b\nc")
    lines = render_table(verdict_rows(runs.judged())).splitlines()
    widths = {len(re.split(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")}
    assert len(widths) == 1
    assert r"a\|b c" in lines[-1]


def test_nothing_turns_into_markup() -> None:
    assert escape("*x* _y_ <b> [l](u) `c` $m$") == r"\*x\* \_y\_ \<b\> \[l\](u) \`c\` \$m\$"


def test_report_holds_verdicts_chain_and_figures(written: Path) -> None:
    text = (written / "report.md").read_text()
    assert "## dfa: FAIL(D1+D2+D3)" in text
    assert "Passing certifies nothing" in text
    for name in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (written / name).is_file()
    assert text.count("![") == 3
