"""Runs the benchmarks and writes benchmarks/latest.json and the table in docs/reference/benchmarks.md.

python benchmarks/run.py                    all of them
python benchmarks/run.py step_bp full_audit   these; the other rows stay as they were
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from walkback.run.pool import WORKER_ENVIRONMENT

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "benchmarks.md"


def main() -> None:
    chosen = sys.argv[1:]
    files = [f for f in sorted(HERE.glob("*.py")) if f.stem not in ("run", "harness", "setting")]
    unknown = set(chosen) - {file.stem for file in files}
    if unknown:
        sys.exit(f"There is no benchmark {unknown.pop()}.")
    if os.environ.get("WALKBACK_ROWS") and not chosen:
        sys.exit("WALKBACK_ROWS takes some rows of metric_calibration: name that, or all others are lost.")
    latest = HERE / "latest.json"
    rows = {row["name"]: row for row in json.loads(latest.read_text(encoding="utf-8"))} if chosen else {}
    for file in files:
        if not chosen or file.stem in chosen:
            for row in measured(file):
                rows[row["name"]] = {**row, "worker": True}
                found = list(rows.values())
                latest.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                PAGE.write_text(page(found), encoding="utf-8")


def measured(file: Path) -> Iterator[dict]:
    """The rows of one benchmark as they are printed, so that a long one can be stopped between two."""
    command, environment = [sys.executable, "-u", str(file)], {**os.environ, **WORKER_ENVIRONMENT}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as run:
        for line in run.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            yield json.loads(line)
    if run.returncode:
        sys.exit(f"{file.name} ended with {run.returncode}.")


def page(rows: list[dict]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Ratios of two medians, walkback's over its peer's, taken in turns; `make bench` makes them anew.",
        "The range is the middle half of the ratios of neighbouring pairs, and need not hold that of the",
        "medians; for shares of simulated tables it is their 95 % interval.",
        "Where nothing else is said: ResMLP 4×256, expansion 4, batch 128, one thread. A star: set up as a",
        "worker, which keeps the memory it has freed; rows without one were not. Bold: the goal is missed.",
        "",
    ]
    lines += ["| what | ratio or share | range | goal | peer |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        low, high = row["spread"]
        goal = "" if row["goal"] is None else f"≤ {row['goal']:g}"
        spread = "" if low == high else f"{low:.4g}–{high:.4g}"
        star = " \\*" * row.get("worker", False)
        bold = "**" * (row["goal"] is not None and row["ratio"] > row["goal"])
        shown = f"{bold}{row['ratio']:.4g}{bold}"
        lines.append(f"| {row['name']}{star} | {shown} | {spread} | {goal} | {row['peer']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
