"""Rules that change the transposed weight: closed forms, and the sham of feedback that is never used."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.conftest import ready_rule
from tests.rules.test_rules import gradients, relative
from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.measure.nulls import cosine_null
from walkback.rules import make_rule
from walkback.rules.transport import HEAD, key_of
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.store import Store

LAYERED = ("sign-symmetry", "sign-symmetry(form=frsf)", "kolen-pollack", "weight-mirror")


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    return math.degrees(
        math.acos(float(F.cosine_similarity(a.detach().flatten(), b.detach().flatten(), dim=0)))
    )


@pytest.mark.parametrize(
    ("form", "draw", "degrees"),
    [
        ("usf", torch.randn, math.degrees(math.acos(math.sqrt(2 / math.pi)))),
        ("usf", lambda *shape: 2 * torch.rand(*shape) - 1, math.degrees(math.acos(math.sqrt(3) / 2))),
        ("brsf", lambda *shape: 2 * torch.rand(*shape) - 1, math.degrees(math.acos(3 / 4))),
        ("frsf", lambda *shape: 2 * torch.rand(*shape) - 1, math.degrees(math.acos(3 / 4))),
    ],
)
def test_sign_symmetry_has_the_angle_of_its_closed_form(net, batch, form, draw, degrees):
    """37.1° for Gaussian weights, 30.0° for uniform ones; 41.4° with random sizes."""
    torch.manual_seed(0)
    linear = nn.Linear(400, 400)
    linear.weight.data = draw(400, 400)
    rule = make_rule(f"sign-symmetry(form={form})")
    if form == "frsf":
        rule.register_buffer(key_of("here"), torch.rand(400, 400))
    assert angle(rule.feedback("here", linear), linear.weight) == pytest.approx(degrees, abs=0.2)
    assert torch.equal(rule.feedback("here", linear).sign(), linear.weight.sign())


@pytest.mark.parametrize("name", LAYERED)
def test_credits_are_those_of_feedback_alignment_with_the_rules_matrices(net, batch, name):
    rule, oracle = ready_rule(name, net, *batch), ready_rule("fa", net, *batch)
    for path, linear in rule.layers(net).items():
        oracle.get_buffer(key_of(path)).copy_(rule.feedback(path, linear))
    trace = net.probe(*batch)
    for mine, expected in zip(rule.credits(trace), oracle.credits(trace), strict=True):
        assert relative(mine, expected) < 1e-12
    mine, expected = gradients(rule, net, *batch), gradients(oracle, net, *batch)
    assert all(torch.equal(mine[key], expected[key]) for key in expected)


def test_signs_follow_the_weights(net, batch):
    rule = ready_rule("sign-symmetry(form=frsf)", net, *batch)
    linear = net.model.blocks[0].fc1
    before = rule.feedback("blocks.0.fc1", linear).clone()
    linear.weight.data.neg_()
    assert torch.equal(rule.feedback("blocks.0.fc1", linear), -before)


def test_kolen_pollack_forgets_its_start_at_the_rate_of_the_decay(net, batch):
    rate, decay, steps = 0.01, 0.5, 40
    rule = ready_rule("kolen-pollack", net, *batch)
    trained = rule.trained(net)
    assert {key for key in trained if key.startswith("feedback_")} == {key_of(p) for p in rule.layers(net)}
    optimizer = torch.optim.AdamW(trained.values(), lr=rate, weight_decay=decay)
    apart = {p: (w.weight - rule.feedback(p, w)).detach().clone() for p, w in rule.layers(net).items()}
    first = {p: w.weight.detach().clone() for p, w in rule.layers(net).items()}
    for _ in range(steps):
        optimizer.zero_grad()
        rule.learn(rule.deposit_gradients(net, *batch))
        optimizer.step()
    for path, linear in rule.layers(net).items():
        left = linear.weight - rule.feedback(path, linear)
        assert relative(left.detach(), apart[path] * (1 - rate * decay) ** steps) < 1e-9
        assert relative(linear.weight.detach(), first[path]) > 0.05, "and the weights did move"


def test_a_weight_mirror_turns_to_the_weights_and_keeps_their_size(net, batch):
    torch.manual_seed(0)
    rule = ready_rule("weight-mirror(samples=256)", net, *batch)
    start = {p: angle(rule.feedback(p, w), w.weight) for p, w in rule.layers(net).items()}
    trace = net.probe(*batch)
    for _ in range(300):
        rule.learn(trace)
    for path, linear in rule.layers(net).items():
        found = rule.feedback(path, linear)
        assert start[path] > 45 and angle(found, linear.weight) < 8
        assert float(found.norm()) == pytest.approx(float(linear.weight.detach().norm()))


def test_drtp_sends_the_label_and_not_the_error(net, batch):
    x, y = batch
    rule, trace = ready_rule("drtp", net, x, y), net.probe(x, y)
    for layer, credit in enumerate(rule.credits(trace)):
        feedback = rule.get_buffer(f"feedback_{layer}")
        assert torch.equal(credit, torch.stack([feedback[label] for label in y]))
    other = net.probe(x + 1, y)
    assert all(torch.equal(a, b) for a, b in zip(rule.credits(trace), rule.credits(other), strict=True))


@pytest.mark.parametrize("name", ["kolen-pollack", "weight-mirror", "sign-symmetry(form=frsf)"])
def test_feedback_of_a_block_changes_the_gradients_below_it_and_no_others(net, batch, name):
    rule = ready_rule(name, net, *batch)
    before = gradients(rule, net, *batch)
    held = dict([*rule.named_parameters(), *rule.named_buffers()])
    held[key_of("blocks.1.fc2")].data.mul_(-1)
    after = gradients(rule, net, *batch)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    below = {key for key in before if key.startswith(("stem", "blocks.0", "blocks.1.ln", "blocks.1.fc1"))}
    assert changed == below


def test_the_head_sends_by_its_own_matrix(net, batch):
    rule = ready_rule("kolen-pollack", net, *batch)
    before = gradients(rule, net, *batch)
    rule.get_parameter(key_of(HEAD)).data.mul_(-1)
    after = gradients(rule, net, *batch)
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert same == {key for key in before if key.startswith(("out_", "head"))}


def test_learned_feedback_is_compared_with_shuffled_samples(net, batch):
    trace, generator = net.probe(*batch), torch.Generator().manual_seed(0)
    assert cosine_null(ready_rule("fa", net, *batch), trace, generator, 3).kind == "fresh feedback"
    for name in ("kolen-pollack", "weight-mirror", "sign-symmetry", "kolen-pollack+penalty(0.1)"):
        found = cosine_null(ready_rule(name, net, *batch), trace, generator, 3)
        assert found.kind == "shuffled samples", name


@pytest.mark.parametrize(
    "name",
    ["kolen-pollack", "weight-mirror", "sign-symmetry(form=brsf)", "dtp", "state-bridge", "credit-bridge"],
)
def test_a_rule_that_learns_or_draws_goes_on_to_the_same_bits(name, tmp_path):
    digits = load_dataset(Call("digits"))
    plan = {"net": "resmlp(width=8,depth=2,expansion=1)", "data": "digits", "dataset": digits}
    (spec,) = plan_runs(rules=[name], seeds=[1], epochs=3, **plan)

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.epoch == 2:
            raise Stopped

    with pytest.raises(Stopped):
        run_one(spec, digits, Store(tmp_path / "parts"), on_progress=stop)
    one = run_one(spec, digits, Store(tmp_path / "parts"))
    other = run_one(spec, digits, Store(tmp_path / "whole"))
    assert {n: one.read(n) for n in one.members()} == {n: other.read(n) for n in other.members()}
    last = one.arrays(one.checkpoint_epochs()[3])
    if name != "sign-symmetry(form=brsf)":
        first = one.arrays(one.checkpoint_epochs()[0])
        moved = [k for k in last if k.startswith("rule/") and not np.array_equal(first[k], last[k])]
        assert moved, "its feedback is saved, and has learned"
