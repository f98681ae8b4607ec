"""Meter: the time and the memory that a piece of work takes."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter:
    """`seconds`, and `peak_mb`: the most this process held meanwhile, torch itself included.

    Linux can forget an earlier peak. Elsewhere the peak is the process's own since its start, and where
    there is no way to ask it is None.
    """

    seconds: float = float("nan")
    peak_mb: float | None = None

    def __enter__(self) -> Meter:
        with contextlib.suppress(OSError):
            _RESET.write_text("5")  # proc(5): resets the peak resident set size
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self.peak_mb = _peak_mb()


def _peak_mb() -> float | None:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
