"""The one answer type of all audits: an outcome, its words, and the reasons for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from html import escape
from typing import TYPE_CHECKING, Any

from walkback.core.canonical import plain

if TYPE_CHECKING:
    import pandas as pd


class Outcome(Enum):
    """How an audit ended. Missing evidence is INCOMPLETE and open evidence INCONCLUSIVE, never PASS."""

    PASS = "PASS"
    INDEPENDENT = "INDEPENDENT"
    FAIL = "FAIL"
    PROXY = "PROXY"
    ERROR = "ERROR"
    REFUSED = "REFUSED"
    INCOMPLETE = "INCOMPLETE"
    INCONCLUSIVE = "INCONCLUSIVE"
    SKIPPED = "SKIPPED"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Outcome.PASS: 0,
    Outcome.INDEPENDENT: 0,
    Outcome.FAIL: 1,
    Outcome.PROXY: 1,
    Outcome.ERROR: 1,
    Outcome.REFUSED: 2,
    Outcome.INCOMPLETE: 3,
    Outcome.INCONCLUSIVE: 3,
    Outcome.SKIPPED: 3,
}


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome that decides the exit code of several: failure, then refusal, then open questions."""
    order = {1: 0, 2: 1, 3: 2, 0: 3}
    return min(outcomes, key=lambda outcome: order[outcome.exit_code], default=Outcome.SKIPPED)


@dataclass(frozen=True)
class Reason:
    """One check: what was measured, against what, and a sentence a reader can quote.

    `fires` is None where the evidence is missing or not a number (status `missing`), leaves the question
    open (`open`), or comes from a run that still trains (`early`). An infinite value (`inf`) is known,
    although JSON cannot hold it.
    """

    check: str
    name: str
    fires: bool | None
    value: float | None
    threshold: float
    sentence: str
    status: str = "ok"
    interval: tuple[float, float] | None = None
    margin: float | None = None
    layer: int | None = None
    epoch: int | None = None
    seeds: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Verdict(Mapping[str, Any]):
    """An outcome with its reasons. Reads like a mapping: `verdict["diagnostics"]["D1_scale_growth"]`."""

    outcome: Outcome
    verdict: str
    claim: str
    logic: str
    reasons: tuple[Reason, ...]
    chain: tuple[Mapping[str, Any], ...] = ()
    layers: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. `diagnostics` is the mapping the protocol documents."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "reasons"}
        return plain({**named, "diagnostics": {reason.name: reason for reason in self.reasons}})

    def to_frame(self) -> pd.DataFrame:
        """One row per check."""
        import pandas as pd

        columns = [c for c in Reason.__dataclass_fields__ if c != "detail"]
        return pd.DataFrame([reason.to_dict() for reason in self.reasons], columns=columns)

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def __hash__(self) -> int:
        return hash((self.outcome, self.verdict, self.claim, self.logic))

    def __str__(self) -> str:
        lines = [f"{self.verdict}  ({self.claim}; logic: {self.logic})"]
        lines += [f"  {reason.check}: {reason.sentence}" for reason in self.reasons]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(reason.check)}</th><td>{escape(reason.sentence)}</td></tr>"
            for reason in self.reasons
        )
        return f"<p><b>{escape(self.verdict)}</b> {escape(self.claim)}</p><table>{rows}</table>"
