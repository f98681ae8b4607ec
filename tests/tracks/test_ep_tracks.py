"""Tracks 9, 10, 15 and 22: each passes as it is, and every sabotage is caught where it should be."""

from __future__ import annotations

import math

import pytest
import torch

from walkback.core.verdict import Outcome
from walkback.nets.ep_kernel import EPKernel, LoopedKernel
from walkback.rules.ep import EP
from walkback.tracks import ep_identity, kernel_memory, tracks
from walkback.tracks.ep_gradient import ep_params
from walkback.tracks.runner import judge, run_arm
from walkback.train.kernel import Kernel

CAUGHT_BY = {
    9: {
        "sign flip": "energy form, β = 0.1",
        "no 1/β": "energy form, β = 0.1",
        "restart": "step states",
        "not at rest": "at rest",
        "noise for Wᵀ": "energy form, β = 0.1",
        "no bias gradient": "energy form, β = 0.1",
        "state difference": "energy form, β = 0.1",
        "frozen nudge": "nudge",
        "backprop in disguise": "graph",
        "backprop block by block": "energy form, order",
    },
    10: {
        "two points": "HopfieldMLP",
        "one-sided": "HopfieldMLP",
        "real part": "HopfieldMLP",
        "noise for Wᵀ": "HopfieldMLP",
        "unsettled": "HopfieldMLP",
        "lost in rounding": "above rounding",
    },
    15: {
        "states kept": "EP",
        "backprop in disguise": "EP",
        "nothing nudged": "EP gradient",
        "EP hoards": "EP",
        "credits at once": "DFA",
        "activations kept": "DFA",
        "DFA hoards": "DFA",
        "DFA idle": "DFA gradient",
        "BPTT cut": "BPTT grows",
        "BP cut": "BP grows",
    },
    22: {
        "backward × −7": "gradients",
        "no bias gradient": "gradients",
        "noise for Wᵀ": "gradients",
        "no 1/β": "gradients",
        "one phase twice": "gradients",
        "W transposed": "states",
        "no output bias": "output",
        "not at rest": "at rest",
        "steps forgotten": "autograd",
        "autograd inside": "saved",
    },
}


@pytest.mark.parametrize("number", CAUGHT_BY)
def test_the_claim_passes_as_it_is(number):
    arm = run_arm(tracks[str(number)])
    assert not arm.error, arm.trace
    assert arm.passes, arm.missed
    assert arm.rows and arm.told["difference"] and arm.told["interpretation"]


@pytest.mark.parametrize(
    ("number", "control"), [(number, control) for number, caught in CAUGHT_BY.items() for control in caught]
)
def test_each_sabotage_flips_the_verdict(number, control):
    arm = run_arm(tracks[str(number)], control)
    assert not arm.error, arm.trace
    assert not arm.passes and arm.missed.name == CAUGHT_BY[number][control]


@pytest.mark.parametrize("number", CAUGHT_BY)
def test_every_declared_sabotage_is_tested_here(number):
    assert [control.name for control in tracks[str(number)].controls] == list(CAUGHT_BY[number])


@pytest.mark.parametrize("number", [pytest.param(9, marks=pytest.mark.slow), 10, 15, 22])
def test_every_check_can_be_missed(number):
    """A check that no sabotage reaches has not been shown to be able to fail."""
    track = tracks[str(number)]
    arms = [run_arm(track, control.name, stop=False) for control in track.controls]
    assert not [arm.error for arm in arms if arm.error]
    missed = {reason.name for arm in arms for reason in arm.reasons if reason.fires is not False}
    assert missed == {check.name for check in track.checks}


@pytest.mark.parametrize("control", ["noise for Wᵀ", "no bias gradient"])
def test_a_sabotage_of_ep_is_caught_on_settling_nets_too(control):
    """The residual net comes first, and a sabotage would end there."""
    arm = run_arm(tracks["9"], control, stop=False)
    assert {"step weights", "equilibrium"} & {reason.name for reason in arm.reasons if reason.fires}


def test_backprop_in_place_of_either_form_has_no_order_in_beta():
    """Its error is far below what is asked for: an upper bound alone would let it pass."""
    arm = run_arm(tracks["9"], "backprop block by block", stop=False)
    found = {reason.name: reason for reason in arm.reasons}
    missed = {name for name, reason in found.items() if reason.fires}
    assert missed == {"energy form, order", "aep form, order"}
    assert found["energy form, β = 0.1"].value < 1e-12 and found["aep form, β = 0.1"].value < 1e-12


def test_a_credit_that_is_not_a_number_is_no_small_difference():
    """max() would drop a NaN that comes second."""

    class Lost(EP):
        def credits(self, trace):
            return [*super().credits(trace)[:-1], torch.full_like(trace.states[-1], float("nan"))]

    chain = ep_identity.identity_net(torch.Generator().manual_seed(0))
    assert math.isnan(ep_identity.gradient_error(Lost(**ep_params()), *chain))


