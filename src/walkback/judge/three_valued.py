"""True, False and None for not known: how several such answers become one."""

from __future__ import annotations

from collections.abc import Iterable


def every(states: Iterable[bool | None]) -> bool | None:
    """Kleene's `and`: false if any is false, unknown if any is unknown, else true."""
    said = list(states)
    if False in said:
        return False
    return None if None in said else True


def most(states: Iterable[bool | None]) -> bool | None:
    """True if most say so; None if any is unknown and could turn it."""
    said = list(states)
    yes, unknown = said.count(True), said.count(None)
    if yes * 2 > len(said):
        return True
    return None if (yes + unknown) * 2 > len(said) else False
