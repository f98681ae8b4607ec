"""Each rule against its formula written out by hand, and against the shams this field knows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.conftest import ready_rule
from walkback.core.errors import BadInput, NotApplicable
from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.rules import make_rule, resolve_rule, rules

ALL = ("bp", "fa", "dfa", "frozen")


def gradients(rule, net, x, y):
    net.model.zero_grad(set_to_none=True)
    rule.deposit_gradients(net, x, y)
    found = {name: p.grad.clone() for name, p in net.model.named_parameters()}
    net.model.zero_grad(set_to_none=True)
    return found


def autograd_gradients(net, x, y):
    loss = F.cross_entropy(net.model(x), y)
    names, parameters = zip(*net.model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def relative(one, other):
    return float(((one - other).norm() / other.norm()).detach())


def test_bp_equals_autograd_bit_for_bit_from_the_same_error(net, batch):
    x, y = batch
    found = gradients(make_rule("bp"), net, x, y)
    error = net.probe(x, y).error
    names, parameters = zip(*net.model.named_parameters(), strict=True)
    exact = torch.autograd.grad(net.model(x), parameters, error / len(y))
    for name, gradient in zip(names, exact, strict=True):
        assert torch.equal(found[name], gradient), name


def test_bp_equals_the_loss_gradient(net, batch):
    found, exact = gradients(make_rule("bp"), net, *batch), autograd_gradients(net, *batch)
    for name, gradient in exact.items():
        assert relative(found[name], gradient) < 1e-12, name


@pytest.mark.parametrize("rule", ALL)
def test_a_weight_that_the_net_does_not_use_receives_nothing_and_stops_nothing(net, batch, rule):
    net.model.idle = nn.Parameter(torch.ones(3, dtype=torch.float64))
    ready_rule(rule, net, *batch).deposit_gradients(net, *batch)
    got = {name for name, p in net.model.named_parameters() if p.grad is not None}
    assert "idle" not in got and {"out_head.weight", "stem.weight"} <= got


@pytest.mark.parametrize("rule", ALL)
def test_a_pass_in_which_nothing_learns_is_no_error(net, batch, rule):
    net.model.requires_grad_(False)
    trace = ready_rule(rule, net, *batch).deposit_gradients(net, *batch)
    assert trace.losses.shape == batch[1].shape
    assert all(p.grad is None for p in net.model.parameters())


@pytest.mark.parametrize("rule", ALL)
def test_head_and_terminal_norm_always_learn_from_the_exact_gradient(net, batch, rule):
    found = gradients(ready_rule(rule, net, *batch), net, *batch)
    for name, exact in autograd_gradients(net, *batch).items():
        if name.startswith("out_"):
            assert relative(found[name], exact) < 1e-12, name


def layer_norm_vjp(h, ln, v):
    """(1/σ)(I − 11ᵀ/d − ĥĥᵀ/d)(γ∘v), written out."""
    sigma = (h.var(-1, unbiased=False, keepdim=True) + ln.eps).sqrt()
    unit = (h - h.mean(-1, keepdim=True)) / sigma
    v = ln.weight * v
    return (v - v.mean(-1, keepdim=True) - unit * (unit * v).mean(-1, keepdim=True)) / sigma


def gelu_slope(z):
    return 0.5 * (1 + torch.erf(z / 2**0.5)) + z * torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5


def written_out(net, x, y, b1, b2, top_credit):
    """Gradients and credits of the ResMLP by hand. b1[l], b2[l] stand where W1, W2 transport."""
    model, trace = net.model, net.probe(x, y)
    a, found, credits = top_credit(trace), {}, []
    for layer in range(net.depth, 0, -1):
        block, h = model.blocks[layer - 1], trace.states[layer - 1].detach()
        credits.insert(0, a)
        sigma = (h.var(-1, unbiased=False, keepdim=True) + block.ln.eps).sqrt()
        unit = (h - h.mean(-1, keepdim=True)) / sigma
        n = unit * block.ln.weight + block.ln.bias
        z = n @ block.fc1.weight.T + block.fc1.bias
        dz = (a @ b2[layer]) * gelu_slope(z)
        dn = dz @ b1[layer]
        name = f"blocks.{layer - 1}"
        found[f"{name}.fc2.weight"] = a.T @ F.gelu(z) / len(y)
        found[f"{name}.fc2.bias"] = a.sum(0) / len(y)
        found[f"{name}.fc1.weight"] = dz.T @ n / len(y)
        found[f"{name}.fc1.bias"] = dz.sum(0) / len(y)
        found[f"{name}.ln.weight"] = (dn * unit).sum(0) / len(y)
        found[f"{name}.ln.bias"] = dn.sum(0) / len(y)
        a = a + layer_norm_vjp(h, block.ln, dn)
    credits.insert(0, a)
    found["stem.weight"] = a.T @ x / len(y)
    found["stem.bias"] = a.sum(0) / len(y)
    return found, credits


def test_fa_layer_form_is_backprop_with_every_transpose_replaced(net, batch):
    x, y = batch
    rule = ready_rule("fa", net, x, y)
    b1 = {i + 1: rule.get_buffer(f"feedback_blocks_{i}_fc1") for i in range(3)}
    b2 = {i + 1: rule.get_buffer(f"feedback_blocks_{i}_fc2") for i in range(3)}

    def top(trace):
        v = trace.error @ rule.get_buffer("feedback_head")
        return layer_norm_vjp(trace.states[-1].detach(), net.model.out_ln, v)

    expected, credits = written_out(net, x, y, b1, b2, top)
    found = gradients(rule, net, x, y)
    for name, gradient in expected.items():
        assert relative(found[name], gradient) < 1e-10, name
    for mine, slow in zip(rule.credits(net.probe(x, y)), credits, strict=True):
        assert relative(mine, slow) < 1e-10


def test_fa_with_b_equal_to_w_is_backprop(net, batch):
    rule = ready_rule("fa", net, *batch)
    for name, linear in net.model.named_modules():
        if isinstance(linear, nn.Linear) and name != "stem":
            key = "head" if name == "out_head" else name.replace(".", "_")
            rule.get_buffer(f"feedback_{key}").copy_(linear.weight.detach())
    found, exact = gradients(rule, net, *batch), autograd_gradients(net, *batch)
    for name, gradient in exact.items():
        assert relative(found[name], gradient) < 1e-12, name


def test_dfa_gives_each_block_its_own_credit_and_the_exact_chain_inside(net, batch):
    x, y = batch
    rule, trace = ready_rule("dfa", net, x, y), net.probe(x, y)
    found = gradients(rule, net, x, y)
    for layer in range(net.depth + 1):
        credit = trace.error @ rule.get_buffer(f"feedback_{layer}")
        assert torch.equal(rule.credits(trace)[layer], credit)
        if layer == 0:
            local = torch.autograd.grad((net.model.stem(x) * credit).sum() / len(y), net.model.stem.weight)
            assert relative(found["stem.weight"], local[0]) < 1e-12
            continue
        block, h = net.model.blocks[layer - 1], trace.states[layer - 1].detach()
        branch = block.fc2(F.gelu(block.fc1(block.ln(h))))
        names, parameters = zip(*block.named_parameters(), strict=True)
        local = torch.autograd.grad((branch * credit).sum() / len(y), parameters)
        for name, gradient in zip(names, local, strict=True):
            assert relative(found[f"blocks.{layer - 1}.{name}"], gradient) < 1e-12, name


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_perturbing_dfa_feedback_changes_that_block_and_no_other(net, batch, layer):
    """Feedback that is never used is the most common sham in this field."""
    rule = ready_rule("dfa", net, *batch)
    before = gradients(rule, net, *batch)
    rule.get_buffer(f"feedback_{layer}").mul_(-1)
    after = gradients(rule, net, *batch)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    prefix = "stem." if layer == 0 else f"blocks.{layer - 1}."
    assert changed == {name for name in before if name.startswith(prefix)}


def test_perturbing_fa_feedback_changes_what_lies_below_it_and_nothing_above(net, batch):
    rule = ready_rule("fa", net, *batch)
    before = gradients(rule, net, *batch)
    below = ["stem.weight", "stem.bias"]
    for block in range(3):
        for part, same in (("fc1", ("fc1", "fc2")), ("fc2", ("fc2",))):
            changed_rule = copy.deepcopy(rule)
            changed_rule.get_buffer(f"feedback_blocks_{block}_{part}").mul_(-1)
            after = gradients(changed_rule, net, *batch)
            changed = {name for name in before if not torch.equal(before[name], after[name])}
            here = [n for n in before if n.startswith(f"blocks.{block}.") and n.split(".")[2] not in same]
            assert changed == {*below, *here}, (block, part)
        below += [name for name in before if name.startswith(f"blocks.{block}.")]
    changed_rule = copy.deepcopy(rule)
    changed_rule.get_buffer("feedback_head").mul_(-1)
    after = gradients(changed_rule, net, *batch)
    assert {n for n in before if not torch.equal(before[n], after[n])} == set(below)


@pytest.mark.parametrize("rule", ALL)
def test_credits_for_diagnosis_are_the_credits_of_training(net, batch, rule):
    """Same rule, two paths: the credit at a cut block's output, seen from the training pass."""
    x, y = batch
    ready = ready_rule(rule, net, x, y)
    seen = {}
    with ready.inside(net):
        trace = net.trace(x, y, ready.wiring)
    for layer, h in enumerate(trace.outputs):
        h.register_hook(lambda g, layer=layer: seen.__setitem__(layer, g))
    at_cuts = ready.training_credits(trace)
    torch.autograd.backward([trace.outputs[cut] for cut in trace.cuts], at_cuts)
    net.model.zero_grad(set_to_none=True)
    for layer, credit in enumerate(ready.credits(net.probe(x, y))):
        assert relative(seen[layer], credit) < 1e-10, layer


