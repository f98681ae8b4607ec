"""Lab: what an experiment works with — its random streams, its settings, and where it reports numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from walkback.core.errors import WalkbackError
from walkback.core.numerals import limit, number
from walkback.core.streams import stream_seed
from walkback.core.verdict import Reason
from walkback.tracks.track import Check, Track

if TYPE_CHECKING:
    import torch

Interval = tuple[float, float]
OnProgress = Callable[[int, int], None]


class Skipped(Exception):
    """The track cannot be run here, for example because its data is not at hand."""


class Caught(Exception):
    """A control has failed a check; what comes after it could not change that."""


class Misreported(WalkbackError):
    """An experiment that reports something else than it declared."""

    kind = "misreported"


class Lab:
    """One pass through an experiment. Every draw is a function of (track, seed, purpose).

    The streams of a control are those of the claim, so that nothing differs but what is broken.
    `stop` ends the pass at the first check that does not hold.
    """

    def __init__(
        self,
        track: Track,
        *,
        seed: int = 0,
        full: bool = False,
        control: str | None = None,
        stop: bool = False,
        on_progress: OnProgress = lambda done, total: None,
    ) -> None:
        self.track, self.seed, self.is_full, self.control, self.stop = track, seed, full, control, stop
        self.settings = MappingProxyType(copy.deepcopy(dict(track.settings(full))))  # for reading only
        self.progress = on_progress
        self.reasons: list[Reason] = []
        self.rows: list[dict[str, Any]] = []
        self.told: dict[str, str] = {}
        self._checks = {check.name: check for check in track.checks}
        self._controls = {control.name for control in track.all_controls}
        self._left_out = {
            name for positive in track.positive if positive.name == control for name in positive.without
        }
        if control is not None:
            self.under(control)

    def under(self, control: str) -> bool:
        """Whether this control is in force: the one question by which an experiment breaks itself."""
        if control not in self._controls:
            declared = ", ".join(sorted(self._controls))
            raise Misreported(f"Track {self.track.id} has no control {control!r}.", f"It has: {declared}.")
        return self.control == control

    def stream(self, *purpose: str | int) -> int:
        """A seed for one purpose, e.g. `lab.stream("init", k)`."""
        return stream_seed(self.seed, "track", self.track.id, *purpose)

    def rng(self, *purpose: str | int) -> np.random.Generator:
        return np.random.default_rng(self.stream(*purpose))

    def generator(self, *purpose: str | int) -> torch.Generator:
        import torch

        return torch.Generator().manual_seed(self.stream(*purpose))

    def report(
        self, check: str, value: float, interval: Interval | None = None, sentence: str = "", **detail: Any
    ) -> None:
        """The number of a declared check, once. With an interval all of it must lie within the bounds."""
        if check not in self._checks:
            declared = ", ".join(self._checks)
            raise Misreported(f"Track {self.track.id} has no check {check!r}.", f"It has: {declared}.")
        if any(reason.name == check for reason in self.reasons):
            raise Misreported(f"Track {self.track.id} reports {check!r} twice.", "A check has one number.")
        if check in self._left_out:
            return
        span = None if interval is None else (float(interval[0]), float(interval[1]))
        if span is not None and span[0] > span[1]:
            raise Misreported(f"Track {self.track.id} reports {check!r} with an interval from high to low.")
        reason = compare(self._checks[check], float(value), span, sentence, detail)
        self.reasons.append(reason)
        if self.stop and reason.fires is not False:
            raise Caught(check)

    def row(self, **cells: Any) -> None:
        """A line of the table that the report shows; every line has the same columns."""
        if self.rows and list(cells) != list(self.rows[0]):
            raise Misreported(f"Track {self.track.id} has a table whose lines differ in their columns.")
        self.rows.append(cells)

    def tell(self, *, difference: str = "", interpretation: str = "") -> None:
        """The key difference that was seen, and what it means, in sentences with the numbers in them."""
        if not isinstance(difference, str) or not isinstance(interpretation, str):
            raise Misreported(f"Track {self.track.id} tells something that is not a text.")
        self.told |= {"difference": difference, "interpretation": interpretation}

    def skip(self, reason: str) -> NoReturn:
        """End the track as SKIPPED; the reason is shown. Not after a number has been reported."""
        if self.reasons:
            raise Misreported(
                f"Track {self.track.id} skips after it has reported {self.reasons[0].name!r}.",
                "Whether it can be run must not depend on what is found.",
            )
        raise Skipped(reason)

    @property
    def unreported(self) -> list[str]:
        known = {reason.name for reason in self.reasons} | self._left_out
        return [name for name in self._checks if name not in known]


def compare(
    check: Check,
    value: float,
    interval: Interval | None = None,
    sentence: str = "",
    detail: dict[str, Any] | None = None,
) -> Reason:
    """Does the number lie within the bounds? NaN never does; an interval that is partly within is open."""
    low, high = interval or (value, value)
    if math.isnan(value) or math.isnan(low) or math.isnan(high):
        fires, status, told = None, "nan", "is not a number, which never holds"
    elif math.isinf(value):
        fires, status, told = True, "inf", "which never holds"
    elif check.at_least <= min(low, value) and max(high, value) <= check.at_most:
        fires, status, told = False, "ok", f"and {check.bounds} was asked for"
    elif max(high, value) < check.at_least or check.at_most < min(low, value) or interval is None:
        fires, status, told = True, "ok", f"but {check.bounds} was asked for"
    else:
        fires, status, told = None, "open", f"which leaves open whether it is {check.bounds}"
    margin = min(min(low, value) - check.at_least, check.at_most - max(high, value))
    return Reason(
        check=check.title,
        name=check.name,
        fires=fires,
        value=value,
        threshold=check.at_most if math.isfinite(check.at_most) else check.at_least,
        sentence=" ".join(
            filter(None, (f"{check.says}: {_shown(check, value, interval)}, {told}.", sentence))
        ),
        status=status,
        interval=interval,
        margin=margin if math.isfinite(margin) else None,
        detail={**(detail or {}), "at_least": check.at_least, "at_most": check.at_most},
    )


def _shown(check: Check, value: float, interval: Interval | None) -> str:
    shown = _digits(check, value) + (f" {check.unit}" if check.unit else "")
    if interval is None:
        return shown
    return f"{shown} [{_digits(check, interval[0])}, {_digits(check, interval[1])}]"


def _digits(check: Check, value: float) -> str:
    """Three digits, all of a count, and more where three would hide on which side of a bound it lies."""
    if not math.isfinite(value):
        return number(value)
    bounds = [bound for bound in (check.at_least, check.at_most) if math.isfinite(bound)]
    near = any(abs(value - bound) <= 0.01 * abs(bound) for bound in bounds)
    return limit(float(f"{value:.9g}")) if near or value.is_integer() else number(value)
