"""Rules, nets and models that others write: each of these once gave a wrong number, or a traceback."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import ArrayFeed, ready_rule
from walkback import Bundle, FAProtocol, Rule
from walkback.check import check_rule
from walkback.core.errors import BadInput, NotApplicable
from walkback.core.spec import Call
from walkback.data import Dataset
from walkback.measure.nulls import cosine_null
from walkback.measure.rows import row_cosines
from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.rules import make_rule, rules
from walkback.rules.bp import BP
from walkback.rules.dfa import DFA
from walkback.rules.penalty import Penalty
from walkback.run.one import test_items as which_are_right
from walkback.train.loop import Recipe, TrainState, train


class Block(nn.Module):
    def __init__(self, width: int, *, in_place: bool = False) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(width, width), in_place

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            h.relu_()
        return h + torch.tanh(self.linear(h))


class Net(nn.Module):
    """Works on rows and, where each token has a label, on tokens."""

    def __init__(self, *, in_place: bool = False, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.blocks = nn.ModuleList(Block(width, in_place=in_place) for _ in range(2))
        self.out_head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.out_head(h)


@pytest.fixture
def made() -> Net:
    torch.manual_seed(0)
    return Net().double()


def steps(rule: Rule, net: Adapter, batch, epochs: int = 1) -> None:
    recipe = Recipe(epochs, batch=8, lr=1e-2, weight_decay=0.01, schedule="constant", seed=1)
    train(TrainState(net, rule), ArrayFeed(*batch), recipe, on_epoch=lambda state: None)


@pytest.mark.parametrize("text", ["bp", "dfa", "frozen", "ladder(1)"])
def test_a_parameter_that_a_net_fixes_itself_is_never_trained(made, batch, text):
    made.stem.requires_grad_(False)
    made.blocks[1].linear.bias.requires_grad_(False)
    net = Adapter(made)
    fixed = [made.stem.weight.clone(), made.blocks[1].linear.bias.clone()]
    head = made.out_head.weight.clone()
    steps(ready_rule(text, net, *batch), net, batch)
    assert torch.equal(made.stem.weight, fixed[0]) and torch.equal(made.blocks[1].linear.bias, fixed[1])
    assert not torch.equal(made.out_head.weight, head)


class Own(BP):
    name = "own"

    def deposit_gradients(self, net, x, y):
        raise AssertionError("never reached")


def test_a_rule_with_a_training_pass_of_its_own_cannot_be_added_to():
    with pytest.raises(NotApplicable, match="own has a training pass of its own, which penalty would"):
        Penalty(Own(), weight=0.0, over="sum")


class Same(Rule):
    """One credit for all rows: what any shuffle of the rows gives as well."""

    name, citation, about, wiring = "same", "-", "-", "cut"

    def credits(self, trace):
        return [torch.linspace(-1, 1, h.shape[-1]).to(h).expand_as(h) for h in trace.states]


def test_a_credit_that_equals_its_null_is_nowhere_outside_it():
    torch.manual_seed(0)
    net = Adapter(ResMLP(12, 5, depth=3, width=8))
    x, y = torch.randn(64, 12), torch.randint(5, (64,))
    with net.evaluating():
        null = cosine_null(Same(), net.probe(x, y), torch.Generator().manual_seed(0), 199)
    assert null.p == [1.0] * 4 and null.deep_p == 1.0


@pytest.mark.parametrize("noise", ["fresh", "fixed"])
def test_a_dose_is_exact_for_every_token_with_its_own_label(made, noise):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 4, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (6, 4), generator=generator)
    net = Adapter(made)
    rule = ready_rule(f"dose(cosine=0.3,noise={noise})", net, x, y)
    trace = net.probe(x, y)
    for a, g in zip(rule.credits(trace), trace.reference, strict=True):
        cosines, _ = row_cosines(trace.rows(a), trace.rows(g))
        assert torch.allclose(cosines, torch.full_like(cosines, 0.3), atol=1e-9)


class Learner(DFA):
    """Has a parameter of its own, whose loss has the gradient 1 at every step."""

    name = "learner"

    def __init__(self) -> None:
        super().__init__(form="block", skip="cut")
        self.own, self.seen = nn.Parameter(torch.zeros(3, dtype=torch.float64)), []

    def trained(self, net):
        return {**super().trained(net), "own": self.own}

    def learn(self, trace):
        self.own.sum().backward()
        self.seen.append(float(self.own.grad[0]))


def test_gradients_of_a_rules_own_parameters_are_fresh_at_every_step(net, batch):
    rule = Learner()
    rule.setup(net.probe(*batch), torch.Generator().manual_seed(0))
    steps(rule, net, batch)
    assert rule.seen == [1.0] * 4


@pytest.mark.parametrize("text", ["dfa+penalty(0.01)", "fa(form=block)"])
def test_a_verdict_names_the_rule_with_its_form_and_additions(net, batch, tmp_path, text):
    rule = ready_rule(text, net, *batch)
    assert FAProtocol(net.model, *batch, rule=rule).run().claim == f"{text} assigns credit to deep layers"
    bundle = Bundle.from_model(net.model, *batch, tmp_path / "b", rule=rule)
    assert bundle.card["rule"]["label"] == text and bundle.card["rule"]["variant"] == str(rule.call)


@pytest.mark.parametrize("text", ["bp", "dfa", "fa(form=block)", "frozen", "mixed"])
def test_a_block_that_begins_in_place_is_trained_as_one_that_does_not(batch, text):
    torch.manual_seed(0)
    one, other = Net(in_place=True).double(), Net().double()
    other.load_state_dict(one.state_dict())
    for block in other.blocks:
        block.forward = lambda h, linear=block.linear: torch.relu(h) + torch.tanh(linear(torch.relu(h)))
    for model in (one, other):
        net = Adapter(model)
        steps(ready_rule(text, net, *batch), net, batch)
    for mine, plain in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, plain)


def test_a_net_that_returns_more_than_logits_is_tested_like_any_other(made):
    x, y = np.random.default_rng(0).normal(size=(20, 12)), np.arange(20) % 5
    test_batch = lambda rows: (torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))  # noqa: E731
    feed = SimpleNamespace(y_test=y, test_batch=test_batch)
    plain = which_are_right(Adapter(made), feed)
    made.forward = lambda x, inner=made.forward: (inner(x), "aux")
    assert np.array_equal(which_are_right(Adapter(made), feed)[0], plain[0])


@pytest.mark.parametrize(("x", "y"), [(np.float64, np.int64), (np.float32, np.int32)])
def test_arrays_that_no_net_could_be_trained_on_are_refused(x, y):
    with pytest.raises(BadInput, match="float32 or bytes and int64 labels are needed"):
        Dataset("d", *(np.zeros((4, 3), x), np.zeros(4, y)) * 2, classes=2)


@pytest.mark.parametrize(
    "text", ["mixed(blocks=dose(noise=fixed))", "credit-bridge+penalty(0.01)", "state-bridge+penalty(0.01)"]
)
def test_feedback_that_is_idle_by_design_is_not_called_unused(net, batch, text):
    assert "fail" not in {check.status for check in check_rule(text, net, *batch)}


class Masked(DFA):
    name = "masked"

    def setup(self, trace, generator):
        super().setup(trace, generator)
        for layer, h in enumerate(trace.states):
            self.register_buffer(f"mask_{layer}", torch.rand(h.shape[-1], generator=generator) < 0.5)

    def credits(self, trace):
        return [a * self.get_buffer(f"mask_{layer}") for layer, a in enumerate(super().credits(trace))]

    def training_credits_upwards(self, trace):
        return iter(self.training_credits(trace))


def test_feedback_may_be_a_mask(net, batch):
    found = check_rule(Masked(form="block", skip="cut"), net, *batch)
    assert {check.name: check.status for check in found}["feedback"] == "pass"


class Short(BP):
    name = "short"

    def credits(self, trace):
        return super().credits(trace)[1:]


def test_a_credit_too_few_is_said_and_not_a_traceback(net, batch):
    (found,) = check_rule(Short(), net, *batch)
    assert (found.name, found.status) == ("credits", "fail")
    with pytest.raises(BadInput, match="3 credits for 4 states"):
        FAProtocol(net.model, *batch, rule=Short()).run()


class Nameless(Rule):
    wiring = "cut"

    def credits(self, trace):
        return [torch.ones_like(h) for h in trace.states]


def test_a_rule_that_does_not_say_what_it_is_is_refused(monkeypatch):
    monkeypatch.setitem(rules._entries, "nameless", Nameless)
    with pytest.raises(BadInput, match="The rule 'nameless' does not say its name"):
        make_rule("nameless")


def test_a_check_takes_a_whole_batch_or_none(net, batch):
    with pytest.raises(BadInput, match="or neither"):
        check_rule("bp", net, batch[0])


class Extra(Net):
    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        pass


def test_a_model_with_state_that_is_no_tensor_is_told_so(batch, tmp_path):
    with pytest.raises(BadInput, match="which no bundle can hold"):
        Bundle.from_model(Extra().double(), *batch, tmp_path / "b")


def test_a_buffer_that_a_forward_pass_counts_in_comes_back_as_it_was(made, batch):
    made.register_buffer("calls", torch.zeros((), dtype=torch.long))
    made.register_forward_pre_hook(lambda module, args: module.calls.add_(1) and None)
    before = copy.deepcopy(made.state_dict())
    FAProtocol(made, *batch).run()
    assert all(torch.equal(before[key], value) for key, value in made.state_dict().items())


def test_labels_of_another_width_are_the_same_items(made, batch, tmp_path):
    x, y = batch
    twin = copy.deepcopy(made)
    with torch.no_grad():
        next(twin.blocks.parameters()).mul_(1 + 1e-12)  # blocks of its own, and the same answers
    frozen = Bundle.from_model(twin, x, y.int(), tmp_path / "b", role="baseline")
    found = FAProtocol(made, x, y, baseline=frozen).run()["diagnostics"]["D3_depth_utility"]
    assert found["value"] == 0.0


def test_a_parameter_given_twice_is_refused():
    with pytest.raises(BadInput, match="gives width twice"):
        Call.parse("resmlp(width=8,depth=2,width=4)")
