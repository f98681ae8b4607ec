"""What decides a track: gates, decisions and controls, each in its turn; and nothing else."""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tracks.coin import coin, toss
from walkback.core.canonical import plain
from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome
from walkback.tracks import Control, Decision, Gate, IdentityGate, PositiveControl
from walkback.tracks.lab import Lab, Misreported, compare
from walkback.tracks.runner import Arm, run_arm


def verdict_of(track):
    verdict = track.run()
    return verdict.outcome, verdict.verdict, " ".join(verdict.notes)


def test_a_claim_that_holds_and_whose_sabotages_fail_passes_with_a_full_score():
    verdict = coin().run()
    assert verdict.outcome is Outcome.PASS and verdict.evidence["score"] == 100
    caught = {r.name: r.detail["caught_by"] for r in verdict.reasons if r.check == "control"}
    assert caught == {"loaded": "share", "lost": "tosses"}


def test_a_claim_that_does_not_hold_fails():
    outcome, words, told = verdict_of(coin(toss(share=0.6, silver=0.5)))
    assert (outcome, words) == (Outcome.FAIL, "FAIL(share)") and "Share of heads" in told


def test_a_track_that_also_passes_under_a_sabotage_fails_and_says_so():
    outcome, words, told = verdict_of(coin(toss(loaded=0.5)))
    assert (outcome, words) == (Outcome.FAIL, "FAIL(loaded)")
    assert told == "This test cannot tell: it also passes when the coin is loaded."


def test_a_sabotage_that_is_never_applied_is_found_out():
    idle = coin(controls=[*coin().controls, Control("idle", "nothing is done about this")])
    assert verdict_of(idle)[1] == "FAIL(idle)"


def test_a_missed_gate_is_inconclusive_and_a_missed_identity_gate_fails():
    assert verdict_of(coin(toss(count=50)))[:2] == (Outcome.INCONCLUSIVE, "INCONCLUSIVE(tosses)")
    assert verdict_of(coin(toss(sides=3)))[:2] == (Outcome.FAIL, "FAIL(sides)")


def test_without_its_gates_a_decision_is_not_looked_at():
    assert verdict_of(coin(toss(count=50, share=0.9, silver=0.9)))[1] == "INCONCLUSIVE(tosses)"


def test_a_positive_control_that_fails_leaves_the_track_inconclusive():
    outcome, words, told = verdict_of(coin(toss(silver=0.8)))
    assert (outcome, words) == (Outcome.INCONCLUSIVE, "INCONCLUSIVE(silver)") and "must pass" in told
    assert verdict_of(coin(toss(share=0.6, silver=0.8)))[1] == "INCONCLUSIVE(silver)"


def test_a_positive_control_may_leave_out_what_it_cannot_meet():
    def experiment(lab):
        """Only the coin on trial has sides."""
        lab.report("tosses", 0 if lab.under("lost") else 1000)
        lab.report("sides", 3 if lab.under("silver") else 2)
        lab.report("share", 0.7 if lab.under("loaded") else 0.5)

    without = PositiveControl("silver", "the coin is of silver", without=("sides",))
    assert verdict_of(coin(experiment, positive=[without]))[0] is Outcome.PASS
    assert verdict_of(coin(experiment))[1] == "INCONCLUSIVE(silver)"


def raises(control):
    def before(lab):
        if lab.control == control:
            raise ValueError("no coin in the house")

    return before


def test_a_track_that_raises_is_an_error_with_no_score():
    verdict = coin(toss(before=raises(None))).run()
    assert (verdict.outcome, verdict.outcome.exit_code, verdict.evidence["score"]) == (Outcome.ERROR, 1, 0)
    assert "ValueError: no coin in the house (line" in verdict.notes[0]


@pytest.mark.parametrize("control", ["loaded", "silver"])
def test_a_control_that_raises_is_no_evidence(control):
    outcome, words, told = verdict_of(coin(toss(before=raises(control))))
    assert (outcome, words) == (Outcome.ERROR, f"ERROR({control})") and "no evidence" in told


def test_a_control_that_cannot_be_run_is_no_evidence_either():
    def before(lab):
        if lab.under("loaded"):
            lab.skip("no loaded coin at hand")

    assert verdict_of(coin(toss(before=before)))[0] is Outcome.ERROR


