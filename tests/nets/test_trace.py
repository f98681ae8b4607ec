from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from walkback.core.errors import BadInput, NotApplicable
from walkback.nets import Adapter, freeze_blocks
from walkback.nets.resmlp import ResMLP
from walkback.nets.trace import stable_error


def test_states_are_those_of_a_forward_pass_written_out(net, batch):
    x, y = batch
    model, trace = net.model, net.probe(x, y)
    h = model.stem(x)
    assert torch.equal(trace.states[0], h)
    for layer, block in enumerate(model.blocks, start=1):
        h = h + block.fc2(F.gelu(block.fc1(block.ln(h))))
        assert torch.equal(trace.states[layer], h)
    assert torch.equal(trace.logits, model.out_head(model.out_ln(h)))
    assert torch.allclose(trace.losses, F.cross_entropy(trace.logits, y, reduction="none"))


@pytest.mark.parametrize("wiring", ["probe", "chain", "cut"])
def test_every_wiring_computes_the_same_function(net, batch, wiring):
    trace = net.trace(*batch, wiring)
    assert torch.equal(trace.logits, net.model(batch[0]))


def test_the_reference_is_the_gradient_of_the_summed_loss(net, batch):
    x, y = batch
    trace = net.probe(x, y)
    for layer in range(net.depth + 1):
        h = trace.states[layer].detach().requires_grad_()
        loss = F.cross_entropy(trace.tail(layer, h), y, reduction="sum")
        (g,) = torch.autograd.grad(loss, h)
        assert torch.allclose(trace.reference[layer], g, rtol=1e-9, atol=1e-12)


def test_tail_and_branch_continue_from_any_state(net, batch):
    trace = net.probe(*batch)
    for layer in range(net.depth + 1):
        assert torch.allclose(trace.tail(layer, trace.states[layer]), trace.logits)
    for layer in range(1, net.depth + 1):
        below, above = trace.states[layer - 1], trace.states[layer]
        assert torch.allclose(trace.branch(layer, below), above - below)
    assert not torch.allclose(trace.tail(1, trace.states[1] * 2), trace.logits)


@given(st.floats(-60, 60), st.floats(-3, 3), st.integers(0, 2))
def test_the_error_keeps_its_digits_where_softmax_minus_one_loses_them(gap, other, label):
    logits = torch.tensor([[gap, other, 0.0]], dtype=torch.float32)
    y = torch.tensor([label])
    exact = logits.double()
    slow = exact.softmax(-1)
    slow[0, label] = -sum(slow[0, c] for c in range(3) if c != label)
    assert torch.allclose(stable_error(logits, y).double(), slow, rtol=2e-5, atol=1e-40)


def test_the_naive_error_would_fail_that_test():
    logits, y = torch.tensor([[20.0, 0.0, 0.0]]), torch.tensor([0])
    naive = logits.softmax(-1) - F.one_hot(y, 3)
    truth = -2 * torch.exp(torch.tensor(-20.0, dtype=torch.float64))
    assert abs(stable_error(logits, y)[0, 0].double() / truth - 1) < 1e-5
    assert abs(naive[0, 0].double() / truth - 1) > 1e-3


class TokenNet(nn.Module):
    """Like a transformer: token states, extra arguments, tuples out, labels per sample or token."""

    def __init__(self, per_token: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(TokenBlock() for _ in range(3))
        self.classifier = nn.Linear(8, 4)
        self.per_token = per_token

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h, _ = layer(hidden=h, scale=0.5)
        return self.classifier(h if self.per_token else h.mean(1))


class TokenBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, hidden, scale):
        mixed = self.mix(self.norm(hidden)).cumsum(1)
        return hidden + scale * torch.tanh(mixed), "extra"