def test_frozen_trains_stem_norm_and_head_only(net):
    names = {name.split(".")[0] for name in make_rule("frozen").trained(net)}
    assert names == {"stem", "out_ln", "out_head"}
    assert set(make_rule("bp").trained(net)) == {name for name, _ in net.model.named_parameters()}


def test_feedback_has_the_documented_law():
    net = Adapter(ResMLP(12, 10, depth=1, width=400, expansion=1))
    x, y = torch.randn(4, 12), torch.tensor([0, 1, 2, 3])
    dfa, fa = ready_rule("dfa", net, x, y), ready_rule("fa", net, x, y)
    assert dfa.get_buffer("feedback_1").shape == (10, 400)
    assert float(dfa.get_buffer("feedback_1").std()) == pytest.approx(10**-0.5, rel=0.05)
    b = fa.get_buffer("feedback_blocks_0_fc1")
    assert b.shape == net.model.blocks[0].fc1.weight.shape
    assert float(b.abs().max()) == pytest.approx(400**-0.5, rel=1e-3)
    assert float(b.std()) == pytest.approx(float(net.model.blocks[0].fc1.weight.detach().std()), rel=0.02)


def test_dfa_broadcasts_to_tokens_and_follows_per_token_labels():
    from tests.nets.test_trace import TokenNet

    for per_token in (False, True):
        net = Adapter(TokenNet(per_token), blocks="layers", head="classifier")
        ids, y = torch.randint(20, (6, 5)), torch.randint(4, (6, 5) if per_token else (6,))
        rule = ready_rule("dfa", net, ids, y)
        trace = net.probe(ids, y)
        credit = rule.credits(trace)[2]
        error = trace.error if per_token else trace.error[:, None].expand(6, 5, 4)
        assert torch.allclose(credit, error @ rule.get_buffer("feedback_2"))
        assert gradients(rule, net, ids, y)["layers.1.mix.weight"].abs().sum() > 0