# The kernel itself broken, not a copy of it.


def idle_dfa(patch):
    """What an earlier pass left in `.grad` is not the kernel's work."""
    patch.setattr(Kernel, "deposit_gradients", lambda self, x, y: x + 1)


def forgetful_dfa(patch):
    def forget(self, x, y):
        for parameter in self.net.model.parameters():
            parameter.grad = None

    patch.setattr(Kernel, "deposit_gradients", forget)


def hoarding(patch, kernel, constructor, count):
    original = getattr(kernel, constructor)

    def hoard(self, *given, **named):
        original(self, *given, **named)
        self.in_store = torch.empty(count(self), 64, 32)

    patch.setattr(kernel, constructor, hoard)


def hoarding_ep(patch):
    hoarding(patch, EPKernel, "__init__", lambda kernel: kernel.nudged)


def hoarding_dfa(patch):
    hoarding(patch, Kernel, "__post_init__", lambda kernel: kernel.net.depth)


def test_memory_that_grows_as_the_root_of_the_steps_is_not_in_proportion(monkeypatch):
    """At 30 times the steps a growth by 5 would be more than 3, and is far from 30."""
    steps, depths = (10, 300), tracks["15"].quick["depths"]
    monkeypatch.setattr(kernel_memory, "ep_step", lambda *_: (1000, 0.0))
    monkeypatch.setattr(kernel_memory, "bptt_step", lambda lab, name, count: round(1000 * count**0.5))
    arm = run_arm(tracks["15"].with_settings(steps=steps, depths=depths))
    assert not arm.error and arm.missed.name == "BPTT grows" and arm.missed.value < 0.2


@pytest.mark.parametrize(
    ("break_kernel", "missed"),
    [
        (idle_dfa, "DFA gradient"),
        (forgetful_dfa, "DFA gradient"),
        (hoarding_ep, "EP"),
        (hoarding_dfa, "DFA"),
    ],
)
def test_the_memory_of_a_broken_kernel_is_no_evidence(break_kernel, missed, monkeypatch):
    break_kernel(monkeypatch)
    arm = run_arm(tracks["15"])
    assert not arm.error, arm.trace
    assert not arm.passes and arm.missed.name == missed


@pytest.fixture(scope="module")
def golden_controls():
    """The controls of track 22 on the kernel as it is."""
    return [run_arm(tracks["22"], control.name) for control in tracks["22"].controls]


def times_minus_seven(patch):
    def feed_back(self, above, weight, onto):
        onto.addmm_(above, weight, alpha=-7)

    patch.setattr(EPKernel, "feed_back", feed_back)


def gradients_times_minus_seven(patch):
    original = EPKernel._weight_gradient
    patch.setattr(EPKernel, "_weight_gradient", lambda self, *given: original(self, *given).mul_(-7))


def without_biases(patch):
    original = EPKernel._bias_gradient
    patch.setattr(EPKernel, "_bias_gradient", lambda self, *given: original(self, *given).zero_())


def noise_for_the_transpose(patch):
    def feed_back(self, above, weight, onto):
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).to(weight)
        onto.addmm_(above, noise * weight.std())

    patch.setattr(LoopedKernel, "feed_back", feed_back)


def not_a_number(patch):
    """NaN is not a small difference."""
    original, nan = EPKernel._bias_gradient, float("nan")
    patch.setattr(EPKernel, "_bias_gradient", lambda self, *given: original(self, *given).fill_(nan))


@pytest.mark.parametrize(
    ("break_kernel", "outcome"),
    [
        (times_minus_seven, Outcome.FAIL),
        (gradients_times_minus_seven, Outcome.FAIL),
        (without_biases, Outcome.FAIL),
        (noise_for_the_transpose, Outcome.FAIL),
        (not_a_number, Outcome.INCONCLUSIVE),
    ],
)
def test_the_golden_reference_fails_a_broken_kernel(break_kernel, outcome, golden_controls, monkeypatch):
    track = tracks["22"]
    break_kernel(monkeypatch)
    verdict = judge(track, [run_arm(track), *golden_controls], seed=0, full=False)
    assert verdict.outcome is outcome
    assert verdict.evidence["score"] < 50


def test_the_golden_reference_shows_all_thirty_states():
    quantities = [row["quantity"] for row in run_arm(tracks["22"]).rows]
    assert quantities[:30] == [f"state {step}" for step in range(1, 31)] and "output" in quantities
    assert {"∂ stem.bias", "∂ blocks.0.recurrent.weight", "∂ out_head.bias"} <= set(quantities)
