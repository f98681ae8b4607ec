"""A track: one claim, the checks that decide it, and the sabotages under which it must not pass.

All of it is declared before a number is seen. The experiment only reports numbers; the bounds stand in the
declaration, and the runner compares.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, ClassVar

from walkback.core.canonical import plain
from walkback.core.errors import BadInput
from walkback.core.numerals import limit
from walkback.core.verdict import Outcome

if TYPE_CHECKING:
    from walkback.core.verdict import Verdict
    from walkback.tracks.lab import Lab

MADE: dict[str, list[Track]] = {}  # every track by the module that made it, so that none is overlooked
LEVELS = ("smoke", "directional", "conclusive")
Experiment = Callable[["Lab"], None]


@dataclass(frozen=True)
class Check:
    """A number that must lie in `at_least` … `at_most`. `says` names it: "largest difference of states"."""

    name: str
    says: str
    at_least: float = -math.inf
    at_most: float = math.inf
    unit: str = ""
    weight: float = 1.0
    title: ClassVar[str] = "check"
    otherwise: ClassVar[Outcome] = Outcome.FAIL

    def __post_init__(self) -> None:
        bounded = math.isfinite(self.at_least) or math.isfinite(self.at_most)
        if not bounded or not self.at_least <= self.at_most:
            raise BadInput(
                f"The check {self.name!r} has no bound that could be missed.",
                "Give it at_least=…, at_most=…, or both.",
            )
        _check_weight(self.name, self.weight)

    @property
    def bounds(self) -> str:
        """`at most 0.0001`, `at least 1000`, `from −1.5 to 1.5 pp`."""
        unit = f" {self.unit}" if self.unit else ""
        if self.at_least == -math.inf:
            return f"at most {limit(self.at_most)}{unit}"
        if self.at_most == math.inf:
            return f"at least {limit(self.at_least)}{unit}"
        return f"from {limit(self.at_least)} to {limit(self.at_most)}{unit}"


@dataclass(frozen=True)
class Gate(Check):
    """What must hold before the decision means anything; if it does not, the track is INCONCLUSIVE."""

    title = "gate"
    otherwise = Outcome.INCONCLUSIVE


@dataclass(frozen=True)
class IdentityGate(Gate):
    """The thing on trial is what it says it is; if not, the claim is about something else: FAIL."""

    title = "identity gate"
    otherwise = Outcome.FAIL


@dataclass(frozen=True)
class Decision(Check):
    """Part of the decision rule: the claim stands if all of them hold."""

    title = "decision"


@dataclass(frozen=True)
class Control:
    """A sabotage: the same experiment with one thing broken must not pass.

    `breaks` is a clause that goes on from "it also passes when": "the nudge is switched off".
    """

    name: str
    breaks: str
    weight: float = 1.0
    title: ClassVar[str] = "control"


@dataclass(frozen=True)
class PositiveControl:
    """A case in which the claim is true by construction: the same experiment must pass.

    `without` names the checks that it cannot meet by its nature. `holds` goes on from "it must pass when".
    """

    name: str
    holds: str
    without: tuple[str, ...] = ()
    weight: float = 1.0
    title: ClassVar[str] = "positive control"


@dataclass(eq=False, kw_only=True)
class Track:
    """A claim with everything that decides it. `@track.experiment` marks the function that is run.

    `quick` and `full` are the settings of the two modes, `level` says how much each of them can show.
    """

    id: int | str
    name: str
    claim: str
    purpose: str
    limits: str
    improve: str
    arms: Mapping[str, str]
    decisions: Sequence[Decision]
    controls: Sequence[Control]
    gates: Sequence[Gate] = ()
    positive: Sequence[PositiveControl] = ()
    level: Mapping[str, str] = field(default_factory=lambda: {"quick": "smoke", "full": "directional"})
    quick: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    source: str = field(default="", init=False)  # the file it was found in; empty for walkback's own
    made_in: str = field(default="", init=False)  # the module that was being run when it was made
    _experiment: Experiment | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_declaration(self)
        self.made_in = _module_being_run()
        MADE.setdefault(self.made_in, []).append(self)

    def experiment(self, function: Experiment) -> Experiment:
        """Decorator: this is what is run, for the claim and for every control. Its docstring is shown."""
        if self._experiment is not None:
            raise BadInput(f"Track {self.id} has two experiments.", "Every control runs the same code.")
        if not function.__doc__:
            raise BadInput(f"The experiment of track {self.id} has no docstring.", "Say what it does.")
        self._experiment = function
        return function

    def run(self, *, seed: int = 0, full: bool = False) -> Verdict:
        """The whole track in this process: the claim, then every control."""
        from walkback.tracks.runner import run_track

        return run_track(self, seed=seed, full=full)

    def with_settings(self, **changed: Any) -> Track:
        """The same track with other settings in both modes, for a trial; the verdict shows them."""
        unknown = set(changed) - set(self.quick)
        if unknown:
            raise BadInput(f"Track {self.id} has no setting {sorted(unknown)[0]!r}.")
        copy = replace(self, quick={**self.quick, **changed}, full={**self.full, **changed})
        copy._experiment, copy.source = self._experiment, self.source
        return copy

    @property
    def function(self) -> Experiment:
        if self._experiment is None:
            raise BadInput(f"Track {self.id} has no experiment.", "Mark one with @track.experiment.")
        return self._experiment

    @property
    def words(self) -> str:
        """What the experiment does, in its own words."""
        return " ".join(cleandoc(self.function.__doc__ or "").split())

    @property
    def checks(self) -> tuple[Check, ...]:
        return (*self.gates, *self.decisions)

    @property
    def all_controls(self) -> tuple[Control | PositiveControl, ...]:
        return (*self.controls, *self.positive)

    @property
    def rule(self) -> str:
        """The decision rule, as it was fixed beforehand."""
        return "; ".join(f"{check.says}: {check.bounds}" for check in self.decisions) + "."

    def settings(self, full: bool) -> Mapping[str, Any]:
        return self.full if full else self.quick


def _check_declaration(track: Track) -> None:
    """A track that could not fail, or whose parts could be mistaken for each other, is refused."""
    who = f"Track {track.id}"
    for part in ("name", "claim", "purpose", "limits", "improve"):
        if not isinstance(getattr(track, part), str):
            raise BadInput(f"{who}: its {part} is not a text.")
    if not isinstance(track.id, int | str):
        raise BadInput(f"{who}: its id is neither a number nor a text.")
    if not isinstance(track.arms, Mapping):
        raise BadInput(f"{who}: its arms have no words.", 'Give them as {"name": "what it is"}.')
    texts = [*track.arms.items(), *((check.name, check.says) for check in track.checks)]
    texts += [(control.name, control.breaks) for control in track.controls]
    texts += [(control.name, control.holds) for control in track.positive]
    for name, told in texts:
        if not isinstance(name, str) or not isinstance(told, str):
            raise BadInput(f"{who}: what it says of {name!r} is not a text.")
    for settings in (track.quick, track.full):
        refuse_unwritable(settings, f"{who}: its settings")
    if not track.decisions:
        raise BadInput(f"{who} decides nothing.", "Declare at least one Decision.")
    if not track.controls:
        raise BadInput(
            f"{who} has no control that must fail.", "Nobody could tell whether its experiment can fail."
        )
    names = [part.name for part in (*track.checks, *track.all_controls)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadInput(f"{who} uses the name {twice[0]!r} twice.")
    unknown = {name for control in track.positive for name in control.without} - {
        check.name for check in track.checks
    }
    if unknown:
        raise BadInput(f"{who} has no check {sorted(unknown)[0]!r} to leave out.")
    for positive in track.positive:
        if {check.name for check in track.decisions} <= set(positive.without):
            raise BadInput(f"{who}: nothing is decided under {positive.name!r}.", "Leave less out.")
    for control in track.all_controls:
        _check_weight(control.name, control.weight)
    if set(track.level) != {"quick", "full"} or not set(track.level.values()) <= set(LEVELS):
        raise BadInput(
            f"{who} does not say what quick and full can show.", f"Each is one of: {', '.join(LEVELS)}."
        )
    if set(track.quick) != set(track.full):
        raise BadInput(f"{who} has settings in one mode only.", "Name each in quick and in full.")


def refuse_unwritable(thing: Any, who: str) -> None:
    """What a report and a file could not hold: a function, a set, half a character."""
    try:
        json.dumps(plain(thing), allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError, RuntimeError) as problem:
        raise BadInput(f"{who} cannot be written down: {problem}.", "Use numbers and texts.") from None


def _module_being_run() -> str:
    """The module whose top level leads here, also through functions of others; for code that runs later,
    the script."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _check_weight(name: str, weight: float) -> None:
    if not 0 < weight < math.inf:
        raise BadInput(f"The weight of {name!r} is {weight}.", "A weight is above 0.")
