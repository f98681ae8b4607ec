"""Equilibrium propagation against backprop: exact tests, and the mutations that must not survive them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from tests.rules.test_rules import gradients, relative
from walkback.core.errors import BadInput, NotApplicable
from walkback.core.spec import Call
from walkback.nets import Adapter, hopfield, looped
from walkback.nets.hopfield import EulerStep, HopfieldMLP
from walkback.nets.looped import LoopedMLP
from walkback.nets.resmlp import ResMLP
from walkback.nets.vit import ViT
from walkback.rules.bp import BP
from walkback.rules.ep import EP, Link

BETAS = (0.1, 0.05, 0.025)


def make_ep(kind=EP, **params) -> EP:
    call = Call("ep", params).with_defaults(EP.defaults, "rule")
    EP.check_choices(call)
    return kind(**EP.normalise(call.params))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (8,), generator=generator)


@pytest.fixture(params=["layer", "none"])
def net(request) -> Adapter:
    """Four blocks as they are drawn."""
    return fresh_net(request.param)


def fresh_net(terminal_norm: str = "layer") -> Adapter:
    torch.manual_seed(0)
    return Adapter(ResMLP(6, 4, depth=4, width=64, expansion=2, terminal_norm=terminal_norm).double())


@pytest.fixture(params=["layer", "none"])
def gentle(request) -> Adapter:
    """The error is O((β × curvature of C)²). Here C is gently curved, so that no β up to 0.4 is lowered:
    large states under a terminal norm, small logits without one.
    """
    net = fresh_net(request.param)
    net.model.stem.weight.data.mul_(6 if request.param == "layer" else 4)
    net.model.out_head.weight.data.mul_(1 if request.param == "layer" else 0.5)
    return net


def settling_net(kind: str) -> nn.Module:
    torch.manual_seed(0)
    net = HopfieldMLP(6, 4, depth=2, width=8) if kind == "hopfield" else LoopedMLP(6, 4, width=8)
    for parameter in net.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)
    return net.double()


def module_of(net: nn.Module):
    return hopfield if isinstance(net, HopfieldMLP) else looped


def settled_by_autograd(net: nn.Module, x, y, steps: int = 120):
    """Backprop through time over the net's own free phase."""
    drive = net.stem(x)
    h = torch.zeros_like(drive)
    for _ in range(steps):
        h = net.blocks[0](h, drive)
    loss = F.cross_entropy(net.out_head(h), y, reduction="sum")
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def equilibrium_error(net: nn.Module, x, y, beta: float, nudge: str) -> float:
    exact = settled_by_autograd(net, x, y)
    found = module_of(net).ep_gradients(net, x, y, beta, nudge, steps=120)
    assert found.keys() == exact.keys()
    learned_by_nudging = [name for name in exact if not name.startswith("out_")]
    return max(relative(found[name], exact[name]) for name in learned_by_nudging)


# The checks of the table. Each is used twice: on the code as it is, and on its mutations.


def check_free_residual(net: nn.Module, x) -> None:
    rest = module_of(net).settle_free(net, x, steps=200)
    assert relative(net.blocks[0](rest, net.stem(x)), rest) <= 1e-12


def check_gdu(net: HopfieldMLP, x, y, beta: float = 1e-4, steps: int = 12) -> None:
    """Ernoult et al. 2019, arXiv:1905.13633: nudged step t undoes step T − t of the free phase.

    `s_{t+1} − s_t = −step_size β ∂C/∂s_{T−t}`, and ∂E/∂θ changes by `β ∂C/∂θ_{T−t}`, θ_t being the
    weights as they were used in step t only.
    """
    rest = hopfield.settle_free(net, x, steps=200)
    states, weights = stepwise_autograd(net, x, y, rest, steps)
    up = hopfield.settle_nudged(net, x, y, rest, beta, steps)
    down = hopfield.settle_nudged(net, x, y, rest, -beta, steps)
    for t in range(steps):
        moved = ((up[t + 1] - up[t]) - (down[t + 1] - down[t])) / (2 * beta)
        assert relative(moved, -net.step.step_size * states[t]) <= 1e-6
        slopes = [hopfield.energy_slopes(net, x, s) for s in (up[t + 1], up[t], down[t + 1], down[t])]
        for name, exact in weights[t].items():
            a, b, c, d = (slope[name] for slope in slopes)
            found = (a - b - c + d) / (2 * beta)
            # The nudge needs a step per layer to arrive; until then both are nothing at all.
            assert relative(found, exact) <= 1e-6 if exact.any() else not found.any(), name


