"""The bridges (ours): DFA first, then the gradient of what they predict; and that they learn."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import ready_rule
from tests.rules.test_rules import relative

BOTH = ("state-bridge", "state-bridge(residual=true)", "credit-bridge")


@pytest.mark.parametrize("name", BOTH)
def test_dfa_leads_the_first_fifth_of_training(net, batch, name):
    rule, trace = ready_rule(name, net, *batch), net.probe(*batch)
    rule.begin_step(0.19)
    assert all(torch.equal(a, b) for a, b in zip(rule.credits(trace), rule.dfa.credits(trace), strict=True))
    rule.begin_step(0.2)
    assert not torch.equal(rule.credits(trace)[1], rule.dfa.credits(trace)[1])


def test_a_state_bridge_sends_the_gradient_of_its_predictions_loss(net, batch):
    x, y = batch
    rule, trace = ready_rule("state-bridge", net, x, y), net.probe(x, y)
    rule.begin_step(1.0)
    for layer, credit in enumerate(rule.credits(trace)):
        h = trace.states[layer].detach().requires_grad_()
        guess = rule.bridge(h, layer / 3, trace.error)
        losses = F.cross_entropy(net.model.out_head(net.model.out_ln(guess)), y, reduction="none")
        (slow,) = torch.autograd.grad(losses.sum(), h)
        assert relative(credit, slow) < 1e-12


def test_a_residual_state_bridge_that_adds_nothing_sends_the_read_outs_gradient(net, batch):
    rule, trace = ready_rule("state-bridge(residual=true)", net, *batch), net.probe(*batch)
    rule.begin_step(1.0)
    torch.nn.init.zeros_(rule.bridge.last.weight)
    torch.nn.init.zeros_(rule.bridge.last.bias)
    assert relative(rule.credits(trace)[-1], trace.reference[-1]) < 1e-10


def test_a_credit_bridge_learns_the_loss_and_its_gradient_at_the_top(net, batch):
    torch.manual_seed(0)
    rule, trace = ready_rule("credit-bridge", net, *batch), net.probe(*batch)
    rule.begin_step(1.0)
    before = relative(rule.credits(trace)[-1], trace.reference[-1])
    optimizer = torch.optim.AdamW(rule.bridge.parameters(), lr=3e-3)
    slow = rule.get_buffer("slow_last_weight").clone()
    for _ in range(300):
        rule.learn(trace)
        optimizer.step()
    assert relative(rule.credits(trace)[-1], trace.reference[-1]) < min(0.5, before / 2)
    assert not torch.equal(slow, rule.get_buffer("slow_last_weight")), "the slow copy follows"
    assert all(parameter.grad is None for parameter in net.model.parameters())


def test_a_state_bridge_learns_to_predict_the_last_state(net, batch):
    torch.manual_seed(0)
    rule, trace = ready_rule("state-bridge", net, *batch), net.probe(*batch)
    before = float(rule.loss(trace).detach())
    optimizer = torch.optim.AdamW(rule.bridge.parameters(), lr=3e-3)
    for _ in range(200):
        rule.learn(trace)
        optimizer.step()
    assert float(rule.loss(trace).detach()) < before / 4
