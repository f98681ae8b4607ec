"""PEPITA by its definition; the perturbation rules against the gradient they estimate, jointly."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2

from tests.conftest import ready_rule
from tests.rules.test_rules import gradients, relative
from walkback.core.errors import BadInput
from walkback.rules import resolve_rule


def joint_p(rule, net, batch, draws: int = 300, factor: float = 1.0) -> float:
    """p of: on every layer ⟨a, g⟩/‖g‖² is 1 on average, tested together over samples and draws."""
    trace = net.probe(*batch)
    torch.manual_seed(7)
    found = []
    for _ in range(draws):
        credits = rule.training_credits(trace)
        found.append(
            torch.stack(
                [
                    factor * (a * g).sum(1) / g.square().sum(1)
                    for a, g in zip(credits, trace.reference, strict=True)
                ]
            )
        )
    values = torch.cat(found, dim=1)  # [layer, draw × sample]
    means, covariance = values.mean(1) - 1, torch.cov(values) / values.shape[1]
    return float(chi2.sf(float(means @ torch.linalg.solve(covariance, means)), len(means)))


def test_forward_gradient_is_unbiased_and_the_test_would_see_a_tenth(net, batch):
    rule = ready_rule("forward-gradient", net, *batch)
    assert joint_p(rule, net, batch) > 1e-3
    assert joint_p(rule, net, batch, factor=1.2) < 1e-3


def test_node_perturbation_agrees_with_backprop_at_a_small_step_and_not_at_a_large_one(net, batch):
    assert joint_p(ready_rule("node-perturbation", net, *batch), net, batch) > 1e-3
    coarse = ready_rule("node-perturbation(sigma=2.0)", net, *batch)
    assert joint_p(coarse, net, batch) < 1e-3, "the bias grows with sigma²"


def test_the_slope_is_the_directional_derivative(net, batch):
    rule, trace = ready_rule("forward-gradient", net, *batch), net.probe(*batch)
    states = [h.detach() for h in trace.states]
    directions = [torch.randn_like(h) for h in states]
    slope = rule.rise(trace, states, directions)
    expected = sum((g * v).sum(1) for g, v in zip(trace.reference, directions, strict=True))
    assert relative(slope, expected) < 1e-10
    near = ready_rule("node-perturbation(sigma=1e-5)", net, *batch).rise(trace, states, directions)
    assert relative(near, expected) < 1e-5


@pytest.mark.parametrize("name", ["forward-gradient", "node-perturbation"])
def test_an_estimate_can_be_measured_again_and_is_drawn_anew_in_training(net, batch, name):
    rule, trace = ready_rule(name, net, *batch), net.probe(*batch)
    assert all(torch.equal(a, b) for a, b in zip(rule.credits(trace), rule.credits(trace), strict=True))
    one, two = rule.training_credits(trace), rule.training_credits(trace)
    assert not any(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_more_draws_come_closer(net, batch):
    trace = net.probe(*batch)
    errors = []
    for draws in (1, 64):
        rule = ready_rule(f"forward-gradient(draws={draws})", net, *batch)
        errors.append(relative(rule.credits(trace)[1], trace.reference[1]))
    assert errors[1] < errors[0] / 4


def test_pepita_is_the_difference_of_two_passes_and_learns_on_the_second(net, batch):
    x, y = batch
    rule, trace = ready_rule("pepita", net, x, y), net.probe(x, y)
    second = net.probe(x + trace.error @ rule.get_buffer("feedback"), y)
    branches = [[t.states[index + 1] - t.states[index] for index in range(3)] for t in (trace, second)]
    expected = [trace.states[0] - second.states[0], *(a - b for a, b in zip(*branches, strict=True))]
    for mine, slow in zip(rule.credits(trace), expected, strict=True):
        assert relative(mine.detach(), slow.detach()) < 1e-12
    found = gradients(rule, net, x, y)
    block, below = net.model.blocks[1], second.states[1].detach()
    names, parameters = zip(*block.named_parameters(), strict=True)
    local = torch.autograd.grad(((block(below) - below) * expected[2].detach()).sum() / len(y), parameters)
    for name, gradient in zip(names, local, strict=True):
        assert relative(found[f"blocks.1.{name}"], gradient) < 1e-12
    flat = (x + trace.error @ rule.get_buffer("feedback")).flatten(1)
    assert relative(found["stem.weight"], expected[0].detach().T @ flat / len(y)) < 1e-12


def test_pepitas_feedback_reaches_every_block_and_not_the_head(net, batch):
    rule = ready_rule("pepita", net, *batch)
    before = gradients(rule, net, *batch)
    rule.get_buffer("feedback").mul_(-1)
    after = gradients(rule, net, *batch)
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert same == {key for key in before if key.startswith("out_")}


@pytest.mark.parametrize("name", ["forward-gradient(draws=0)", "node-perturbation(sigma=0.0)"])
def test_estimators_without_a_draw_or_a_step_are_refused(name):
    with pytest.raises(BadInput):
        resolve_rule(name)