def stepwise_autograd(net, x, y, rest, steps):
    """∂C/∂s_{T−t} and ∂C/∂θ_{T−t} for t = 0 …, of a free phase of `steps` steps that stays at rest."""
    s, seen, used = rest.clone().requires_grad_(), [], []
    for _ in range(steps):
        copies = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
        drive = functional_call(net.stem, _under("stem.", copies), (x,))
        s = functional_call(net.step, _under("blocks.0.", copies), (s, drive))
        seen.insert(0, s)
        used.insert(0, copies)
    loss = F.cross_entropy(net.out_head(s), y, reduction="sum")
    states = torch.autograd.grad(loss, seen, retain_graph=True)
    weights = []
    for copies in used:
        found = torch.autograd.grad(loss, list(copies.values()), retain_graph=True)
        weights.append(dict(zip(copies, found, strict=True)))
    return states, weights


def _under(prefix, parameters):
    return {name.removeprefix(prefix): p for name, p in parameters.items() if name.startswith(prefix)}


def check_order(net: nn.Module, x, y, nudge: str, order: float, within: float) -> None:
    errors = [equilibrium_error(net, x, y, beta, nudge) for beta in BETAS]
    slope = math.log(errors[0] / errors[-1]) / math.log(BETAS[0] / BETAS[-1])
    assert slope == pytest.approx(order, abs=within)


def check_symmetric(net: nn.Module, x, y) -> None:
    assert equilibrium_error(net, x, y, 1e-3, "symmetric") <= 1e-5


def check_chain(net: Adapter, x, y, rule: EP, within: float) -> None:
    """Credits and parameter gradients of a residual chain against backprop's."""
    trace = net.probe(x, y)
    for layer, (credit, exact) in enumerate(zip(rule.credits(trace), trace.reference, strict=True)):
        assert relative(credit, exact) <= within, layer
    exact = gradients(BP(), net, x, y)
    for name, found in gradients(rule, net, x, y).items():
        assert relative(found, exact[name]) <= within, name


def check_nudge_follows_the_state(net: Adapter, x, y, rule: EP) -> None:
    """At every step the nudge is ∂C/∂s_L at the state of that step."""
    trace, seen = net.probe(x, y), []
    free, original = rule.start(trace), rule.cost_gradient
    rule.cost_gradient = lambda trace, top: seen.append((top, original(trace, top))) or seen[-1][1]
    rule.settle(trace, free, 0.1)
    assert len(seen) > 2
    for before, after in pairwise(seen[:-1]):
        assert not torch.equal(before[0], after[0])
        assert not torch.equal(before[1], after[1])
    for top, gradient in seen:
        h = top.detach().requires_grad_()
        loss = F.cross_entropy(net.model.out_head(net.model.out_ln(h)), y, reduction="sum")
        assert relative(gradient, torch.autograd.grad(loss, h)[0]) < 1e-9


# The table.


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_the_free_phase_comes_to_rest(kind, batch):
    check_free_residual(settling_net(kind), batch[0])


def test_the_forward_pass_is_the_free_minimum_of_the_energy(net, batch):
    trace = net.probe(*batch)
    for form in ("energy", "aep"):
        rule = make_ep(form=form)
        moved, residual = rule.settle(trace, rule.start(trace), 0.0)
        assert max(float(m.abs().max()) for m in moved) <= 1e-12
        assert residual <= 1e-12


def test_nudged_steps_are_the_gradients_of_backprop_through_time(batch):
    check_gdu(settling_net("hopfield"), *batch)


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
@pytest.mark.parametrize(
    ("nudge", "order", "within"), [("positive", 1, 0.1), ("symmetric", 2, 0.1), ("holomorphic", 4, 0.5)]
)
def test_the_equilibrium_gradient_has_the_order_of_its_nudge(kind, batch, nudge, order, within):
    check_order(settling_net(kind), *batch, nudge, order, within)


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_the_symmetric_equilibrium_gradient_is_that_of_backprop_through_time(kind, batch):
    check_symmetric(settling_net(kind), *batch)


@pytest.mark.parametrize(("beta", "within"), [(0.1, 1e-3), (0.01, 1e-4)])
def test_the_energy_form_gives_backprops_credits_and_gradients(gentle, batch, beta, within):
    rule = make_ep(beta=beta, reach=0)
    check_chain(gentle, *batch, rule, within)
    assert rule.converged


