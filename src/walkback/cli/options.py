"""Options that hold a list, as in `--seeds 42,123,456`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from walkback.core.errors import BadInput

T = TypeVar("T", int, float)


def whole_numbers(option: str, text: str) -> list[int]:
    return _listed(option, text, int, "whole numbers, as in 1,10")


def numbers(option: str, text: str) -> list[float]:
    return _listed(option, text, float, "numbers, as in 1e-3,3e-3")


def names(text: str) -> list[str]:
    """Each once, in the order given."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _listed(option: str, text: str, kind: Callable[[str], T], wanted: str) -> list[T]:
    try:
        found = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise BadInput(f"{option} takes {wanted}, not {text!r}.")
    return found
