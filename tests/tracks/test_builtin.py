"""walkback's own tracks: each claim passes, and every one of its sabotages is caught where it should be.

By default they run on a fraction of their settings; the slow tests run them as `walkback verify` does.
"""

from __future__ import annotations

import pytest

from walkback.core.verdict import Outcome
from walkback.tracks import Track
from walkback.tracks.find import find_tracks
from walkback.tracks.runner import run_arm

SMALL = {
    1: {"seeds": 1, "epochs": 3, "steps": 10},
    2: {"seeds": 2, "items": 12_800, "epochs": 1, "batch": 128, "lr": 5e-3},
    3: {"seeds": 1, "epochs": 3, "steps": 10},
    6: {"seeds": 1, "epochs": 8},
}
CAUGHT_BY = {
    (1, "norm left out"): "bounded",
    (1, "norm dropped"): "bounded",
    (1, "loop vanishes"): "kept",
    (1, "twin normalised"): "twin grows",
    (1, "no learning"): "both learn",
    (1, "other weights"): "same start",
    (1, "looked away"): "twin grows",
    (2, "no nudge"): "gradients",
    (2, "sign flip"): "gradients",
    (2, "no nudged steps"): "gradients",
    (2, "frozen nudge"): "nudge",
    (2, "drift"): "free state",
    (2, "few small steps"): "settled",
    (2, "backprop in disguise"): "graph",
    (2, "shuffled labels"): "room",
    (2, "no learning"): "room",
    (2, "other centres"): "room",
    (2, "answer shown"): "not saturated",
    (2, "few test items"): "held out",
    (2, "frozen blocks"): ("above chance", "above frozen", "parity"),  # what EP teaches a stem varies
    (2, "fewer steps"): "parity",
    (3, "no learning"): "learned",
    (3, "saturated"): "alive",
    (3, "never applied"): "applied",
    (3, "loop cut"): "felt",
    (3, "norm left out"): "never grows",
    (3, "weights scaled"): "never grows",
    (3, "renewed"): "never grows",
    (6, "B unused"): "B is used",
    (6, "B is W"): "unaligned at first",
    (6, "B redrawn"): "grows",
    (6, "another B"): "grows",
    (6, "no learning"): "learned",
}


def named(track_id: int, control: str) -> tuple[str, ...]:
    found = CAUGHT_BY[track_id, control]
    return (found,) if isinstance(found, str) else found


MINE = [track for track in find_tracks() if track.id in SMALL]


def small(track_id: int) -> Track:
    return next(track for track in MINE if track.id == track_id).with_settings(**SMALL[track_id])


def test_every_track_has_two_sabotages_at_least_and_says_what_it_shows():
    for track in find_tracks():
        assert len(track.controls) >= 2, track.id
        assert track.claim and track.purpose and track.limits and track.improve and track.words


def test_every_sabotage_of_these_tracks_is_in_the_table():
    assert {(t.id, c.name) for t in MINE for c in t.controls} == set(CAUGHT_BY)


@pytest.mark.parametrize("track_id", SMALL)
def test_the_claim_passes(track_id):
    arm = run_arm(small(track_id))
    assert arm.passes, arm.error or arm.missed


@pytest.mark.parametrize(("track_id", "control"), CAUGHT_BY)
def test_each_sabotage_flips_the_verdict(track_id, control):
    arm = run_arm(small(track_id), control)
    assert not arm.error and not arm.passes
    assert arm.missed.name in named(track_id, control), arm.missed


@pytest.mark.slow
@pytest.mark.parametrize("track", MINE, ids=[str(track.id) for track in MINE])
@pytest.mark.parametrize("seed", [0, 1])
def test_as_it_is_run_every_track_passes(track, seed):
    verdict = track.run(seed=seed)
    assert verdict.outcome is Outcome.PASS, str(verdict)
    for control in track.controls:
        caught = next(r.detail["caught_by"] for r in verdict.reasons if r.name == control.name)
        assert caught in named(track.id, control.name)


@pytest.mark.slow
@pytest.mark.parametrize("control", ["no nudge", "sign flip", "no nudged steps", "frozen blocks"])
def test_a_sabotaged_ep_misses_more_than_the_gate_that_catches_it(control):
    """With the first gate blind, a later one still sees it."""
    missed = [r.name for r in run_arm(small(2), control, stop=False).reasons if r.fires is not False]
    assert "parity" in missed and len(missed) > 1
