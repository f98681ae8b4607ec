"""Difference targets: the formula, decoders that learn to invert, and nothing else learning from them."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import ready_rule
from tests.rules.test_rules import relative
from walkback.core.errors import BadInput
from walkback.rules import resolve_rule


def test_targets_follow_the_formula(net, batch):
    rule, trace = ready_rule("dtp", net, *batch), net.probe(*batch)
    h, g = [s.detach() for s in trace.states], trace.reference[-1]
    size = g.norm(dim=1, keepdim=True)
    step = 0.1 * h[3].norm(dim=1, keepdim=True)
    t3 = h[3] - step * g / size
    t2 = h[2] + rule.decoder_2(t3) - rule.decoder_2(h[3])
    t1 = h[1] + rule.decoder_1(t2) - rule.decoder_1(h[2])
    t0 = h[0] + rule.decoder_0(t1) - rule.decoder_0(h[1])
    for mine, state, target in zip(rule.credits(trace), h, (t0, t1, t2, t3), strict=True):
        assert relative(mine, ((state - target) * size / step).detach()) < 1e-12
    assert relative(rule.credits(trace)[-1], g) < 1e-12, "the top credit is the exact gradient"


def test_exact_inverses_of_linear_maps_give_gauss_newton_targets(net, batch):
    """With a decoder that is the identity, every credit is the top one: what skips alone would send."""
    rule, trace = ready_rule("dtp", net, *batch), net.probe(*batch)
    for layer in range(3):
        torch.nn.init.zeros_(rule.get_submodule(f"decoder_{layer}").up.weight)
    credits = rule.credits(trace)
    for credit in credits[:-1]:
        assert relative(credit, credits[-1]) < 1e-10


def test_decoders_learn_to_undo_their_blocks(net, batch):
    torch.manual_seed(0)
    rule, trace = ready_rule("dtp", net, *batch), net.probe(*batch)

    def misses() -> list[float]:
        pairs = [(trace.states[l].detach(), trace.states[l + 1].detach()) for l in range(3)]  # noqa: E741
        decoders = [rule.get_submodule(f"decoder_{layer}") for layer in range(3)]
        return [
            relative(d(above).detach(), below) for d, (below, above) in zip(decoders, pairs, strict=True)
        ]

    before = misses()
    optimizer = torch.optim.AdamW(rule.parameters(), lr=3e-3)
    for _ in range(300):
        rule.learn(trace)
        optimizer.step()
    assert all(after < before_ / 2 for after, before_ in zip(misses(), before, strict=True))
    assert all(parameter.grad is None for parameter in net.model.parameters())


@pytest.mark.parametrize("name", ["dtp(step=0.0)", "dtp(width=0)", "dtp(noise=-1.0)"])
def test_a_step_noise_or_width_that_is_not_positive_is_refused(name):
    with pytest.raises(BadInput, match="positive"):
        resolve_rule(name)