def test_missing_data_skips_a_track_with_the_reason_and_no_score():
    verdict = coin(toss(before=lambda lab: lab.skip("There is no purse."))).run()
    assert verdict.outcome is Outcome.SKIPPED and verdict.notes == ("There is no purse.",)
    assert verdict.evidence["score"] is None


def reporting(*values):
    def experiment(lab):
        """Report what is given."""
        for name, value in values:
            lab.report(name, value)

    return experiment


def test_a_check_that_is_missing_doubled_or_unknown_is_an_error():
    right = [("tosses", 200), ("sides", 2), ("share", 0.5)]
    for values, words in (
        (right[:2], "without reporting 'share'"),
        ([*right, ("share", 0.5)], "reports 'share' twice"),
        ([("tails", 0.5), *right], "no check 'tails'"),
    ):
        outcome, _, told = verdict_of(coin(reporting(*values)))
        assert outcome is Outcome.ERROR and words in told


def test_an_experiment_cannot_ask_for_a_control_that_was_not_declared():
    with pytest.raises(Misreported, match="no control 'loded'"):
        Lab(coin()).under("loded")


def test_lines_of_a_table_have_the_same_columns():
    lab = Lab(coin())
    lab.row(a=1)
    with pytest.raises(Misreported):
        lab.row(b=1)


@pytest.mark.parametrize(
    ("value", "interval", "fires", "status"),
    [
        (0.0, None, False, "ok"),
        (1.0, None, False, "ok"),
        (1.0001, None, True, "ok"),
        (math.nan, None, None, "nan"),
        (math.inf, None, True, "inf"),
        (-math.inf, None, True, "inf"),
        (0.0, (-0.5, 0.5), False, "ok"),
        (0.9, (0.5, 1.1), None, "open"),
        (1.4, (0.9, 1.9), None, "open"),
        (2.0, (1.5, 2.5), True, "ok"),
        (0.0, (math.nan, 0.5), None, "nan"),
        (0.0, (-0.5, math.nan), None, "nan"),
        (math.nan, (-0.5, 0.5), None, "nan"),
        (0.0, (-math.inf, math.inf), None, "open"),
    ],
)
def test_a_number_is_compared_with_its_bounds(value, interval, fires, status):
    reason = compare(Decision("d", "A number", at_least=-1, at_most=1), value, interval)
    assert (reason.fires, reason.status) == (fires, status)


def test_nan_never_passes_whatever_the_bound():
    for check in (Gate("g", "G", at_most=1e300), Decision("d", "D", at_least=-1e300)):
        assert compare(check, math.nan).fires is None
    nan = coin(reporting(("tosses", math.nan), ("sides", 2), ("share", 0.5)))
    assert not run_arm(nan).passes
    nan = coin(reporting(("tosses", 200), ("sides", 2), ("share", math.nan)), controls=coin().controls)
    assert nan.run().outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_number_never_holds_whatever_the_bound(value):
    for check in (Gate("g", "G", at_most=3), Decision("d", "D", at_least=2)):
        reason = compare(check, value)
        assert (reason.fires, reason.status) == (True, "inf")


def test_the_score_is_the_weighted_share_of_all_that_was_declared():
    declared = coin(positive=[])
    few = reporting(("tosses", 50), ("sides", 2), ("share", 0.5))
    missed = [replace(declared.gates[0], weight=11.0), declared.gates[1]]
    # Of 15 in all: the other gate, the decision and two controls, which the missed gate catches.
    assert coin(few, gates=missed, positive=[]).run().evidence["score"] == round(100 * 4 / 15, 1)
    # A passing track keeps its share, any other is cut off below one half.
    assert coin(toss(sides=3)).run().evidence["score"] == 49.0


def test_every_draw_is_a_function_of_track_seed_and_purpose_but_not_of_the_control():
    draws = {
        key: Lab(track, seed=seed, control=control).rng("a").random()
        for key, track, seed, control in (
            ("plain", coin(), 0, None),
            ("control", coin(), 0, "loaded"),
            ("seed", coin(), 1, None),
            ("track", coin(id="other"), 0, None),
        )
    }
    assert draws["plain"] == draws["control"] and len(set(draws.values())) == 3
    assert Lab(coin()).rng("a").random() != Lab(coin()).rng("b").random()