def test_aep_gives_backprops_credits_and_gradients_in_five_steps(gentle, batch):
    rule = make_ep(form="aep", beta=0.1, steps=5, reach=0)
    check_chain(gentle, *batch, rule, 1e-4)
    assert rule.converged


@pytest.mark.parametrize("form", ["energy", "aep"])
@pytest.mark.parametrize("beta", [0.1, 0.01])
def test_within_its_reach_the_same_holds_on_a_net_as_it_is_drawn(net, batch, form, beta):
    rule = make_ep(form=form, beta=beta)
    check_chain(net, *batch, rule, 1e-4)
    assert rule.converged


def test_within_its_reach_the_same_holds_on_the_default_net():
    torch.manual_seed(0)
    net, x = Adapter(ResMLP(64, 10).double()), torch.randn(16, 64, dtype=torch.float64)
    check_chain(net, x, torch.arange(16) % 10, make_ep(), 1e-4)


@pytest.mark.parametrize(
    ("params", "order", "within"),
    [({"nudge": "positive"}, 1, 0.1), ({}, 2, 0.1), ({"holomorphic": 4}, 4, 0.5)],
)
@pytest.mark.parametrize("form", ["energy", "aep"])
def test_the_credits_of_a_chain_have_the_order_of_their_nudge(gentle, batch, form, params, order, within):
    trace, errors, betas = gentle.probe(*batch), [], (0.4, 0.2)
    for beta in betas:
        rule = make_ep(form=form, beta=beta, steps=25, reach=0, **params)
        errors.append(relative(rule.credits(trace)[1], trace.reference[1]))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=within)


@pytest.mark.parametrize("form", ["energy", "aep"])
def test_the_nudge_follows_the_state(net, batch, form):
    check_nudge_follows_the_state(net, *batch, make_ep(form=form))


# Mutations of the rule on a residual chain.


class SignFlip(EP):
    def nudges(self, beta):
        return [(near, -weight) for near, weight in super().nudges(beta)]


class MissingBeta(EP):
    def nudges(self, beta):
        return [(near, weight * abs(near)) for near, weight in super().nudges(beta)]


class RandomBack(EP):
    """Feedback through a random matrix where Jᵀ belongs."""

    def link(self, trace, layer, below):
        link = Link(trace, layer, below)
        width = below.shape[1]
        drawn = torch.randn(width, width, generator=torch.Generator().manual_seed(layer)).to(below)
        link.pull = lambda v: v + v @ drawn / width**0.5
        return link


class MissingBias(EP):
    def deposit_gradients(self, net, x, y):
        trace = super().deposit_gradients(net, x, y)
        for name, parameter in net.model.named_parameters():
            if name.startswith("blocks") and name.endswith("bias"):
                parameter.grad.zero_()
        return trace


class StateDifference(EP):
    def settle(self, trace, free, beta):
        errors, residual = super().settle(trace, free, beta)
        states = [free.states[0] + errors[0]]
        for layer in range(1, trace.depth + 1):
            states.append(trace.block(layer, states[-1]).detach() + errors[layer])
        return [s - h for s, h in zip(states, free.states, strict=True)], residual


class FrozenNudge(EP):
    def cost_gradient(self, trace, top):
        return super().cost_gradient(trace, trace.states[-1])


@pytest.mark.parametrize("form", ["energy", "aep"])
@pytest.mark.parametrize("mutant", [SignFlip, MissingBeta, RandomBack, MissingBias])
def test_a_mutated_rule_is_caught(net, batch, mutant, form):
    with pytest.raises(AssertionError):
        check_chain(net, *batch, make_ep(mutant, form=form), 1e-3)


def test_the_state_difference_is_caught_as_a_credit_of_the_energy_form(net, batch):
    with pytest.raises(AssertionError):
        check_chain(net, *batch, make_ep(StateDifference, beta=0.01), 1e-3)


@pytest.mark.parametrize("form", ["energy", "aep"])
def test_a_nudge_frozen_at_the_free_state_is_caught(net, batch, form):
    """By its structure: its credits are right as β → 0, and indeed pass the check of credits."""
    frozen = make_ep(FrozenNudge, form=form, beta=0.01)
    check_chain(net, *batch, frozen, 1e-3)
    with pytest.raises(AssertionError):
        check_nudge_follows_the_state(net, *batch, frozen)


# Mutations of the settling nets.


