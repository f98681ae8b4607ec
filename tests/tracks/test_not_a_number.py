"""NaN in one seed or in one batch is never the smallest number, nor the largest: it holds nowhere."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from walkback.core.spec import Call
from walkback.nets import Adapter
from walkback.nets.mlp import MLP
from walkback.rules import make_rule
from walkback.rules.ep import EP
from walkback.tracks import alignment, decay, dfa_cost, ep_identity, reference_validity, spectral_norm
from walkback.tracks.alignment import _rank_p
from walkback.tracks.ep_gradient import ep_params
from walkback.tracks.runner import run_arm

NAN = math.nan


def turns(*values):
    """A function that gives these values, one at each call."""
    given = iter(values)
    return lambda *_, **__: next(given)


def lost_in_one_batch(patch):
    """D2 on the second of three batch sizes, for both nets."""
    read = reference_validity._read

    def lost(net, x, y, name):
        return NAN if len(y) == 128 and name == "validity" else read(net, x, y, name)

    patch.setattr(reference_validity, "_read", lost)
    return reference_validity.track.with_settings(steps=250, width=16), {"sound", "swallowed", "moves"}


def cosines(patch, before, after):
    patch.setattr(alignment, "_agreement", turns(*before, *after))
    patch.setattr(alignment, "_train", turns(90.0, 90.0))
    patch.setattr(alignment, "_null", lambda *_: torch.zeros(alignment.DRAWS))
    return alignment.track.with_settings(seeds=2)


def lost_after_training(patch):
    return cosines(patch, (0.0, 0.0), (0.5, NAN)), {"grows", "beyond chance"}


def lost_before_training(patch):
    return cosines(patch, (0.0, NAN), (0.5, 0.5)), {"unaligned at first", "grows"}


def lost_feedback(patch):
    patch.setattr(alignment, "_change_with_b", turns(0.9, NAN))
    return cosines(patch, (0.0, 0.0), (0.5, 0.5)), {"B is used"}


def lost_curve(patch):
    patch.setattr(
        spectral_norm,
        "_trained",
        turns(([1.0, 1.0], 90.0), ([1.0, 3.0], 90.0), ([1.0, NAN, 1.0], 90.0), ([1.0, NAN], NAN)),
    )
    return spectral_norm.track.with_settings(seeds=2), {"bounded", "twin grows", "both learn"}


def lost_distances(patch):
    follow = decay._follow

    def lost(lab, net, seed, arm):
        found = follow(lab, net, seed, arm)
        return replace(found, distances=found.distances * NAN) if seed else found

    patch.setattr(decay, "_follow", lost)
    patch.setattr(decay, "train_loop", turns(90.0, 90.0))
    return decay.track.with_settings(seeds=2), {"felt", "never grows", "decays"}


@pytest.mark.parametrize(
    "lose",
    [
        lost_in_one_batch,
        lost_after_training,
        lost_before_training,
        lost_feedback,
        lost_curve,
        lost_distances,
    ],
)
def test_a_number_that_is_lost_once_is_not_passed_over(lose, monkeypatch):
    track, checks = lose(monkeypatch)
    arm = run_arm(track)
    assert not arm.error, arm.trace
    assert checks <= {reason.name for reason in arm.reasons if reason.status == "nan"}


def test_nan_has_no_rank():
    null = torch.zeros(alignment.DRAWS)
    assert _rank_p(0.5, null) == 1 / 200
    assert math.isnan(_rank_p(NAN, null))
    assert math.isnan(_rank_p(0.5, torch.cat([null[1:], torch.tensor([NAN])])))


def test_a_state_that_is_lost_without_a_nudge_is_no_small_movement():
    class Lost(EP):
        def settle(self, trace, free, beta):
            moved, residual = super().settle(trace, free, beta)
            return [*moved[:-1], moved[-1] * NAN], residual

    chain = ep_identity.identity_net(torch.Generator().manual_seed(0))
    assert math.isnan(ep_identity.free_residual(Lost(**ep_params()), *chain))


def test_a_gradient_of_dfa_that_is_lost_is_no_small_difference():
    model, rule = MLP(6, 4, depth=3, width=8), make_rule(Call.parse("dfa(form=layer)"))
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 0])
    rule.setup(Adapter(model).probe(x, y), torch.Generator().manual_seed(0))
    last = list(Adapter(model).blocks)[-1]
    for parameter in last.parameters():
        parameter.grad = torch.full_like(parameter, NAN)
    assert math.isnan(dfa_cost._off(model, rule, x, y))
