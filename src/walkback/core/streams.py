"""Seeds as named, independent streams: what is drawn for one purpose never shifts another.

Every random draw of a run is a pure function of (seed, purpose, epoch …), so a resumed run needs no
saved generator state, and a rule that draws more feedback matrices does not change the batch order.
"""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. `stream_seed(42, "batches", epoch)`."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