def test_fa_refuses_a_matrix_it_could_not_replace():
    """Attention keeps its matrices outside nn.Linear: leaving them to autograd would be backprop."""

    class Attentive(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)])
            self.out_head = nn.Linear(8, 3)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.out_head(x.mean(1))

    with pytest.raises(NotApplicable, match=r"in_proj_weight"):
        ready_rule("fa", Adapter(Attentive().train()), torch.randn(2, 4, 8), torch.tensor([0, 1]))


def test_fa_refuses_a_weight_that_is_used_without_its_layer():
    class Sly(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, h):
            return h + F.linear(h, self.linear.weight, self.linear.bias)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.out_head = nn.ModuleList([Sly()]), nn.Linear(8, 3)

        def forward(self, x):
            return self.out_head(self.blocks[0](x))

    net, x, y = Adapter(Net()), torch.randn(4, 8), torch.tensor([0, 1, 2, 0])
    rule = ready_rule("fa", net, x, y)
    with pytest.raises(NotApplicable, match=r"never reached 'blocks\.0\.linear'"):
        rule.credits(net.probe(x, y))


def test_fa_gives_back_a_forward_that_the_user_had_put_there(net, batch):
    linear = net.model.blocks[0].fc1
    mine = linear.forward
    linear.forward = lambda x: mine(x)
    given = linear.forward
    rule = ready_rule("fa", net, *batch)
    rule.credits(net.probe(*batch))
    assert linear.forward is given
    assert "forward" not in net.model.blocks[1].fc1.__dict__


def test_fa_refuses_what_it_could_not_transport_through(net, batch):
    class Scaled(ResMLP):
        def forward(self, x):
            h = self.stem(x)
            for block in self.blocks:
                h = block(h) * 0.5
            return self.out_head(self.out_ln(h))

    class Deeper(ResMLP):
        def forward(self, x):
            h = self.stem(x)
            for block in self.blocks:
                h = block(h)
            return self.out_head(torch.tanh(self.out_ln(h)))

    for model, words in ((Scaled, "something lies between the blocks"), (Deeper, "this model does more")):
        foreign = Adapter(model(12, 5, depth=3, width=16).double())
        with pytest.raises(NotApplicable, match=words):
            ready_rule("fa", foreign, *batch)
        drawn = ready_rule("fa", net, *batch)  # as where a checkpoint is read back
        with pytest.raises(NotApplicable, match=words):
            drawn.credits(foreign.probe(*batch))


def test_a_choice_that_does_not_exist_is_refused():
    with pytest.raises(BadInput, match=r"no form=blok\. Choose: block, layer"):
        resolve_rule("dfa(form=blok)")
    assert str(resolve_rule("dfa")) == str(resolve_rule("dfa(skip=cut,form=block)"))


@pytest.mark.parametrize("name", list(rules))
def test_every_rule_says_where_it_comes_from(name):
    rule = rules[name]
    assert rule.name == name and rule.citation and rule.about
