"""Runs a track: the claim as it stands, then the same experiment under every control; then one verdict."""

from __future__ import annotations

import contextlib
import math
import os
import random
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from walkback.core.canonical import plain
from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome, Reason, Verdict
from walkback.tracks.lab import Caught, Lab, Misreported, OnProgress, Skipped
from walkback.tracks.meter import Meter
from walkback.tracks.track import Control, Decision, IdentityGate, PositiveControl, Track, refuse_unwritable

PASS_ONLY = 50  # a track that did not pass scores less than this, whatever else went well


@dataclass(frozen=True)
class Arm:
    """What one pass through the experiment gave: of the claim itself, or under one control."""

    control: str | None
    reasons: tuple[Reason, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    told: Mapping[str, str] = field(default_factory=dict)
    skipped: str = ""
    error: str = ""
    trace: str = ""
    seconds: float = 0.0
    peak_mb: float | None = None

    @property
    def passes(self) -> bool:
        """Whether every check that was reached holds; a crash or a skipped pass is not one."""
        return bool(self.reasons) and not (self.error or self.skipped) and not self.missed

    @property
    def missed(self) -> Reason | None:
        """The first check that does not hold."""
        return next((reason for reason in self.reasons if reason.fires is not False), None)

    def to_dict(self) -> dict[str, Any]:
        return plain({name: getattr(self, name) for name in self.__dataclass_fields__})

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Arm:
        reasons = tuple(_restore_reason(reason) for reason in stored["reasons"])
        return cls(**{**stored, "reasons": reasons, "rows": tuple(stored["rows"])})


def run_track(track: Track, *, seed: int = 0, full: bool = False) -> Verdict:
    """All arms one after the other, in this process."""
    arms = [run_arm(track, control, seed=seed, full=full) for control in arms_of(track)]
    return judge(track, arms, seed=seed, full=full)


def arms_of(track: Track) -> list[str | None]:
    """The claim itself (None), then its controls."""
    return [None, *(control.name for control in track.all_controls)]


def run_arm(
    track: Track,
    control: str | None = None,
    *,
    seed: int = 0,
    full: bool = False,
    stop: bool | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> Arm:
    """One pass on one thread. A sabotage ends at the first check that catches it, unless `stop` is False.

    What comes back is what a file could hold: an arm that was stored and read again is the same.
    """
    sabotage = control in {item.name for item in track.controls}
    lab = Lab(
        track,
        seed=seed,
        full=full,
        control=control,
        stop=sabotage if stop is None else stop,
        on_progress=on_progress,
    )
    skipped = error = trace = ""
    with Meter() as meter, _quiet(lab.stream("everything else")):
        try:
            with _children_end_here():
                track.function(lab)
            if lab.unreported:
                raise Misreported(f"The experiment ended without reporting {lab.unreported[0]!r}.")
        except Caught:
            pass
        except Skipped as reason:
            skipped = _sound(str(reason))
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # sys.exit, and a test framework's skip, say nothing of a claim
            error, trace = _told(problem), _sound(traceback.format_exc())
    reasons, rows, told = tuple(lab.reasons), tuple(lab.rows), lab.told
    try:
        refuse_unwritable([reasons, rows, told], f"What track {track.id} reports")
    except BadInput as problem:
        reasons, rows, told, error = (), (), {}, error or str(problem)
    arm = Arm(
        control,
        reasons,
        rows,
        told,
        skipped,
        error,
        trace,
        meter.seconds,
        meter.peak_mb,
    )
    return Arm.from_dict(arm.to_dict())


def judge(track: Track, arms: Sequence[Arm], *, seed: int, full: bool) -> Verdict:
    """The verdict on a track from its arms; nothing is run."""
    claim, *controls = arms
    by_name = {arm.control: arm for arm in controls}
    judged = [_judge_control(control, by_name[control.name]) for control in track.all_controls]
    outcome, names, sentence = _outcome(track, claim, controls, judged)
    told = f"{outcome.value}({', '.join(names)})" if names else outcome.value
    reasons = (*claim.reasons, *judged)
    return Verdict(
        outcome=outcome,
        verdict=told,
        claim=track.claim,
        logic="track, full" if full else "track, quick",
        reasons=reasons,
        notes=(sentence,),
        evidence=plain(
            {
                "id": track.id,
                "name": track.name,
                "level": track.level["full" if full else "quick"],
                "mode": "full" if full else "quick",
                "seed": seed,
                "score": _score(track, outcome, reasons),
                "seconds": math.fsum(arm.seconds for arm in arms),
                "peak_mb": max((arm.peak_mb for arm in arms if arm.peak_mb is not None), default=None),
                "settings": track.settings(full),
                "experiment": track.words,
                "arms": track.arms,
                "rule": track.rule,
                "rows": claim.rows,
                "difference": claim.told.get("difference", ""),
                "interpretation": claim.told.get("interpretation", ""),
                "purpose": track.purpose,
                "limits": track.limits,
                "improve": track.improve,
            }
        ),
    )


def _outcome(
    track: Track, claim: Arm, controls: Sequence[Arm], judged: Sequence[Reason]
) -> tuple[Outcome, list[str], str]:
    """The outcome, the names of what decided it, and a sentence; the first case that applies."""
    if claim.skipped:
        return Outcome.SKIPPED, [], claim.skipped
    if claim.error:
        return Outcome.ERROR, [], f"The experiment raised {claim.error}"
    crashed = [arm for arm in controls if arm.error or arm.skipped]
    if crashed:
        first = crashed[0]
        return (
            Outcome.ERROR,
            [str(first.control)],
            f"A control that does not run to its end is no evidence: {first.control!r} raised "
            f"{first.error or first.skipped}",
        )
    sabotaged = [reason for reason in judged if reason.check == Control.title]
    blind = [reason for reason in sabotaged if reason.fires]
    if blind:
        return Outcome.FAIL, [reason.name for reason in blind], blind[0].sentence
    unread = [reason for reason in sabotaged if reason.fires is None]
    if unread:
        return Outcome.INCONCLUSIVE, [reason.name for reason in unread], unread[0].sentence
    return _outcome_of_claim(track, claim, judged)


def _outcome_of_claim(track: Track, claim: Arm, judged: Sequence[Reason]) -> tuple[Outcome, list[str], str]:
    """Gates before the positive controls, and those before the decision, which means nothing without."""
    found = {reason.name: reason for reason in claim.reasons}
    shut = [gate for gate in track.gates if found[gate.name].fires is not False]
    false = [gate for gate in shut if found[gate.name].fires and gate.otherwise is Outcome.FAIL]
    if shut:
        gates = false or shut
        return (
            Outcome.FAIL if false else Outcome.INCONCLUSIVE,
            [gate.name for gate in gates],
            found[gates[0].name].sentence,
        )
    dim = [reason for reason in judged if reason.check == PositiveControl.title and reason.fires]
    if dim:
        return Outcome.INCONCLUSIVE, [reason.name for reason in dim], dim[0].sentence
    refuted = [found[item.name] for item in track.decisions if found[item.name].fires]
    undecided = [found[item.name] for item in track.decisions if found[item.name].fires is None]
    if refuted or undecided:
        outcome = Outcome.FAIL if refuted else Outcome.INCONCLUSIVE
        decisive = refuted or undecided
        return outcome, [reason.name for reason in decisive], decisive[0].sentence
    deciding = {check.name for check in track.checks if isinstance(check, (Decision, IdentityGate))}
    if not any(reason.detail["caught_by"] in deciding for reason in judged):
        return (
            Outcome.INCONCLUSIVE,
            [],
            "The claim holds, but no sabotage reaches a decision: all are caught by gates. Nobody knows "
            "whether a decision could be missed.",
        )
    count = len(track.controls)
    told = "the control" if count == 1 else f"each of the {count} controls"
    return Outcome.PASS, [], f"The claim holds as it was stated beforehand, and fails under {told}."


def _judge_control(control: Control | PositiveControl, arm: Arm) -> Reason:
    """A sabotage fires if it passes; a positive control fires if it does not."""
    missed = arm.missed
    if arm.error or arm.skipped:
        fires, sentence = None, f"{control.name} raised {arm.error or arm.skipped}"
    elif isinstance(control, PositiveControl):
        fires = not arm.passes
        sentence = (
            f"It must pass when {control.holds}, and does not: {missed.sentence}"
            if missed
            else f"It passes when {control.holds}, as it must."
        )
    elif missed is not None and missed.status == "nan":
        fires = None
        sentence = f"No evidence: when {control.breaks}, {missed.name} is not a number."
    else:
        fires = arm.passes
        sentence = (
            f"When {control.breaks}, it is caught by {missed.name}: {missed.sentence}"
            if missed
            else f"This test cannot tell: it also passes when {control.breaks}."
        )
    return Reason(
        check=control.title,
        name=control.name,
        fires=fires,
        value=missed.value if missed else None,
        threshold=missed.threshold if missed else math.nan,
        sentence=sentence,
        status=missed.status if missed else "ok",
        detail={"caught_by": missed.name if missed else None},
    )


def _score(track: Track, outcome: Outcome, reasons: Sequence[Reason]) -> float | None:
    """100 × the weighted share of all declared checks and controls that went as they should."""
    if outcome is Outcome.SKIPPED:
        return None
    if outcome is Outcome.ERROR:
        return 0.0
    weights = {part.name: part.weight for part in (*track.checks, *track.all_controls)}
    held = math.fsum(weights[reason.name] for reason in reasons if reason.fires is False)
    share = round(100 * held / math.fsum(weights.values()), 1)
    return share if outcome is Outcome.PASS else min(share, PASS_ONLY - 1.0)


@contextlib.contextmanager
def _quiet(seed: int) -> Iterator[None]:
    """One thread and known global generators while an experiment runs; all is put back afterwards.

    Bits depend on the number of threads, and code that draws from a global generator on what ran before.
    """
    import torch
    from threadpoolctl import threadpool_limits

    threads, python, legacy = torch.get_num_threads(), random.getstate(), np.random.get_state()
    dtype, folder = torch.get_default_dtype(), Path.cwd()
    with torch.random.fork_rng(devices=[]), threadpool_limits(1):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            os.chdir(folder)
            random.setstate(python)
            np.random.set_state(legacy)


@contextlib.contextmanager
def _children_end_here() -> Iterator[None]:
    """A process that an experiment forks ends with it: it must not go on and answer in its place."""
    here, code = os.getpid(), 0
    try:
        yield
    except BaseException as problem:
        code = problem.code if isinstance(problem, SystemExit) and isinstance(problem.code, int) else 1
        raise
    finally:
        if os.getpid() != here:
            os._exit(code)


def _told(problem: BaseException) -> str:
    """`ValueError: … (line 12 of my_tracks.py)`."""
    frames = traceback.extract_tb(problem.__traceback__)
    where = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    return _sound(f"{type(problem).__name__}: {problem}{where}")


def _sound(text: str) -> str:
    """Text that UTF-8 can hold; an exception may quote half a character."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _restore_reason(stored: Mapping[str, Any]) -> Reason:
    interval = stored["interval"]
    return Reason(**{**stored, "interval": None if interval is None else tuple(interval)})