def test_an_experiment_leaves_the_global_generators_and_threads_as_they_were():
    def draw(lab):
        """Draw from everything."""
        told = (torch.rand(1).item(), np.random.random(), random.random(), torch.get_num_threads())
        lab.row(torch=told[0], numpy=told[1], python=told[2], threads=told[3])
        for name, value in (("tosses", 200), ("sides", 2), ("share", 0.5)):
            lab.report(name, value)

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    alone = (torch.rand(1).item(), np.random.random(), random.random())
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    torch.set_num_threads(2)
    try:
        one = run_arm(coin(draw))
        assert one.rows[0]["threads"] == 1 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    after = (torch.rand(1).item(), np.random.random(), random.random())
    assert after == alone and one.rows == run_arm(coin(draw)).rows


def test_an_arm_that_was_written_and_read_again_is_the_same():
    arm = run_arm(coin(), "loaded")
    again = Arm.from_dict(json.loads(json.dumps(arm.to_dict())))
    assert again == arm and again.missed.name == "share"


def test_a_sabotage_ends_where_it_is_caught_and_can_be_asked_to_go_on():
    assert [r.name for r in run_arm(coin(), "lost").reasons] == ["tosses"]
    assert [r.name for r in run_arm(coin(), "loaded", stop=False).reasons] == ["tosses", "sides", "share"]
    assert [r.name for r in run_arm(coin(toss(count=50))).reasons] == ["tosses", "sides", "share"]


def test_time_and_memory_are_measured():
    arm = run_arm(coin())
    assert 0 < arm.seconds < 60 and (arm.peak_mb is None or arm.peak_mb > 10)


def test_a_peak_of_memory_is_seen():
    def hungry(lab):
        """Hold 300 MB for a moment."""
        if not lab.control:
            np.ones(300 * 2**20 // 8).sum()
        toss()(lab)

    arms = [run_arm(coin(hungry), control) for control in (None, "loaded")]
    if arms[0].peak_mb is None:
        pytest.skip("this system does not say")
    assert arms[0].peak_mb > 300 and arms[1].peak_mb < arms[0].peak_mb - 200


def test_the_evidence_says_what_was_done():
    verdict = coin().run(seed=3, full=True)
    known = plain(verdict.to_dict())["evidence"]
    assert known["mode"] == "full" and known["level"] == "directional" and known["seed"] == 3
    assert (
        known["settings"] == {"tosses": 100_000} and known["experiment"] == "Toss a coin and count heads."
    )
    assert known["rows"][0]["tosses"] == 100_000 and known["difference"] == "A difference."
    assert known["rule"] == "Share of heads: from 0.45 to 0.55."


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"decisions": []}, "decides nothing"),
        ({"controls": []}, "no control that must fail"),
        ({"gates": [Gate("share", "Again", at_most=1)]}, "'share' twice"),
        ({"level": {"quick": "smoke"}}, "quick and full can show"),
        ({"level": {"quick": "smoke", "full": "proof"}}, "quick and full can show"),
        ({"full": {}}, "one mode only"),
        ({"positive": [PositiveControl("p", "p", without=("sharp",))]}, "no check 'sharp'"),
        ({"positive": [PositiveControl("p", "p", without=("share",))]}, "nothing is decided"),
        ({"controls": [Control("c", "c", weight=0)]}, "weight"),
    ],
)
def test_a_track_that_could_not_fail_is_refused(changed, words):
    with pytest.raises(BadInput, match=words):
        coin(**changed)


@pytest.mark.parametrize("bounds", [{}, {"at_most": math.nan}, {"at_least": 2, "at_most": 1}])
def test_a_check_without_a_bound_is_refused(bounds):
    with pytest.raises(BadInput, match="no bound"):
        IdentityGate("g", "G", **bounds)


def test_a_track_has_one_experiment_with_words():
    with pytest.raises(BadInput, match="two experiments"):
        coin().experiment(toss())
    with pytest.raises(BadInput, match="docstring"):
        coin(lambda lab: None)


def test_other_settings_are_shown_and_unknown_ones_refused():
    assert coin().with_settings(tosses=200).run().evidence["settings"] == {"tosses": 200}
    with pytest.raises(BadInput, match="'throws'"):
        coin().with_settings(throws=1)


def test_a_value_that_lies_close_to_its_bound_is_shown_in_full():
    check = Decision("d", "L", at_most=1.0001)
    assert "1.00009999" in compare(check, 1.00009999).sentence
    assert "0.123" in compare(check, 0.12345).sentence
    assert "L: 7, but" in compare(check, 7.0).sentence


