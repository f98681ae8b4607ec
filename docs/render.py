"""Renders the reference pages that are tables in code, so that the docs cannot drift from it."""

from __future__ import annotations

import sys
from pathlib import Path

from walkback.core.quantities import QUANTITIES
from walkback.data import datasets
from walkback.judge.thresholds import Thresholds
from walkback.nets import nets
from walkback.rules import resolve_rule, rules

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Rendered by `make docs` from the code; do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """File name → text of every rendered page."""
    return {"quantities.md": quantities(), "thresholds.md": thresholds(), "registry.md": registry()}


def quantities() -> str:
    rows = [(f"`{q.id}`", "layer" if q.per_layer else "net", q.meaning) for q in QUANTITIES.values()]
    words = (
        "Every reading has an epoch, a layer (0 = stem output, L = deepest) where it is per layer, a value "
        "and a status: `ok`, `nan`, `inf`, `below_floor` or `not_applicable`. h_l is a state, g_l the "
        "reference gradient there (per row, of the summed loss), a_l the rule's credit, "
        "e = softmax − onehot. A row is a sample, or a token where every token has a label."
    )
    return f"{NOTE}# Quantities\n\n{words}\n\n" + table(("id", "per", "meaning"), rows)


def thresholds() -> str:
    rows = [(f"`{r['name']}`", r["value"], r["source"], r["reason"]) for r in Thresholds.table()]
    words = "All in `judge/thresholds.py`. Change one in a call: `Thresholds(growth=30)`."
    return f"{NOTE}# Thresholds\n\n{words}\n\n" + table(("name", "value", "source", "reason"), rows)


def registry() -> str:
    rule_rows = [
        (
            f"`{resolve_rule(name)}`",
            rules[name].role,
            rules[name].about,
            rules[name].citation,
            rules[name].ours,
        )
        for name in rules
    ]
    net_rows = [(f"`{n}`", ", ".join(f"{k}={v}" for k, v in nets[n].defaults.items())) for n in nets]
    data_rows = [(f"`{name}`", datasets[name].about) for name in datasets]
    return (
        f"{NOTE}# Rules, nets and data sets\n\n## Rules\n\n"
        + table(("written in full", "role", "what it does", "source", "ours"), rule_rows)
        + "\n## Nets\n\n"
        + table(("name", "parameters and defaults"), net_rows)
        + "\n## Data sets\n\n"
        + table(("name", "what it is"), data_rows)
    )


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{name}\n")