@pytest.mark.parametrize("per_token", [False, True])
def test_token_states_keyword_arguments_and_tuples_are_first_class(per_token):
    torch.manual_seed(0)
    net = Adapter(TokenNet(per_token).double(), blocks="layers", head="classifier")
    ids = torch.randint(20, (6, 5))
    y = torch.randint(4, (6, 5) if per_token else (6,))
    trace = net.probe(ids, y)
    assert [tuple(h.shape) for h in trace.states] == [(6, 5, 8)] * 4
    assert trace.rows(trace.states[1]).shape == ((30, 8) if per_token else (6, 40))
    assert trace.rows(trace.error).shape == ((30, 4) if per_token else (6, 4))
    for layer in range(4):
        assert torch.allclose(trace.tail(layer, trace.states[layer]), trace.logits)
        h = trace.states[layer].detach().requires_grad_()
        loss = F.cross_entropy(trace.tail(layer, h).flatten(0, -2), y.flatten(), reduction="sum")
        assert torch.allclose(trace.reference[layer], torch.autograd.grad(loss, h)[0], atol=1e-12)


def test_a_model_that_takes_named_inputs_is_audited():
    class Named(TokenNet):
        def forward(self, input_ids):
            out = super().forward(input_ids)
            return type("Output", (), {"logits": out})()

    net = Adapter(Named(), blocks="layers", head="classifier")
    trace = net.probe({"input_ids": torch.randint(20, (6, 5))}, torch.randint(4, (6,)))
    assert trace.logits.shape == (6, 4)


def snapshot(model):
    return (
        {name: module.training for name, module in model.named_modules()},
        {name: p.requires_grad for name, p in model.named_parameters()},
        {name: p.grad for name, p in model.named_parameters()},
        {name: (p.dtype, p.data_ptr()) for name, p in model.named_parameters()},
        {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in model.named_modules()},
        {name: "forward" in m.__dict__ for name, m in model.named_modules()},
        copy.deepcopy(model.state_dict()),
        torch.get_rng_state(),
    )


def assert_same(before, after):
    for one, other in zip(before[:-2], after[:-2], strict=True):
        assert one == other
    for key, value in before[-2].items():
        assert torch.equal(value, after[-2][key])
    assert torch.equal(before[-1], after[-1])


@pytest.mark.parametrize("rule", [None, "bp", "fa", "dfa"])
def test_the_model_comes_back_as_it_was(rule):
    from tests.conftest import ready_rule
    from walkback.protocol import FAProtocol

    model = ResMLP(6, 3, depth=2, width=8)
    model.blocks[0].add_module("drop", nn.Dropout(0.5))
    model.train()
    model.blocks[1].eval()
    model.stem.weight.requires_grad_(False)
    model.out_head.bias.grad = torch.ones(3)
    model.out_head.register_forward_hook(lambda *a: None)
    x, y = torch.randn(9, 6), torch.randint(3, (9,))
    ready = None if rule is None else ready_rule(rule, Adapter(model), x, y)
    before = snapshot(model)
    FAProtocol(model, x, y, rule=ready, baseline=0.1).run()
    assert_same(before, snapshot(model))


def test_the_model_comes_back_even_if_the_audit_fails():
    from walkback.protocol import FAProtocol

    model = ResMLP(6, 3, depth=2, width=8).train()
    x = torch.randn(4, 6)
    before = snapshot(model)
    with pytest.raises(BadInput):
        FAProtocol(model, x, torch.tensor([0, 1, 2, 7])).run()
    assert_same(before, snapshot(model))


def test_blocks_that_cannot_be_found_are_asked_for_by_path():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(BadInput, match=r"blocks='encoder.layer'.*Lists of modules in it: 1"):
        Adapter(model)
    with pytest.raises(BadInput, match=r"no submodule 'encoder\.layer'"):
        Adapter(model, blocks="encoder.layer")
    with pytest.raises(BadInput, match="no blocks under that name"):
        Adapter(model, blocks="0")
    assert Adapter(model, blocks=["0", "1"]).depth == 2