def flip_the_sign(patch, module):
    original = hopfield.slope_at_zero
    patch.setattr(module, "slope_at_zero", lambda f, beta, kind: _scaled(original(f, beta, kind), -1))


def forget_beta(patch, module):
    original = hopfield.slope_at_zero
    patch.setattr(module, "slope_at_zero", lambda f, beta, kind: _scaled(original(f, beta, kind), beta))


def restart_from_zero(patch, module):
    original = module.settle_nudged

    def restarted(net, x, y, start, beta, steps):
        return original(net, x, y, torch.zeros_like(start), beta, min(steps, 20))

    patch.setattr(module, "settle_nudged", restarted)


def send_back_through_random_weights(patch, module):
    def feedback(above, weight):
        drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
        return above @ (drawn * weight.real.std()).to(weight)

    patch.setattr(looped, "feedback", feedback)
    patch.setattr(EulerStep, "feedback", lambda self, above, weight: feedback(above, weight))


def forget_the_biases(patch, module):
    original = module.ep_gradients

    def without(*given, **named):
        return {name: g * (not name.endswith("bias")) for name, g in original(*given, **named).items()}

    patch.setattr(module, "ep_gradients", without)


def _scaled(found, factor):
    return {name: factor * gradient for name, gradient in found.items()}


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
@pytest.mark.parametrize(
    "mutate",
    [flip_the_sign, forget_beta, restart_from_zero, send_back_through_random_weights, forget_the_biases],
)
def test_a_mutated_settling_net_is_caught(kind, batch, mutate, monkeypatch):
    net = settling_net(kind)
    mutate(monkeypatch, module_of(net))
    with pytest.raises(AssertionError):
        check_symmetric(net, *batch)


def test_random_feedback_breaks_the_gradient_descending_updates(batch, monkeypatch):
    send_back_through_random_weights(monkeypatch, hopfield)
    with pytest.raises(AssertionError):
        check_gdu(settling_net("hopfield"), *batch)


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_the_nudge_of_a_settling_net_follows_the_state(kind, batch, monkeypatch):
    net, (x, y), seen = settling_net(kind), batch, []
    original = hopfield.cost_gradient
    module = module_of(net)
    monkeypatch.setattr(module, "cost_gradient", lambda s, y: seen.append(s) or original(s, y))
    states = module.settle_nudged(net, x, y, module.settle_free(net, x), 0.1, steps=6)
    for logits, state in zip(seen, states[:-1], strict=True):
        assert torch.equal(logits, net.out_head(state).detach())
    assert all(not torch.equal(a, b) for a, b in pairwise(seen))


# The rule in the house.


def deep_cosine(credits, exact) -> float:
    both = zip(credits[1:], exact[1:], strict=True)
    return float(torch.stack([F.cosine_similarity(a, g).mean() for a, g in both]).mean().detach())


def test_few_steps_of_descent_are_unconverged_and_point_nowhere(net, batch):
    trace = net.probe(*batch)
    rule = make_ep(solver="gd")
    assert abs(deep_cosine(rule.credits(trace), trace.reference)) < 0.15
    assert not rule.converged and rule.readings() == {"settling.residual@1": rule.residual}


def test_many_steps_of_descent_are_the_solved_rule(batch):
    torch.manual_seed(0)
    net = Adapter(ResMLP(6, 4, depth=2, width=16, expansion=2, terminal_norm="none").double())
    trace, rule = net.probe(*batch), make_ep(solver="gd", steps=400, rate=0.25)
    credits = rule.credits(trace)
    assert rule.residual < 1e-4
    for credit, exact in zip(credits, trace.reference, strict=True):
        assert relative(credit, exact) < 0.02, "one-sided, so O(β)"


def test_the_drift_of_few_steps_has_a_random_sign_in_training_and_one_sign_in_diagnosis(net, batch):
    """Divided by β, what the states would do anyway points one way for +β and the other for −β."""
    trace, rule = net.probe(*batch), make_ep(solver="gd")
    first = rule.credits(trace)[2]
    assert all(torch.equal(first, rule.credits(trace)[2]) for _ in range(4))
    torch.manual_seed(0)
    drawn = torch.stack([rule.training_credits(trace)[2] for _ in range(12)]).flatten(1)
    against = F.cosine_similarity(drawn, first.reshape(1, -1))
    assert against.min() < -0.9 and against.max() > 0.99


