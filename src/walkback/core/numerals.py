"""How numbers are written for a reader: a gap is a dash or a word, never a zero."""

from __future__ import annotations

import math

MISSING = "—"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """Three significant digits, as powers of ten where zeros would have to be counted."""
    if gap := _gap(value):
        return gap
    assert value is not None
    mantissa, exponent = f"{value:.2e}".split("e")
    power = int(exponent)
    if value == 0:
        return "0"
    if -3 <= power < 5:
        return _minus(f"{float(f'{value:.2e}'):.{max(0, 2 - power)}f}")
    return _minus(mantissa) + "×10" + _power(power)


def limit(value: float) -> str:
    """A threshold: a round number, written without digits that say nothing."""
    mantissa, exponent = f"{value:e}".split("e")
    if -3 <= int(exponent) < 5:
        return _minus(f"{value:.10g}")
    digits = f"{float(mantissa):g}"
    return ("" if digits == "1" else _minus(digits) + "×") + "10" + _power(int(exponent))


def cosine(value: float | None) -> str:
    """Signed, three decimals; a cosine that rounds to nothing has no sign."""
    return _gap(value) or _signed(value, 3)


def percent(share: float | None) -> str:
    """A share as a number of per cent; the unit stands in the header."""
    return _gap(share) or f"{100 * share:.1f}"  # type: ignore[operator]


def share(value: float | None) -> str:
    """A share with three decimals and no leading zero, as the FA paper prints accuracies."""
    return _gap(value) or f"{value:.3f}".removeprefix("0")


def points(share: float | None) -> str:
    """A difference of shares in percentage points, signed."""
    return _gap(share) or _signed(100 * share, 1)  # type: ignore[operator]


def count(value: float | None) -> str:
    return _gap(value) or f"{value:.0f}"


def _gap(value: float | None) -> str:
    """The word for what is not a plain number, or nothing."""
    if value is None:
        return MISSING
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "−infinite"
    return ""


def _signed(value: float | None, decimals: int) -> str:
    assert value is not None
    rounded = round(value, decimals)
    return _minus(f"{rounded:+.{decimals}f}") if rounded else f"{0:.{decimals}f}"


def _power(exponent: int) -> str:
    return str(exponent).translate(_SUPERSCRIPTS)


def _minus(shown: str) -> str:
    return shown.replace("-", "−")