def test_blocks_that_do_not_run_once_each_in_order_are_refused():
    class Odd(nn.Module):
        def __init__(self, order):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.order = order

        def forward(self, x):
            for index in self.order:
                x = self.blocks[index](x)
            return x

    for order, words in (([0, 2, 1], "expected"), ([0, 1], "Only 2 of the 3"), ([0, 0, 1, 2], "expected")):
        with pytest.raises(NotApplicable, match=words):
            Adapter(Odd(order)).probe(torch.randn(2, 4), torch.tensor([0, 1]))


def test_a_path_that_bypasses_the_last_block_counts_in_the_reference(batch):
    class MultiScale(ResMLP):
        def forward(self, x):
            states = [self.stem(x)]
            for block in self.blocks:
                states.append(block(states[-1]))
            return self.out_head(states[-1] + 2 * states[1])

    x, y = batch
    net = Adapter(MultiScale(12, 5, depth=3, width=16).double())
    trace = net.probe(x, y)
    for layer in range(4):
        h = trace.states[layer].detach().requires_grad_()
        loss = F.cross_entropy(trace.tail(layer, h), y, reduction="sum")
        assert torch.allclose(trace.reference[layer], torch.autograd.grad(loss, h)[0], atol=1e-12)


def test_a_block_that_works_in_place_does_not_change_what_was_noted(batch):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, h):
            return self.linear(F.relu(h, inplace=True))

    class Net(ResMLP):
        pass

    x, y = batch
    model = Net(12, 5, depth=3, width=16)
    model.blocks = nn.ModuleList(InPlace() for _ in range(3))
    net = Adapter(model.double())
    trace = net.probe(x, y)
    assert (trace.states[1] < 0).any(), "the state as it was before the next block rectified it"
    assert torch.equal(trace.states[0], model.stem(x))
    for layer in range(4):
        h = trace.states[layer].detach().requires_grad_()
        loss = F.cross_entropy(trace.tail(layer, h.clone()), y, reduction="sum")
        assert torch.allclose(trace.reference[layer], torch.autograd.grad(loss, h)[0], atol=1e-12)


def test_states_that_are_not_batch_first_are_refused():
    class SequenceFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
            self.out_head = nn.Linear(8, 3)

        def forward(self, x):
            h = x.transpose(0, 1)
            for block in self.blocks:
                h = block(h)
            return self.out_head(h.mean(0))

    with pytest.raises(NotApplicable, match="batch-first"):
        Adapter(SequenceFirst()).probe(torch.randn(6, 5, 8), torch.randint(3, (6,)))


def test_the_state_is_what_the_block_before_returned_not_just_the_first_tensor():
    class Conditioned(nn.Module):
        def __init__(self, state_first):
            super().__init__()
            self.blocks = nn.ModuleList(Mixer() for _ in range(3))
            self.out_head, self.state_first = nn.Linear(8, 3), state_first

        def forward(self, x):
            h, time = x, torch.ones(len(x), 8)
            for block in self.blocks:
                h = block(h=h, time=time) if self.state_first else block(time=time, h=h)
            return self.out_head(h)

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, h, time):
            return h + self.linear(h + time)

    x, y = torch.randn(6, 8), torch.randint(3, (6,))
    assert torch.equal(Adapter(Conditioned(True)).probe(x, y).states[0], x)
    with pytest.raises(NotApplicable, match="argument h of the second block"):
        Adapter(Conditioned(False)).probe(x, y)


def test_no_gradient_from_the_logits_is_refused():
    class Blind(ResMLP):
        def forward(self, x):
            return super().forward(x).detach()

    with pytest.raises(NotApplicable, match="No gradient comes back"):
        Adapter(Blind(6, 3, depth=1, width=8)).probe(torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))


