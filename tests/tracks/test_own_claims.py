"""The tracks that audit walkback's own README: each holds, and each sabotage is caught where it should."""

from __future__ import annotations

import numpy as np
import pytest

from walkback.core.verdict import Outcome
from walkback.tracks import calibration, cosine, dfa_cost, exact_proxy, reference_validity, resume
from walkback.tracks.lab import Lab
from walkback.tracks.runner import run_arm
from walkback.tracks.track import Track

SMALL = {
    "cosine": {"rows": 50, "width": 16},
    "reference": {"steps": 250, "width": 16},
    "exact-proxy": {"tables": 1, "n": 110},
    "calibration": {"tables": 6, "with_effect": 6},
    "dfa-cost": {"rounds": 8, "width": 384, "depth": 5, "batch": 128},
    "resume": {"epochs": 5},
}
CAUGHT = {
    "cosine": {
        "clamped": "worst",
        "no rescaling": "worst",
        "dead rows count": "dead",
        "one scale": "scales",
        "one cosine": "spread",
    },
    "reference": {
        "mean-reduced": "moves",
        "error kept": "fitting",
        "never exploded": "swallowed",
        "both exploded": "sound",
        "not fitted": "fit",
    },
    "exact-proxy": {"gate off": "caught", "copies carry news": "caught", "always a proxy": "news"},
    "calibration": {"linear only": "false", "never sure": "power", "loss unseen": "false"},
    "dfa-cost": {"backprop instead": "ratio", "backprop as well": "ratio", "blocks skipped": "gradients"},
    "resume": {"moments lost": "differ", "one bit": "differ", "left alone": "cut"},
}
OWN = (cosine, reference_validity, exact_proxy, calibration, dfa_cost, resume)
TIMED = ("dfa-cost", "backprop instead")  # its margin is five hundredths: for an idle machine, not a test


@pytest.fixture
def small(request, monkeypatch) -> Track:
    track = request.param.track
    monkeypatch.setattr(track, "quick", SMALL[track.id])
    return track


@pytest.mark.parametrize("small", OWN, indirect=True, ids=lambda module: module.track.id)
def test_the_claim_holds(small):
    arm = run_arm(small)
    assert arm.passes, arm.error or arm.missed


@pytest.mark.parametrize(
    ("small", "control"),
    [(m, c.name) for m in OWN for c in m.track.controls if (m.track.id, c.name) != TIMED],
    indirect=["small"],
    ids=lambda value: value if isinstance(value, str) else value.track.id,
)
def test_each_sabotage_is_caught_where_it_should_be(small, control):
    arm = run_arm(small, control)
    assert not arm.error, arm.trace
    assert arm.missed is not None and arm.missed.name == CAUGHT[small.id][control]


@pytest.mark.parametrize(
    ("check", "found", "tables", "fires"),
    [
        ("false", 3, 40, False),
        ("false", 8, 40, None),
        ("false", 20, 40, True),
        ("power", 15, 16, False),
        ("power", 3, 3, None),
        ("power", 2, 16, True),
    ],
)
def test_a_rate_is_shown_by_its_interval_not_by_a_test_that_fails_to_reject(check, found, tables, fires):
    """Three hits of three do not show that half are found; a p value of 1 would have passed."""
    lab = Lab(calibration.track)
    calibration.report_share(lab, check, found, tables)
    assert lab.reasons[0].fires is fires


@pytest.mark.parametrize("fold", [np.square, np.abs, lambda loss: np.sin(20 * loss)])
def test_a_copy_that_is_not_monotone_is_left_open_as_the_limits_say(fold):
    """Not called a proxy, so the claim does not speak of it; nor is it certified."""
    frame = exact_proxy._table(np.random.default_rng(0), 120, 0.0)
    frame["m"] = fold(frame["loss"].to_numpy())
    assert exact_proxy._outcome(Lab(exact_proxy.track), frame) is Outcome.INCONCLUSIVE
    assert "monotone" in exact_proxy.track.claim and "INCONCLUSIVE" in exact_proxy.track.limits