def test_no_rate_makes_descent_run_away(net, batch):
    """E is curved like (1 + ‖J‖)², so that a plain step of this rate would grow without bound."""
    for block in net.model.blocks:
        block.fc1.weight.data.mul_(5)
        block.fc2.weight.data.mul_(5)
    trace, rule = net.probe(*batch), make_ep(solver="gd", steps=50, rate=1.0)
    pairs = zip(rule.start(trace).states, trace.states, strict=True)
    assert max(float(s.norm() / h.detach().norm()) for s, h in pairs) < 51


def test_reach_bounds_how_far_a_nudge_moves_the_states_of_any_row(net, batch):
    trace = net.probe(*batch)
    pairs = list(zip(trace.reference, trace.states, strict=True))
    slow = max(
        sum(float(g[row].norm() / h[row].detach().norm()) for g, h in pairs) for row in range(len(batch[0]))
    )
    for reach in (1e-3, 1e-2):
        rule = make_ep(beta=0.5, reach=reach)
        assert rule.largest_nudge(rule.start(trace)) == pytest.approx(reach / slow)
    for params in ({"beta": 1e-5}, {"beta": 0.5, "reach": 0}):
        rule = make_ep(**params)
        assert rule.largest_nudge(rule.start(trace)) == params["beta"], "a small nudge is left alone"


def test_reach_looks_at_each_token_for_a_norm_magnifies_the_small_ones():
    """The class token begins fifty times smaller than the patches, and LN makes up for it."""
    torch.manual_seed(0)
    net = Adapter(ViT(64, 5, depth=2, width=16, heads=2).double())
    trace = net.probe(torch.randn(8, 64), torch.arange(8) % 5)
    plain, within = make_ep(reach=0), make_ep()
    plain.credits(trace)
    credits = within.credits(trace)
    assert not plain.converged and within.converged
    assert max(relative(a, g) for a, g in zip(credits, trace.reference, strict=True)) < 1e-3


@pytest.mark.parametrize("form", ["energy", "aep"])
@pytest.mark.parametrize("beta", [1e-2, 1e-5])
def test_credits_in_float32_are_those_in_float64(batch, form, beta):
    """ε is carried from block to block, not taken as a difference of states; aep leaves rounding out."""
    rough, precise = Adapter(fresh_net().model.float()).probe(*batch), fresh_net().probe(*batch)
    found, exact = (make_ep(form=form, beta=beta).credits(trace) for trace in (rough, precise))
    assert max(relative(a.double(), g) for a, g in zip(found, exact, strict=True)) < 1e-5


def test_before_its_first_use_a_rule_has_not_converged():
    rule = make_ep()
    assert math.isnan(rule.residual) and not rule.converged


def test_too_few_steps_of_aep_are_unconverged(net, batch):
    rule = make_ep(form="aep", steps=3)
    credits = rule.credits(net.probe(*batch))
    assert not credits[0].any() and rule.residual > 0.3


def test_training_and_diagnosis_give_the_same_credits(net, batch):
    rule = make_ep()
    training = rule.training_credits(net.trace(*batch, "cut"))
    for mine, probed in zip(training, rule.credits(net.probe(*batch)), strict=True):
        assert torch.equal(mine, probed)


class NormedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(16), nn.Linear(16, 16)

    def forward(self, h):
        return h + self.fc(self.norm(h)).tanh()


def test_settling_does_not_count_in_batch_statistics(batch):
    torch.manual_seed(0)
    model = ResMLP(6, 4, depth=2, width=16)
    model.blocks = nn.ModuleList(NormedBlock() for _ in range(2))
    net = Adapter(model.double())
    make_ep().deposit_gradients(net, *batch)
    once = model.blocks[0].norm.running_mean.clone()
    assert int(model.blocks[0].norm.num_batches_tracked) == 1
    make_ep(form="aep").credits(net.trace(*batch, "cut"))
    assert int(model.blocks[0].norm.num_batches_tracked) == 2 and model.blocks[0].norm.track_running_stats
    assert not torch.equal(once, model.blocks[0].norm.running_mean)


def test_a_net_with_something_between_its_blocks_is_not_applicable(batch):
    class Between(ResMLP):
        def forward(self, x):
            h = self.stem(x)
            for block in self.blocks:
                h = block(2 * h)
            return self.out_head(h)

    trace = Adapter(Between(6, 4, depth=2, width=8).double()).probe(*batch)
    with pytest.raises(NotApplicable, match="between the blocks"):
        make_ep().credits(trace)