def test_inference_mode_and_named_tuples_are_no_obstacle():
    from typing import NamedTuple

    class Out(NamedTuple):
        h: torch.Tensor
        extra: int

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([NamedBlock()])
            self.out_head = nn.Linear(8, 3)

        def forward(self, x):
            return self.out_head(self.blocks[0](x).h)

    class NamedBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, h):
            return Out(self.linear(h), 3)

    net = Adapter(Named())
    with torch.inference_mode():
        x, y = torch.randn(6, 8), torch.randint(3, (6,))
        trace = net.probe(x, y)
    assert trace.reference[1].shape == (6, 8)


class Remembering(nn.Module):
    """Each block adds the mean of all inputs it has seen in a cache that the model makes for every pass."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"mix": nn.Linear(8, 8)}) for _ in range(2))
        for index, block in enumerate(self.blocks):
            block.forward = self.step(index)
        self.out_head = nn.Linear(8, 3)

    def step(self, index):
        def forward(h, cache):
            seen = cache.setdefault(index, [])
            seen.append(h)
            return h + self.blocks[index]["mix"](torch.stack(seen).mean(0))

        return forward

    def forward(self, x):
        cache = {}
        for block in self.blocks:
            x = block(x, cache=cache)
        return self.out_head(x)


def test_blocks_that_are_given_a_cache_are_not_run_again_but_the_whole_model_is():
    torch.manual_seed(0)
    model = Remembering().double()
    x, y = torch.randn(6, 8).double(), torch.randint(3, (6,))
    net = Adapter(model)
    trace = net.probe(x, y)
    for layer in range(3):
        h = trace.states[layer].detach() + 1
        fresh = h
        for index in range(layer, 2):
            fresh = fresh + model.blocks[index]["mix"](fresh)
        for _ in range(2):  # a second time, too: nothing remembers the first
            assert torch.allclose(trace.tail(layer, h), model.out_head(fresh))
    with pytest.raises(NotApplicable, match="may remember an earlier pass"):
        trace.block(1, trace.states[0])


def test_a_block_that_runs_without_a_graph_is_refused():
    class Frozen(ResMLP):
        def forward(self, x):
            with torch.no_grad():
                h = self.blocks[0](self.stem(x))
            return self.out_head(h)

    with pytest.raises(NotApplicable, match="Block 0 runs without a graph"):
        Adapter(Frozen(6, 3, depth=1, width=8)).probe(torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.randn(4, 6), torch.tensor([0, 1, 2, 3]), r"Labels must lie in 0…2 for 3 logits, found 0…3"),
        (torch.randn(4, 6), torch.tensor([0, 1, -1, 2]), "found -1…2"),
        (torch.randn(4, 6), torch.tensor([0, 1, 2]), "4 inputs .* but 3 labels"),
        (torch.randn(0, 6), torch.zeros(0, dtype=torch.long), "The batch is empty"),
        (torch.full((4, 6), torch.nan), torch.zeros(4, dtype=torch.long), "NaN or infinite"),
        (torch.full((4, 6), torch.inf), torch.zeros(4, dtype=torch.long), "NaN or infinite"),
        (torch.randn(4, 6), torch.zeros(4), "whole numbers"),
        (torch.randn(4, 6), torch.zeros(4, 2, dtype=torch.long), "labels of shape"),
        (torch.randn(4, 7), torch.zeros(4, dtype=torch.long), "cannot process these inputs"),
        (torch.randn(4, 6), torch.tensor(1), "must be a batch"),
        (torch.randn(4, 6) + 0j, torch.zeros(4, dtype=torch.long), "must not be complex"),
    ],
)
def test_a_wrong_batch_is_refused_in_one_sentence(x, y, words):
    with pytest.raises(BadInput, match=words):
        Adapter(ResMLP(6, 3, depth=1, width=8)).probe(x, y)


def test_freeze_blocks_fixes_the_blocks_and_nothing_else():
    model = freeze_blocks(ResMLP(6, 3, depth=2, width=8))
    fixed = {name.split(".")[0] for name, p in model.named_parameters() if not p.requires_grad}
    free = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert (fixed, free) == ({"blocks"}, {"stem", "out_ln", "out_head"})
