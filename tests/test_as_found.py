"""Models that come back as they were found, whatever they do, and rules that train them as they say."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.conftest import ready_rule
from walkback import Bundle, FAProtocol, Rule, credit_metrics
from walkback.check import check_all, check_rule
from walkback.core.errors import BadInput, NotApplicable
from walkback.measure.battery import BatteryCallback, metric_battery
from walkback.measure.nulls import cosine_null
from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.rules import make_rule, rules
from walkback.rules.bp import BP
from walkback.train.kernel import Kernel, fits

LAYERWISE = ("fa", "kolen-pollack", "weight-mirror", "sign-symmetry")
ESTIMATORS = ("forward-gradient", "node-perturbation")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def batch(features: int = 6, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, features).double(), torch.arange(32) % classes


class Twice(nn.Module):
    """One Linear in two places, and its weight in a third."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.b = self.a
        self.c.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.c(torch.tanh(self.b(torch.tanh(self.a(x))))))


class Blocks(nn.Module):
    def __init__(self, *blocks: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(blocks)
        self.out_head = head or nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.out_head(h)


class Shifting(ResMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 2.0
        return super().forward(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_uses_a_module_twice_keeps_its_parameters(dtype):
    model, (x, y) = Twice().to(dtype), batch()
    shared, state = model.a.weight, {name: t.clone() for name, t in model.state_dict().items()}
    found = metric_battery(model, x.to(dtype), y, metrics=["grad_norm", "fim_norm"])
    assert model.a.weight is shared and model.b.weight is shared and model.c.weight is shared
    assert all(torch.equal(model.state_dict()[name], t) for name, t in state.items())
    loss = F.cross_entropy(model(x.to(dtype)), y)
    true = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).norm()
    assert found["grad_norm"] == pytest.approx(float(true), rel=1e-4)


def test_a_net_that_changes_its_input_in_place_changes_neither_the_batch_nor_the_numbers(tmp_path):
    x, y = batch()
    before, model = x.clone(), Shifting(6, 4, depth=2, width=8).double()
    protocol = FAProtocol(model, x, y)
    first, again = (str(protocol.measure().table.to_csv()) for _ in range(2))
    assert torch.equal(x, before) and first == again
    bundle = Bundle.from_model(model, x, y, tmp_path / "mine", accuracy=0.5)
    assert torch.equal(x, before)
    plain = FAProtocol(_shifted_by_hand(model), x, y).measure().table
    assert plain.number("scale.growth_max@1", 0) == pytest.approx(
        bundle.measurements().number("scale.growth_max@1", 0), rel=1e-9
    )


def _shifted_by_hand(model: ResMLP) -> nn.Module:
    copy = Blocks(*model.blocks).double()
    copy.stem, copy.out_ln, copy.out_head = model.stem, model.out_ln, model.out_head
    stem = model.stem.forward
    copy.stem = _Then(lambda x: stem(x - 2.0))
    copy.out_head = _Then(lambda h: model.out_head(model.out_ln(h)))
    del copy.out_ln
    return copy


class _Then(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Remembers(nn.Module):
    """Makes buffers as it first runs, as lazily built masks are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", None)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.seen = torch.ones(1)
        if "mask" not in self._buffers:
            self.register_buffer("mask", torch.ones(8), persistent=False)
        return h + self.mask.to(h) * self.linear(h)


def test_buffers_that_a_pass_makes_do_not_stay():
    model, (x, y) = Blocks(Remembers()).double(), batch()
    before = set(model.state_dict())
    FAProtocol(model, x, y).run()
    assert set(model.state_dict()) == before and model.blocks[0].seen is None
    assert "mask" not in model.blocks[0]._buffers
    assert "mask" not in model.blocks[0]._non_persistent_buffers_set
    FAProtocol(model, x, y).run()


class Flagged(nn.Module):
    """Notes in an attribute that it has made its buffer, in the precision of what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.built = nn.Linear(8, 8), False

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if not self.built:
            self.register_buffer("scale", torch.ones(8, dtype=h.dtype), persistent=False)
            self.built = True
        return h + self.scale * self.linear(h)


def test_a_model_that_notes_what_it_made_runs_as_before_afterwards():
    model, (x, y) = Blocks(Flagged()), batch()
    FAProtocol(model, x.float(), y).run()
    metric_battery(model, x.float(), y, metrics=["grad_norm"])
    assert not model.blocks[0].built and "scale" not in model.blocks[0]._buffers
    assert model(x.float()).dtype == torch.float32


@pytest.mark.filterwarnings("ignore")  # torch's own, about scripting and about copies of it
def test_a_scripted_part_of_a_model_is_no_obstacle():
    model, (x, y) = Blocks(nn.Linear(8, 8)), batch()
    model.stem = torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    FAProtocol(model, x.float(), y).run()
    assert all(torch.equal(model.state_dict()[name], t) for name, t in before.items())


class Optional(Blocks):
    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, flag: bool = False
    ) -> torch.Tensor:
        assert mask is None and flag
        return super().forward(x)


def test_inputs_that_are_no_tensors_reach_the_model():
    model, (x, y) = Optional(nn.Linear(8, 8)).double(), batch()
    make_rule("bp").deposit_gradients(Adapter(model), {"x": x, "mask": None, "flag": True}, y)
    assert model.stem.weight.grad is not None


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.tanh(self.linear(self.norm(h)))


class NormedAbove(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Normed() for _ in range(2))
        self.out_ln, self.out_head = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.out_head(self.out_ln(h))


@pytest.mark.parametrize("name", list(rules))
def test_a_training_step_of_any_rule_counts_the_moments_of_batchnorm_once(name):
    net, (x, y) = Adapter(NormedAbove().double().train()), batch()
    rule = ready_rule(name, net, x, y)
    rule.begin_step(0.5)
    norms = [m for m in net.model.modules() if isinstance(m, nn.BatchNorm1d)]
    before = [int(m.num_batches_tracked) for m in norms]
    rule.learn(rule.deposit_gradients(net, x, y))
    assert [int(m.num_batches_tracked) - b for m, b in zip(norms, before, strict=True)] == [1, 1, 1]


def test_a_null_of_another_seeds_feedback_is_that_of_the_rule_itself():
    net, (x, y) = Adapter(ResMLP(6, 4, depth=2, width=8).double().eval()), batch()
    trace = net.probe(x, y)
    plain, other = make_rule("dfa"), make_rule("dfa+feedback(3)")
    for rule in (other, plain):
        rule.setup(trace, torch.Generator().manual_seed(0))
    plain.load_state_dict({k.removeprefix("inner."): v for k, v in other.state_dict().items()})
    one, two = (cosine_null(rule, trace, torch.Generator().manual_seed(1), 30) for rule in (plain, other))
    assert one == two and min(one.sd) > 0


def test_a_null_draws_the_feedback_of_stem_and_blocks_anew():
    net, (x, y) = Adapter(ResMLP(6, 4, depth=2, width=8).double().eval()), batch()
    trace = net.probe(x, y)
    plain, mixed = make_rule("dfa"), make_rule("mixed(blocks=bp,stem=dfa)")
    for rule in (plain, mixed):
        rule.setup(trace, torch.Generator().manual_seed(0))
    one, two = (cosine_null(rule, trace, torch.Generator().manual_seed(1), 30) for rule in (plain, mixed))
    assert two.sd[0] == pytest.approx(one.sd[0], rel=0.5) and two.sd[0] > 0.05
    for name, value in mixed.stem_rule.state_dict().items():
        fresh = copy.deepcopy(mixed)
        fresh.draw_anew(trace, torch.Generator().manual_seed(1))
        assert not torch.equal(fresh.stem_rule.state_dict()[name], value)


class Passing(BP):
    """Sends down what it received, the very tensor."""

    name, citation, about = "passing", "none", "none"

    def senders(self, net):
        return {f"blocks.{layer}.fc2": lambda delta, x: delta for layer in range(net.depth)}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_the_pass_by_hand_does_not_write_into_what_a_sender_returned():
    model, (x, y) = ResMLP(6, 4, depth=3, width=8, expansion=1).double(), batch()
    net, rule = Adapter(model), Passing()
    assert fits(net, rule)
    rule.deposit_gradients(net, x, y)
    slow = gradients(model)
    Kernel(net, rule).deposit_gradients(x, y)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, slow[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["dfa", "dfa(form=layer)", "fa", "sign-symmetry", "fa(form=block)"])
def test_a_penalty_adds_the_exact_gradient_of_each_branch_whatever_the_rule_sends(name):
    model, (x, y) = ResMLP(6, 4, depth=2, width=8, expansion=2).double(), batch()
    net, found = Adapter(model), []
    for written in (name, f"{name}+penalty(1)"):
        rule = ready_rule(written, net, x, y)
        model.zero_grad()
        rule.deposit_gradients(net, x, y)
        found.append(gradients(model))
        if "penalty" in written:
            assert fits(net, rule) is not bool(rule.senders(net))
    model.zero_grad()
    h = model.stem(x).detach()
    for block in model.blocks:
        above = block(h)
        ((above - h).square().sum() / len(x)).backward()
        h = above.detach()
    for key, parameter in model.named_parameters():
        if key.startswith("blocks"):
            torch.testing.assert_close(found[1][key] - found[0][key], parameter.grad, rtol=1e-9, atol=1e-10)


class Held(Rule):
    """Written as a tutorial reader would: buffers, credits, and nothing said of them."""

    name, citation, about = "held", "none", "none"
    wiring = "cut"

    def setup(self, trace, generator):
        for layer, h in enumerate(trace.states):
            drawn = torch.randn(trace.logits.shape[-1], h.shape[-1], generator=generator)
            self.register_buffer(f"b{layer}", drawn.to(h))

    def credits(self, trace):
        return [trace.error @ self.get_buffer(f"b{layer}") for layer in range(trace.depth + 1)]


class Said(Held):
    name, has_feedback = "said", True


class Learned(Rule):
    """Feedback that is a parameter, and nothing else held."""

    name, citation, about = "learned", "none", "none"
    wiring, has_feedback, learns_feedback = "cut", True, True

    def setup(self, trace, generator):
        self.b = nn.Parameter(torch.randn(trace.logits.shape[-1], 8, generator=generator).to(trace.logits))

    def credits(self, trace):
        return [trace.error @ self.b.detach() for _ in trace.states]


def test_a_rule_that_holds_feedback_must_say_so():
    model = ResMLP(6, 4, depth=2, width=8)
    (failed,) = [c for c in check_rule(Held(), model) if c.status == "fail"]
    assert failed.name == "feedback" and "Set has_feedback" in failed.sentence
    assert all(check.status == "pass" for check in check_rule(Said(), model))


def test_feedback_that_is_a_parameter_is_feedback():
    model, (x, y) = ResMLP(6, 4, depth=2, width=8).double(), batch()
    rule = Learned()
    assert not rule.ready
    rule.setup(Adapter(model).probe(x, y), torch.Generator().manual_seed(0))
    assert rule.ready
    report = FAProtocol(model, x, y, rule=rule).measure()
    assert report.table.number("alignment.cosine@1", 0, 1) is not None and not report.notes


def test_a_rule_that_breaks_on_a_net_fails_there_and_the_others_are_checked(monkeypatch):
    class Breaks(Said):
        name = "breaks"

        def credits(self, trace):
            raise KeyError("nowhere")

    monkeypatch.setitem(rules._entries, "breaks", Breaks)
    found = check_all("breaks")
    assert {checks[0].sentence for checks in found.values()} == {"It breaks: KeyError: 'nowhere'"}


def test_samples_that_share_their_statistics_have_no_gradients_of_their_own():
    norm = nn.BatchNorm1d(8, track_running_stats=False)
    model, (x, y) = Blocks(nn.Sequential(norm, nn.Linear(8, 8))).double(), batch()
    found = metric_battery(model, x, y)
    of_gradients = [name for name in found if name.startswith(("grad", "fi", "per_sample"))]
    assert len(of_gradients) > 10 and all(math.isnan(found[name]) for name in of_gradients)
    assert found["metric_batch_loss"] > 0 and found["weight_l2"] > 0


def test_a_callback_knows_the_first_weights_of_a_wrapped_model():
    model, (x, y) = Blocks(nn.Linear(8, 8)).double(), batch()
    watch = BatteryCallback(x, y, metrics=["distance_from_init_l2"])
    row = watch(nn.DataParallel(model), 0)
    assert row is not None and row["distance_from_init_l2"] == 0


def test_forward_mode_goes_through_torchs_own_encoder_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model, (x, y) = _Tokens(layer).double().eval(), batch()
    found = check_rule("forward-gradient", model, x, y)
    open_ = {check.name for check in found if check.status != "pass"}
    assert open_ == {"diagnosed"}, "its credits are drawn, which cannot be held against a second draw"


class _Tokens(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(6, 24), nn.ModuleList([layer])
        self.out_head = _Mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out_head(self.blocks[0](self.stem(x).view(len(x), 3, 8)))


class _Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.linear(h.mean(1))


class _TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, h: torch.Tensor, scale: float) -> torch.Tensor:
        return self.linear(h) * scale


class Scaled(Blocks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.out_head(h, 2.0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_head_that_takes_more_than_a_state_is_refused_in_plain_words(name):
    model, (x, y) = Scaled(nn.Linear(8, 8), head=_TwoInputs()).double(), batch()
    with pytest.raises(NotApplicable, match=r"head\(out_ln\(h_L\)\)"):
        FAProtocol(model, x, y, rule=name).run()


class Rectified(Blocks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.out_head(torch.relu(h))


@pytest.mark.parametrize("name", [*LAYERWISE, *ESTIMATORS])
def test_training_is_refused_where_the_credit_would_miss_a_part_of_the_net(name):
    model, (x, y) = Rectified(nn.Linear(8, 8)).double(), batch()
    net = Adapter(model)
    with pytest.raises(NotApplicable, match=r"head\(out_ln\(h_L\)\)"):
        make_rule(name).setup(net.probe(x, y), torch.Generator().manual_seed(0))


class Reversed(torch.autograd.Function):
    """A gradient reversal: the same numbers forward, the opposite ones back."""

    @staticmethod
    def forward(ctx, h):
        return h.view_as(h)

    @staticmethod
    def backward(ctx, g):
        return -g


def test_a_backward_hook_on_a_block_is_nothing_between_blocks_and_a_detached_state_is():
    model, (x, y) = Blocks(nn.Linear(8, 8), nn.Linear(8, 8)).double(), batch()
    model.blocks[0].register_full_backward_hook(lambda *given: None)
    assert Adapter(model).probe(x, y).contiguous
    assert Adapter(model).probe(x, y).sequential
    for between in (lambda h: Reversed.apply(h), lambda h: h.view_as(h).mul_(3.0)):
        changed = Blocks(nn.Linear(8, 8), nn.Linear(8, 8)).double()
        changed.blocks[1].register_forward_pre_hook(lambda m, args, b=between: (b(args[0]),), prepend=True)
        assert not Adapter(changed).probe(x, y).contiguous
    detached = Blocks(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))).double()
    detached.blocks[1].register_forward_pre_hook(lambda module, args: (args[0].detach(),), prepend=True)
    assert not Adapter(detached).probe(x, y).contiguous


def test_a_head_that_cannot_be_run_alone_is_not_called_something_else():
    """As under autocast, where the state that the head receives has another precision."""

    class Picky(nn.Linear):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            if not self.training_pass:
                raise RuntimeError("expected m1 and m2 to have the same dtype")
            return super().forward(h)

    class Net(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.out_head.training_pass = True
            try:
                return super().forward(x)
            finally:
                self.out_head.training_pass = False

    model, (x, y) = Net(nn.Linear(8, 8), head=Picky(8, 4)).double(), batch()
    net = Adapter(model)
    for name in LAYERWISE:
        rule = ready_rule(name, net, x, y)
        rule.deposit_gradients(net, x, y)


@pytest.mark.parametrize("name", ["bp", "dfa", "fa", "kolen-pollack", "ep", "forward-gradient"])
def test_inference_mode_around_an_audit_changes_nothing(name):
    model, (x, y) = ResMLP(6, 4, depth=2, width=8).double(), batch()
    rule = ready_rule(name, Adapter(model), x, y)
    usual = FAProtocol(model, x, y, rule=rule).measure().table
    with torch.inference_mode():
        within = FAProtocol(model, x, y, rule=rule).measure().table
    assert within.to_csv() == usual.to_csv()


def test_a_net_without_linears_needs_inputs_to_be_checked_on():
    model = Blocks(nn.Conv1d(8, 8, 1), head=nn.Conv1d(8, 4, 1))
    model.stem = nn.Conv1d(6, 8, 1)
    with pytest.raises(BadInput, match="does not tell how wide"):
        check_rule("bp", model)


@pytest.mark.parametrize("shape", [(1, 8), (5, 1)])
def test_a_credit_of_another_shape_is_refused_and_not_spread(shape):
    h, a, g = torch.randn(5, 8), torch.randn(shape), torch.randn(5, 8)
    for measure in (credit_metrics.nudge, credit_metrics.perturbation_correlation):
        with pytest.raises(BadInput, match="must have one shape"):
            measure(lambda s: s.square().sum(1), h, a, g, torch.Generator().manual_seed(0))


class Restless(ResMLP):
    """It moves a weight whenever it is run."""

    def forward(self, x):
        with torch.no_grad():
            self.out_head.bias.add_(1e-3)
        return super().forward(x)


def test_a_model_that_writes_to_its_parameters_is_refused_by_name():
    x, y = batch()
    with pytest.raises(BadInput, match=r"changes its parameter 'out_head.bias'"):
        FAProtocol(Restless(6, 4, depth=2, width=8).double(), x, y).run()


class Sly(Restless):
    """It moves a weight where torch does not count it."""

    def forward(self, x):
        self.out_head.bias.data.add_(1e-3)
        return ResMLP.forward(self, x)


@pytest.mark.parametrize("kind", [Restless, Sly])
def test_a_model_that_changed_its_parameters_gets_them_back(kind):
    net, (x, y) = kind(6, 4, depth=2, width=8).double(), batch()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(BadInput, match="changes its parameter"):
        FAProtocol(net, x, y).run()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


class Capped(ResMLP):
    """A table that is written to at every pass and changed by none, and a layer made at the first."""

    def __init__(self):
        super().__init__(6, 4, depth=2, width=8)
        self.table, self.late = nn.Embedding(4, 8, max_norm=100.0), nn.LazyLinear(6)

    def forward(self, x):
        row = self.table(torch.zeros(len(x), dtype=torch.long))
        return super().forward(x + 0 * row.sum() + 0 * self.late(x))


def test_a_parameter_that_is_written_to_and_stays_the_same_is_no_change():
    net, (x, y) = Capped().double(), batch()
    assert FAProtocol(net, x, y).run()["verdict"] == "INCOMPLETE(D3)"
