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
    goal: float | None,
    peer_name: str,
    rounds: int = 60,
    warm: int = 5,
) -> None:
    """Warm both up, interleave them, and print one JSON line."""
    report(name, *ratio_of(ours, peer, rounds, warm), goal=goal, peer=peer_name)


def ratio_of(
    ours: Callable[[], object], peer: Callable[[], object], rounds: int = 60, warm: int = 5
) -> tuple[float, tuple[float, float]]:
    """The ratio of medians, and the middle half of the ratios of neighbours."""
    for _ in range(warm):
        ours()
        peer()
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(_seconds(ours))
        theirs.append(_seconds(peer))
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    quarter = len(ratios) // 4
    return statistics.median(mine) / statistics.median(theirs), (ratios[quarter], ratios[-quarter - 1])


def report(
    name: str, ratio: float, spread: tuple[float, float] | None = None, *, goal: float | None, peer: str
) -> None:
    """One JSON line. `spread` is the middle half of the ratios; what is counted and not timed has none."""
    low, high = spread or (ratio, ratio)
    row = {"name": name, "ratio": round(ratio, 4), "goal": goal, "peer": peer}
    sys.stdout.write(
        json.dumps({**row, "spread": [round(low, 4), round(high, 4)]}, ensure_ascii=False) + "\n"
    )


def _seconds(task: Callable[[], object]) -> float:
    started = time.perf_counter()
    task()
    return time.perf_counter() - started
