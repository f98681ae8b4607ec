"""Runs every benchmark and writes benchmarks/latest.json and the table in docs/reference/benchmarks.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "benchmarks.md"


def main() -> None:
    rows = []
    for file in sorted(HERE.glob("*.py")):
        if file.name in ("run.py", "harness.py", "setting.py"):
            continue
        done = subprocess.run([sys.executable, str(file)], stdout=subprocess.PIPE, text=True, check=True)
        rows += [json.loads(line) for line in done.stdout.splitlines()]
        sys.stdout.write(done.stdout)
    (HERE / "latest.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


def page(rows: list[dict]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Ratios taken in one run, walkback over its peer; `make bench` makes them anew.",
    ]
    lines += ["ResMLP 4×256, expansion 4, batch 128, one thread.", ""]
    lines += ["| what | ratio | middle half | goal | peer |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        low, high = row["spread"]
        goal = "" if row["goal"] is None else f"≤ {row['goal']:g}"
        spread = "" if low == high else f"{low:.4g}–{high:.4g}"
        lines.append(f"| {row['name']} | {row['ratio']:.4g} | {spread} | {goal} | {row['peer']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
