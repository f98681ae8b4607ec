"""Tables for machines: one column per raw field, every float in full, an empty cell where nothing is."""

from __future__ import annotations

import csv
import io
from typing import Any

from walkback.report.table import Table


def render_csv(table: Table) -> str:
    """`nan` is measured and not a number; empty is not measured. `float(cell)` gives the same float."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.fields)
    writer.writerows([_cell(row[name]) for name in table.fields] for row in table.rows)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
