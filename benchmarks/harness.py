"""Side-by-side timing: peer and walkback take turns in one process, and the ratio of medians is reported.

Absolute times are noise on shared machines; a ratio taken in the same minute is not.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable


def compare(
    name: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    goal: float,
    peer_name: str,
    rounds: int = 60,
) -> dict[str, object]:
    """Warm both up, interleave them, and print one JSON line."""
    for _ in range(5):
        ours()
        peer()
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(_seconds(ours))
        theirs.append(_seconds(peer))
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    quarter = len(ratios) // 4
    row = {
        "name": name,
        "ratio": round(statistics.median(mine) / statistics.median(theirs), 3),
        "goal": goal,
        "peer": peer_name,
        "spread": [round(ratios[quarter], 3), round(ratios[-quarter - 1], 3)],
    }
    sys.stdout.write(json.dumps(row) + "\n")
    return row


def _seconds(task: Callable[[], object]) -> float:
    started = time.perf_counter()
    task()
    return time.perf_counter() - started