def test_an_interval_from_high_to_low_is_an_error():
    def experiment(lab: Lab) -> None:
        """Report it the wrong way round."""
        lab.report("tosses", 1000)
        lab.report("share", 0.5, (1.0, 0.0))

    outcome, _, told = verdict_of(coin(experiment))
    assert outcome is Outcome.ERROR and "from high to low" in told


def test_a_track_cannot_be_skipped_once_a_number_is_known():
    def experiment(lab: Lab) -> None:
        """Skip what does not please."""
        lab.report("tosses", 5)
        lab.skip("no purse")

    outcome, _, told = verdict_of(coin(experiment))
    assert outcome is Outcome.ERROR and "skips after it has reported 'tosses'" in told


@pytest.mark.parametrize("way_out", [SystemExit, pytest.skip.Exception])
def test_leaving_by_the_back_door_is_an_error(way_out):
    def leave(lab: Lab) -> None:
        if lab.under("loaded"):
            raise way_out("gone")

    outcome, words, told = verdict_of(coin(toss(before=leave)))
    assert (outcome, words) == (Outcome.ERROR, "ERROR(loaded)") and "gone" in told


def test_without_a_sabotage_that_reaches_a_decision_nothing_is_shown():
    def experiment(lab: Lab) -> None:
        """Toss a coin that nobody ever loads."""
        lab.report("tosses", 0 if lab.under("lost") else 1000)
        lab.report("sides", 2)
        lab.report("share", 0.5)

    gated = coin(experiment, controls=[Control("lost", "the coin is never tossed")], positive=[])
    outcome, _, told = verdict_of(gated)
    assert outcome is Outcome.INCONCLUSIVE and "no sabotage reaches a decision" in told


def test_a_sabotage_that_only_gives_nan_is_no_evidence():
    def experiment(lab: Lab) -> None:
        """Divide by zero under a sabotage."""
        lab.report("tosses", 0 if lab.under("lost") else 1000)
        lab.report("sides", 2)
        lab.report("share", math.nan if lab.under("loaded") else 0.5)

    outcome, words, told = verdict_of(coin(experiment))
    assert (outcome, words) == (Outcome.INCONCLUSIVE, "INCONCLUSIVE(loaded)")
    assert told == "No evidence: when the coin is loaded, share is not a number."


def test_an_experiment_cannot_change_the_settings_of_its_controls():
    def change(lab: Lab) -> None:
        lab.settings["tosses"] = 1

    assert verdict_of(coin(toss(before=change)))[0] is Outcome.ERROR
    track = coin(quick={"tosses": 10_000, "list": [1]}, full={"tosses": 1, "list": [1]})
    Lab(track).settings["list"].append(2)
    assert track.quick["list"] == [1]


def test_an_experiment_leaves_the_default_dtype_and_the_folder_as_they_were(tmp_path):
    def wander(lab: Lab) -> None:
        torch.set_default_dtype(torch.float64)
        os.chdir(tmp_path)

    here = Path.cwd()
    run_arm(coin(toss(before=wander)))
    assert torch.get_default_dtype() is torch.float32 and Path.cwd() == here


@pytest.mark.parametrize("cell", [{1, 2}, len, np.zeros(3), torch.zeros(2), "half a \ud800 character"])
def test_what_cannot_be_written_down_is_an_error_of_its_track(cell):
    outcome, _, told = verdict_of(coin(toss(before=lambda lab: lab.row(tosses=cell, heads=0))))
    assert outcome is Outcome.ERROR and "cannot be written down" in told
    with pytest.raises(BadInput, match="its settings cannot be written down"):
        coin(quick={"tosses": 10, "odd": cell}, full={"tosses": 10, "odd": cell})


def test_only_texts_are_told_and_declared():
    outcome, _, told = verdict_of(coin(toss(before=lambda lab: lab.tell(difference=3.5))))
    assert outcome is Outcome.ERROR and "not a text" in told
    with pytest.raises(BadInput, match="its claim is not a text"):
        coin(claim=7)


def test_a_report_cannot_move_its_own_bounds():
    def experiment(lab: Lab) -> None:
        """Write a bound of one's own beside the number."""
        lab.report("tosses", 1000, at_least=-5)

    (reason,) = run_arm(coin(experiment), stop=False).reasons
    assert reason.detail["at_least"] == 100
