"""The light tier against slow versions, and the traps it exists to avoid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.conftest import ArrayFeed, ready_rule
from walkback.core.errors import BadInput
from walkback.core.quantities import QUANTITIES, Measurements
from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.judge.thresholds import Thresholds
from walkback.measure import measure_light, measure_rule
from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.rules import make_rule
from walkback.train import Recipe, TrainState, train


def measured(net, rule, x, y):
    with net.evaluating():
        trace = net.probe(x, y)
        return trace, measure_light(trace, rule.credits(trace), 0)


def test_every_light_quantity_equals_its_slow_version(net, batch):
    x, y = batch
    rule = ready_rule("dfa", net, x, y)
    trace, table = measured(net, rule, x, y)
    n, number = len(y), lambda q, layer=None: table.number(q, 0, layer)
    states, slow_g = [h.detach() for h in trace.states], []
    for layer in range(4):
        h = states[layer].clone().requires_grad_()
        slow_g.append(torch.autograd.grad(F.cross_entropy(trace.tail(layer, h), y, reduction="sum"), h)[0])
    norms = torch.stack([h.norm(dim=1) for h in states])
    e = trace.logits.detach().softmax(-1) - F.one_hot(y, 5)
    for layer in range(4):
        assert number("scale.state_norm@1", layer) == pytest.approx(float(norms[layer].quantile(0.5)))
        g, a = slow_g[layer], e @ rule.get_buffer(f"feedback_{layer}")
        assert number("reference.norm@1", layer) == pytest.approx(float(g.norm(dim=1).quantile(0.5)))
        cosines = F.cosine_similarity(a, g, eps=0)
        assert number("alignment.cosine@1", layer) == pytest.approx(float(cosines.mean()))
        assert number("alignment.cosine_median@1", layer) == pytest.approx(float(cosines.quantile(0.5)))
        assert number("alignment.cosine_sd@1", layer) == pytest.approx(float(cosines.std()))
        assert number("alignment.n_valid@1", layer) == n
    growth = [float((norms[i + 1] / norms[i]).quantile(0.5)) for i in range(3)]
    assert [number("scale.growth@1", i) for i in (1, 2, 3)] == pytest.approx(growth)
    assert number("scale.growth_max@1") == pytest.approx(max(growth))
    assert number("scale.growth_total@1") == pytest.approx(float((norms[3] / norms[0]).quantile(0.5)))
    mean_part = (states[3].mean(1).abs() * 4 / norms[3]).quantile(0.5)
    assert number("scale.mean_part@1") == pytest.approx(float(mean_part))
    ratio = slow_g[3].norm(dim=1) / e.norm(dim=1)
    assert number("reference.error_norm@1") == pytest.approx(float(e.norm(dim=1).quantile(0.5)))
    assert number("reference.validity@1") == pytest.approx(float(ratio.quantile(0.5)) / 128)
    assert number("reference.compat@1") == pytest.approx(float(slow_g[3].norm(dim=1).quantile(0.5)) / n)
    deep = sum(number("alignment.cosine@1", i) for i in (1, 2, 3)) / 3
    assert number("alignment.deep_cosine@1") == pytest.approx(deep)
    a_all = torch.cat([e @ rule.get_buffer(f"feedback_{i}") for i in range(4)], 1)
    concat = F.cosine_similarity(a_all, torch.cat(slow_g, 1)).mean()
    assert number("alignment.gamma_concat@1") == pytest.approx(float(concat), abs=1e-6)
    gamma = sum(number("alignment.cosine_compat@1", i) for i in range(4)) / 4
    assert number("alignment.gamma_mean@1") == pytest.approx(gamma)
    taken = {reading.quantity for reading in table}
    full = {q for q in QUANTITIES if q.startswith(("nudge.", "perturbation.")) or "null" in q}
    full |= {"alignment.parameter_cosine@1", "alignment.stability@1", "accuracy.validation@1"}
    full |= {"settling.residual@1"}  # only rules that settle have one
    assert taken == set(QUANTITIES) - full - {"accuracy.test@1", "loss.test@1", "loss.train@1"}


def test_float64_error_is_that_of_the_model_in_float64():
    torch.manual_seed(0)
    net = Adapter(ResMLP(12, 5, depth=2, width=16))
    x, y = torch.randn(32, 12), torch.randint(5, (32,))
    _, table = measured(net, make_rule("bp"), x, y)
    relerr = table.number("reference.float64_relerr@1", 0)
    assert 1e-9 < relerr < 1e-5
    double = Adapter(net.model.double())
    _, table = measured(double, make_rule("bp"), x.double(), y)
    assert table.get("reference.float64_relerr@1", 0).status == "not_applicable"


def test_a_model_that_cannot_run_in_float64_is_audited_without_that_comparison():
    class Constant(ResMLP):
        def forward(self, x):
            return super().forward(x @ torch.eye(12, dtype=torch.float32))

    net = Adapter(Constant(12, 5, depth=2, width=16))
    _, table = measured(net, make_rule("bp"), torch.randn(8, 12), torch.randint(5, (8,)))
    assert table.get("reference.float64_relerr@1", 0).status == "not_applicable"
    assert table.number("reference.validity@1", 0) > 0


def scaled_states(model, factor):
    """Every state times `factor`, the function kept: the norms divide it out (up to their eps)."""
    with torch.no_grad():
        for linear in (model.stem, *(block.fc2 for block in model.blocks)):
            linear.weight.mul_(factor)
            linear.bias.mul_(factor)
    return model


def test_scaling_the_states_keeps_our_cosine_and_collapses_the_clamped_one():
    torch.manual_seed(0)
    model = ResMLP(12, 5, depth=3, width=32)
    for ln in [*(block.ln for block in model.blocks), model.out_ln]:
        ln.eps = 0.0
    x, y = torch.randn(2048, 12), torch.randint(5, (2048,))
    net = Adapter(model)
    rule = ready_rule("dfa", net, x, y)
    before, one = measured(net, rule, x, y)
    scaled_states(model, 1e6)
    after, other = measured(net, rule, x, y)
    assert torch.allclose(before.logits, after.logits, atol=1e-4)
    for layer in range(4):
        exact = [table.number("alignment.cosine@1", 0, layer) for table in (one, other)]
        clamped = [table.number("alignment.cosine_compat@1", 0, layer) for table in (one, other)]
        assert exact[0] == pytest.approx(exact[1], abs=1e-4)
        assert clamped[0] == pytest.approx(exact[0], abs=1e-4)
        assert abs(clamped[1]) < 0.2 * abs(exact[1])
    assert other.number("reference.unit_probe@1", 0) < 0.2
    assert one.number("reference.unit_probe@1", 0) == 1.0


def trained(data, rule, *, lr, epochs, batch, items=None, schedule="constant"):
    torch.manual_seed(0)
    x, y = torch.from_numpy(data.x_train[:items]), torch.from_numpy(data.y_train[:items])
    net = Adapter(ResMLP(x.shape[1], 10, depth=4, width=64, expansion=2))
    rule = ready_rule(rule, net, x[:4], y[:4])
    recipe = Recipe(epochs=epochs, batch=batch, lr=lr, weight_decay=0.01, schedule=schedule, seed=0)
    assert train(TrainState(net, rule), ArrayFeed(x, y), recipe, on_epoch=lambda state: None) is None
    return net


def reference_at(net, x, y, sizes=(32, 2048)):
    """D2's value and the paper's on the first N rows."""
    assert len(y) >= max(sizes)
    tables = [measured(net, make_rule("bp"), x[:n], y[:n])[1] for n in sizes]
    return [[table.number(f"reference.{q}@1", 0) for table in tables] for q in ("validity", "compat")]


def test_d2_does_not_flag_a_fitted_healthy_net_and_does_not_move_with_the_batch():
    data = load_dataset(Call("digits"))
    net = trained(data, "bp", lr=1e-2, epochs=40, batch=64, schedule="cosine")
    x, y = (torch.from_numpy(a) for a in (data.x_test, data.y_test))
    assert (net.model(x).argmax(1) == y).float().mean() > 0.95
    # 1,347 training digits and some of them twice: the fit is what is tested here.
    x, y = (torch.from_numpy(np.concatenate([a, a])) for a in (data.x_train, data.y_train))
    ours, paper = reference_at(net, x, y)
    limit = Thresholds().validity
    assert all(value > 1000 * limit for value in ours)
    assert ours[0] == pytest.approx(ours[1], rel=0.3)
    assert paper[1] < limit, "the paper's number flags this healthy net"
    assert paper[0] > 10 * paper[1], "and moves with the batch"


def test_d2_flags_an_exploded_dfa_net_at_every_batch_size():
    data = load_dataset(Call("digit-sums"))
    net = trained(data, "dfa", lr=5e-2, epochs=9, batch=128, items=12_800)
    ours, _ = reference_at(net, torch.from_numpy(data.x_test), torch.from_numpy(data.y_test))
    assert all(value < Thresholds().validity for value in ours)
    assert ours[0] == pytest.approx(ours[1], rel=0.5)


def test_rows_fitted_beyond_float32_are_left_out_of_d2_and_counted():
    torch.manual_seed(0)
    model = ResMLP(12, 5, depth=2, width=16)
    with torch.no_grad():
        model.out_head.weight.mul_(300)
    net, x, y = Adapter(model), torch.randn(200, 12), torch.randint(5, (200,))
    trace, table = measured(net, make_rule("bp"), x, y)
    silent = int((trace.error.abs().sum(1) == 0).sum())
    assert silent > 5
    assert table.number("reference.n_valid@1", 0) == 200 - silent
    assert table.number("reference.validity@1", 0) is not None


def test_growth_is_rms_so_that_a_narrower_state_is_not_growth():
    class Narrowing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList([torch.nn.AvgPool1d(4), torch.nn.Identity()])
            self.out_head = torch.nn.Linear(4, 3)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.out_head(x)

    x = torch.ones(8, 16, dtype=torch.float64)
    net = Adapter(Narrowing().double())
    _, table = measured(net, make_rule("bp"), x, torch.zeros(8, dtype=torch.long))
    assert table.number("scale.growth@1", 0, 1) == pytest.approx(1.0)
    assert table.number("scale.state_norm@1", 0, 1) == pytest.approx(2.0)


def test_the_mean_part_is_taken_per_token_as_a_layer_norm_does():
    from tests.nets.test_trace import TokenNet

    class Once(TokenNet):
        def forward(self, ids):
            h = torch.ones(len(ids), 2, 8, dtype=torch.float64)
            h[:, 1] = -1
            for layer in self.layers:
                h, _ = layer(hidden=h, scale=0.0)
            return self.classifier(h.mean(1))

    net = Adapter(Once().double(), blocks="layers", head="classifier")
    trace = net.probe(torch.zeros(4, 2, dtype=torch.long), torch.zeros(4, dtype=torch.long))
    assert measure_light(trace, None, 0).number("scale.mean_part@1", 0) == pytest.approx(1.0)


def test_the_features_of_a_map_are_its_channels():
    """Equal channels at every position, positions that cancel: the norm is all in the feature mean."""

    class Maps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList([torch.nn.Identity()])
            self.out_ln, self.out_head = torch.nn.Flatten(), torch.nn.Linear(24, 3)

        def forward(self, x):
            signs = torch.tensor([1.0, -1.0], dtype=x.dtype)
            h = x[:, :1, None, None] * signs[:, None] * torch.ones(1, 6, 2, 2, dtype=x.dtype)
            return self.out_head(self.out_ln(self.blocks[0](h)))

    net = Adapter(Maps().double())
    trace = net.probe(torch.ones(4, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.long))
    assert measure_light(trace, None, 0).number("scale.mean_part@1", 0) == pytest.approx(1.0)
    mean, total = (make_rule(f"dfa+penalty(weight=1,over={over})") for over in ("mean", "sum"))
    assert total.branch_weight(trace) == pytest.approx(6 * mean.branch_weight(trace))


def test_without_credits_alignment_is_not_applicable_never_a_number(net, batch):
    trace = net.probe(*batch)
    table = measure_light(trace, None, 0)
    alignment = [reading for reading in table if reading.quantity.startswith("alignment.")]
    assert alignment and all(r.status == "not_applicable" and math.isnan(r.value) for r in alignment)


def test_a_net_that_left_the_numbers_reads_nan_not_zero(net, batch):
    rule = ready_rule("dfa", net, *batch)
    with torch.no_grad():
        net.model.blocks[1].fc2.bias.fill_(math.nan)
    _, table = measured(net, rule, *batch)
    assert table.get("scale.growth_max@1", 0).status == "nan"
    assert table.get("reference.validity@1", 0).status == "nan"
    assert table.number("alignment.n_valid@1", 0, 3) == 0
    assert table.get("alignment.cosine@1", 0, 3).status == "nan"


def test_one_row_that_left_the_numbers_makes_a_median_nan_not_that_of_the_others(net, batch):
    def spoil(module, args, h):
        h = h.clone()
        h[0] = math.nan
        return h

    net.model.stem.register_forward_hook(spoil)
    _, table = measured(net, make_rule("bp"), *batch)
    for quantity in ("scale.growth_max@1", "scale.growth_total@1", "reference.validity@1"):
        assert table.get(quantity, 0).status == "nan"
    assert table.get("scale.state_norm@1", 0, 2).status == "nan"
    assert table.number("alignment.n_valid@1", 0, 2) == len(batch[1]) - 1


def test_what_a_rule_measured_itself_lands_in_the_table_under_its_quantity():
    torch.manual_seed(0)
    net = Adapter(ResMLP(12, 5, depth=2, width=16))
    trace = net.probe(torch.randn(8, 12), torch.arange(8) % 5)
    settling, table = make_rule("ep"), Measurements()
    settling.credits(trace)
    for text in ("bp", "dfa"):
        measure_rule(make_rule(text), 3, table)
    assert len(table) == 0, "most rules have nothing to say"
    measure_rule(settling, 3, table)
    (reading,) = table
    assert (reading.epoch, reading.quantity) == (3, "settling.residual@1")
    assert reading.value == settling.residual < 0.05
    with_penalty = make_rule("ep+penalty(0.01)")
    with_penalty.credits(trace)
    measure_rule(with_penalty, 4, table)
    assert table.number("settling.residual@1", 4) == settling.residual


def test_a_reading_of_an_unknown_quantity_is_refused_by_name(monkeypatch):
    rule = make_rule("bp")
    monkeypatch.setattr(rule, "readings", lambda: {"settling.mood@1": 0.5})
    with pytest.raises(BadInput, match=r"bp reports 'settling\.mood@1'"):
        measure_rule(rule, 0, Measurements())
