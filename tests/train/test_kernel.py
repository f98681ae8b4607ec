"""The hand-written pass against the rule's own autograd pass: every rule, form, penalty and net."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.conftest import ready_rule
from walkback.nets import Adapter
from walkback.nets.mlp import MLP
from walkback.nets.near_identity import NearIdentityMLP
from walkback.nets.resmlp import ResMLP
from walkback.rules import make_rule
from walkback.tracks.allocations import Allocations
from walkback.train.kernel import Kernel, depositor, fits

RULES = (
    "bp",
    "fa",
    "fa(form=block)",
    "dfa",
    "dfa(form=layer)",
    "dfa(skip=sum)",
    "dfa(form=layer,skip=sum)",
    "frozen",
    "frozen(stem=dfa)",
    "shallow",
    "ladder(k=2)",
    "sign-symmetry",
    "sign-symmetry(form=frsf)",
    "kolen-pollack",
    "weight-mirror",
    "drtp",
    "forward-gradient",
    "node-perturbation(sigma=0.01)",
    "dfa+offset(label)+penalty(0.3)",
    "dfa+offset(reuse)+normalise+penalty(0.3)",
    "dfa+normalise(batch)",
    "mixed(blocks=dfa,stem=bp)",
    "mixed(blocks=bp,stem=dfa)",
    "dose(cosine=0.4,noise=fixed)",
    "bp+penalty(0.3)",
    "dfa+penalty(0.3)",
    "dfa+penalty(weight=0.3,over=mean)",
    "fa(form=block)+penalty(0.3)",
    "ladder(k=1)+penalty(0.3)",
)
NETS = {
    "resmlp": lambda: ResMLP(12, 5, depth=3, width=16, expansion=2),
    "without terminal norm": lambda: ResMLP(12, 5, depth=3, width=16, expansion=2, terminal_norm="none"),
    "one block": lambda: ResMLP(12, 5, depth=2, width=16, expansion=1),
    "near the identity": lambda: NearIdentityMLP(12, 5, depth=3, width=16),
    "mlp": lambda: MLP(12, 5, depth=3, width=16),
}


def net_of(name: str, dtype: torch.dtype) -> Adapter:
    torch.manual_seed(3)
    net = Adapter(NETS[name]().to(dtype))
    for parameter in net.model.parameters():  # no gradient is zero for a reason of initialisation
        parameter.data += 0.1 * torch.randn_like(parameter)
    return net


def both(name: str, rule_name: str, dtype: torch.dtype, *, lean: bool = False):
    """(name, by hand, by autograd) for every trained parameter, and the two traces."""
    net = net_of(name, dtype)
    x, y = torch.randn(7, 3, 4, dtype=dtype), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    rule = ready_rule(rule_name, net, x, y)
    trained = rule.trained(net)
    for key, parameter in net.model.named_parameters():
        parameter.requires_grad_(key in trained)
    torch.manual_seed(5)  # for rules that draw: the same draws in both passes
    theirs = rule.deposit_gradients(net, x, y)
    trained = {
        key: p for key, p in trained.items() if p.grad is not None
    }  # the model's, not the rule's own
    slow = {key: p.grad.clone() for key, p in trained.items()}
    for parameter in net.model.parameters():
        parameter.grad = None
    assert fits(net, rule)
    kernel = Kernel(net, rule, lean=lean)
    kernel.deposit_gradients(torch.randn(9, 3, 4, dtype=dtype), torch.zeros(9, dtype=torch.long))
    torch.manual_seed(5)
    mine = kernel.deposit_gradients(x, y)
    untouched = [
        key for key, p in net.model.named_parameters() if key not in trained and p.grad is not None
    ]
    assert not untouched
    return [(key, p.grad, slow[key]) for key, p in trained.items()], mine, theirs


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("rule", RULES)
def test_gradients_by_hand_equal_those_of_the_rules_own_pass(rule, name, lean):
    if rule.startswith("ladder") and "one block" in name:
        rule = rule.replace("k=2", "k=1")
    pairs, mine, theirs = both(name, rule, torch.float64, lean=lean)
    assert pairs
    for key, fast, slow in pairs:
        assert float((fast - slow).norm() / slow.norm().clamp_min(1e-30)) < 1e-11, key
    assert torch.allclose(mine.losses, theirs.losses, rtol=1e-12)
    assert torch.allclose(mine.logits, theirs.logits.detach(), rtol=1e-12)


@pytest.mark.parametrize("rule", ["bp", "fa", "dfa", "dfa(form=layer)", "frozen", "bp+penalty(0.3)"])
def test_in_single_precision_they_differ_by_rounding_alone(rule):
    for key, fast, slow in both("resmlp", rule, torch.float32)[0]:
        assert float((fast - slow).norm() / slow.norm()) < 1e-6, key


def test_a_lean_pass_gives_the_same_bits_and_keeps_one_block(batch):
    def held(depth: int, *, lean: bool) -> tuple[int, list[torch.Tensor]]:
        torch.manual_seed(0)
        net = Adapter(ResMLP(12, 5, depth=depth, width=16, expansion=2).double())
        rule = ready_rule("dfa", net, *batch)
        kernel = Kernel(net, rule, lean=lean)
        kernel.deposit_gradients(*batch)
        return kernel.buffer_bytes, [p.grad for p in net.model.parameters()]

    assert held(4, lean=True)[0] == held(64, lean=True)[0]
    assert held(64, lean=False)[0] > 10 * held(4, lean=False)[0]
    same = zip(held(4, lean=True)[1], held(4, lean=False)[1], strict=True)
    assert all(torch.equal(one, two) for one, two in same)


@pytest.mark.parametrize("rule", ["dfa", "dfa(form=layer)", "dfa+penalty(0.3)", "drtp"])
def test_the_memory_that_a_lean_pass_takes_does_not_grow_with_depth(rule, batch):
    """Measured, credits and all, not what the kernel says it holds."""

    def taken(depth: int) -> int:
        net = Adapter(ResMLP(12, 5, depth=depth, width=16, expansion=2).double())
        kernel = Kernel(net, ready_rule(rule, net, *batch), lean=True)
        for parameter in net.model.parameters():
            parameter.grad = torch.empty_like(parameter)
        with Allocations() as seen:
            kernel.deposit_gradients(*batch)
        return seen.peak_bytes

    assert taken(4) == taken(24) > 0


def test_a_watched_backprop_pass_notes_the_reference_itself(net, batch):
    trace = Kernel(net, ready_rule("bp", net, *batch), watch=True).deposit_gradients(*batch)
    exact = net.probe(*batch).reference
    assert sorted(trace.arrived) == [0, 1, 2, 3]
    for layer, reference in enumerate(exact):
        assert torch.allclose(trace.arrived[layer], reference, rtol=1e-10)


def test_a_chain_of_credits_is_never_lean(net, batch):
    assert not Kernel(net, ready_rule("bp", net, *batch), lean=True).lean
    assert not Kernel(net, ready_rule("frozen", net, *batch), lean=True).lean
    assert not Kernel(net, ready_rule("mixed(blocks=bp,stem=dfa)", net, *batch), lean=True).lean


class Odd(ResMLP):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    model.blocks[0].register_forward_hook(lambda module, args, out: 2 * out)
    return model


def shared() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    model.blocks[1].fc1.weight = model.blocks[0].fc1.weight
    return model


def without_bias() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    model.blocks[0].fc1 = nn.Linear(8, 32, bias=False)
    return model


def normed() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    nn.utils.parametrizations.spectral_norm(model.blocks[0].fc1)
    return model


class Doubling(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def other_layer() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    model.blocks[0].fc1 = Doubling(8, 32)
    return model


def other_norm() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    model.out_ln = nn.RMSNorm(8)
    return model


def plain_norm() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    model.blocks[1].ln = nn.LayerNorm(8, elementwise_affine=False)
    return model


def no_norm_inside() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    model.blocks[1].ln = nn.Identity()
    return model


def watched() -> ResMLP:
    model = ResMLP(12, 5, depth=2, width=8)
    model.blocks[0].fc1.weight.register_hook(lambda gradient: 2 * gradient)
    return model


ODD = [lambda: Odd(12, 5, depth=2, width=8), hooked, shared, without_bias, normed]
ODD += [other_layer, other_norm, plain_norm, no_norm_inside, watched]


@pytest.mark.parametrize("make", ODD)
def test_a_model_that_is_not_what_the_pass_was_written_for_is_left_to_autograd(make):
    net = Adapter(make())
    assert not fits(net, make_rule("bp"))


def test_a_rule_with_a_training_pass_of_its_own_keeps_it(net):
    from walkback.rules.bp import BP

    class Own(BP):
        def deposit_gradients(self, net, x, y):
            raise RuntimeError("its own")

    assert not fits(net, Own())
    with pytest.raises(RuntimeError, match="its own"):
        depositor(net, Own(), 8)(torch.zeros(2, 12, dtype=torch.float64), torch.zeros(2, dtype=torch.long))


def test_a_hook_added_to_the_model_still_reaches_training(net, batch):
    """The choice is made when training starts, on the model as it is then."""
    rule = ready_rule("bp", net, *batch)
    before = copy.deepcopy(net.model.state_dict())
    net.model.blocks[1].register_forward_hook(lambda module, args, out: out * 0)
    trace = depositor(net, rule, 16)(*batch)
    assert torch.equal(trace.states[2], torch.zeros_like(trace.states[2]))
    assert all(torch.equal(before[key], value) for key, value in net.model.state_dict().items())