@pytest.mark.parametrize(
    "params",
    [
        {"form": "hopfield"},
        {"beta": 0.0},
        {"steps": -1},
        {"reach": -0.1},
        {"holomorphic": 3},
        {"holomorphic": 4, "nudge": "positive"},
        {"holomorphic": 4, "nudge": "random"},
        {"form": "aep", "solver": "gd"},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(params):
    with pytest.raises(BadInput):
        make_ep(**params)


# The nets in the house: their forward pass is the free phase, block by block.


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_backprop_of_a_settling_net_is_backprop_through_time(kind, batch):
    net = Adapter(settling_net(kind))
    exact = settled_by_autograd(net.model, *batch, steps=30)
    for name, found in gradients(BP(), net, *batch).items():
        assert relative(found * len(batch[1]), exact[name]) < 1e-12, name
    assert net.probe(*batch).contiguous


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_shared_weights_are_saved_once_and_belong_to_the_blocks(kind):
    net = settling_net(kind)
    assert len(net.state_dict()) == len(list(net.parameters()))
    assert all(name.startswith("blocks.0.") for name in Adapter(net).block_parameters())
    assert Adapter(net).block_parameters()


def test_spectral_norm_bounds_the_loop(batch):
    torch.manual_seed(0)
    net = LoopedMLP(6, 4, width=8, spectral_norm=True).double()
    assert float(torch.linalg.matrix_norm(net.recurrent.weight, 2).detach()) == pytest.approx(1)
    net.recurrent.parametrizations.weight.original.data.mul_(50)
    assert float(torch.linalg.matrix_norm(net.recurrent.weight, 2).detach()) == pytest.approx(1)
    net(batch[0]).sum().backward()
    assert net.recurrent.parametrizations.weight.original.grad.any()


@pytest.mark.parametrize(
    "make", [lambda: HopfieldMLP(6, 4, depth=0), lambda: HopfieldMLP(6, 4, step_size=2.0)]
)
def test_a_hopfield_net_that_makes_no_sense_is_refused(make):
    with pytest.raises(BadInput):
        make()


def test_a_looped_net_needs_two_steps():
    with pytest.raises(BadInput):
        LoopedMLP(6, 4, steps=1)


def settled(kind: str, steps: int = 60, **options) -> Adapter:
    """The settling net with another number of steps."""
    torch.manual_seed(0)
    maker = {"hopfield": HopfieldMLP, "looped": LoopedMLP}[kind]
    return Adapter(maker(6, 4, width=8, steps=steps, **options).double())


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_the_rule_on_a_settling_net_is_the_classical_one(kind, batch):
    net, rule = settled(kind), make_ep(beta=1e-3)
    classical = module_of(net.model).ep_gradients(net.model, *batch, beta=1e-3)
    exact = gradients(BP(), net, *batch)
    for name, found in gradients(rule, net, *batch).items():
        if not name.startswith("out_"):
            assert relative(found * len(batch[1]), classical[name]) < 1e-5, name
        assert relative(found, exact[name]) < 1e-5, name
    assert rule.converged


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_a_nudged_step_is_the_credit_of_as_many_steps_before_rest(kind, batch):
    trace = settled(kind).probe(*batch)
    credits = make_ep(beta=1e-3).credits(trace)
    for layer in range(trace.depth, trace.depth - 12, -1):
        assert relative(credits[layer], trace.reference[layer]) < 1e-4, layer


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_steps_that_were_not_taken_give_no_credit(kind, batch):
    rule, trace = make_ep(steps=2), settled(kind).probe(*batch)
    credits = rule.credits(trace)
    assert [bool(a.any()) for a in credits] == [False] * (trace.depth - 1) + [True] * 2
    assert not rule.converged, "the nudge is still travelling"


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_a_free_phase_that_was_cut_short_is_unconverged(kind, batch):
    rule = make_ep()
    rule.credits(settled(kind, steps=2).probe(*batch))
    assert not rule.converged


@pytest.mark.parametrize("kind", ["hopfield", "looped"])
def test_random_feedback_is_caught_in_the_rule_too(kind, batch, monkeypatch):
    net = settled(kind)
    exact = gradients(BP(), net, *batch)
    send_back_through_random_weights(monkeypatch, module_of(net.model))
    found = gradients(make_ep(), net, *batch)
    assert max(relative(found[name], exact[name]) for name in exact if not name.startswith("out_")) > 0.01


def test_a_settling_net_is_not_descended_by_another_solver(batch):
    with pytest.raises(NotApplicable, match="steps of its own"):
        make_ep(solver="gd").credits(settled("looped").probe(*batch))
