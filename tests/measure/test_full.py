"""The full tier against slow versions, closed forms, and the traps of absolute steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from tests.conftest import ready_rule
from tests.measure.test_light import scaled_states
from tests.rules.test_rules import gradients
from walkback.measure.directions import (
    each_loss,
    fixed_step_correlation,
    nudge,
    perturbation_correlation,
    random_unit_rows,
    stable_losses,
    unit_rows,
)
from walkback.measure.full import block_gradients, direction_stability, measure_full, row_losses
from walkback.measure.nulls import cosine_null, mean_cosines
from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.rules import make_rule


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_stable_losses_are_the_cross_entropy_with_its_digits_kept():
    logits = torch.randn(50, 7, dtype=torch.float64) * 5
    y = torch.randint(7, (50,))
    assert torch.allclose(stable_losses(logits, y), F.cross_entropy(logits, y, reduction="none"))
    fitted, label = torch.tensor([[40.0, 0.0, 0.0]]), torch.tensor([0])
    assert float(stable_losses(fitted, label)) == pytest.approx(2 * math.exp(-40), rel=1e-5)
    assert float(F.cross_entropy(fitted, label)) == 0.0, "the usual form has lost it"


def test_unit_rows_have_norm_one_at_any_scale_and_zero_stays_zero():
    rows = torch.tensor([[3.0, 4.0], [3e-30, 4e-30], [3e30, 4e30], [0.0, 0.0]])
    assert torch.allclose(unit_rows(rows)[:3], torch.tensor([0.6, 0.8]).expand(3, 2))
    assert torch.equal(unit_rows(rows)[3], torch.zeros(2))


def quadratic(n=6, d=8):
    """Φ(h) = ½‖h − t‖² per row: gradient h − t, everything in closed form."""
    rng = generator(3)
    h, target = (torch.randn(n, d, generator=rng, dtype=torch.float64) for _ in range(2))
    return h, h - target, lambda s: 0.5 * (s - target).square().sum(1)


def test_the_nudge_of_the_gradient_is_one_and_of_its_opposite_minus_one():
    h, g, losses = quadratic()
    assert nudge(losses, h, g, g, generator()).ratio == 1.0
    assert nudge(losses, h, 7 * g, g, generator()).ratio == pytest.approx(1.0)
    assert nudge(losses, h, -g, g, generator()).ratio == pytest.approx(-1.0)


def test_the_nudge_equals_its_closed_form_on_a_quadratic():
    """½[Φ(h−s) − Φ(h+s)] = −⟨s, g⟩ exactly, with s = η‖h‖u."""
    h, g, losses = quadratic()
    a = torch.randn(h.shape, generator=generator(5), dtype=torch.float64)
    found = nudge(losses, h, a, g, generator())
    size = h.norm(dim=1)
    along = [(size * (unit_rows(v) * g).sum(1)).mean() for v in (a, g)]
    assert found.ratio == pytest.approx(float(along[0] / along[1]), rel=1e-9)
    assert found.eta == 1e-2 and found.n_valid == len(h)


def test_random_directions_are_zero_within_the_band(net, batch):
    trace = net.probe(*batch)
    for layer in range(4):
        h, g = trace.states[layer].detach(), trace.reference[layer]
        band = nudge(row_losses(trace, layer), h, g, g, generator(layer), directions=60)
        assert abs(band.band_mean) < 4 * band.band_sd / 60**0.5
        other = random_unit_rows(h, generator(99))
        ratio = nudge(row_losses(trace, layer), h, other, g, generator(layer)).ratio
        assert abs(ratio) < 5 * band.band_sd


def test_a_step_that_overshoots_is_halved_and_a_hopeless_one_is_not_applicable():
    h, g, losses = quadratic()

    def wavy(s):
        return losses(s) + 3 * torch.sin(400 * (s - h)).sum(1)

    assert nudge(wavy, h, g, g, generator()).eta <= 1e-2
    rising = nudge(lambda s: -losses(s), h, g, g, generator())
    assert math.isnan(rising.ratio) and rising.n_valid == 0
    silent = nudge(losses, h, torch.zeros_like(h), g, generator())
    assert math.isnan(silent.ratio)


def slow_perturbation(losses, h, a, draws, size, rng):
    """Row by row, direction by direction, with scipy's correlations."""
    p, q = [], []
    for _ in range(draws):
        v = random_unit_rows(h, rng)
        q.append((losses(h + size * v) - losses(h - size * v)).numpy())
        p.append((a * v).sum(1).numpy())
    p, q = np.array(p), np.array(q)
    pearson = [stats.pearsonr(p[:, i], q[:, i]).statistic for i in range(len(h))]
    spearman = [stats.spearmanr(p[:, i], q[:, i]).statistic for i in range(len(h))]
    return np.mean(pearson), np.mean(spearman)


def test_perturbation_correlation_equals_the_slow_version(net, batch):
    trace = net.probe(*batch)
    rule = ready_rule("dfa", net, *batch)
    for layer in (0, 2):
        h, g, a = trace.states[layer].detach(), trace.reference[layer], rule.credits(trace)[layer]
        losses = row_losses(trace, layer)
        found = perturbation_correlation(losses, h, a, g, generator(7))
        size = 1e-3 * h.norm(dim=1, keepdim=True)
        rho, spearman = slow_perturbation(losses, h, a, 32, size, generator(7))
        assert found.rho == pytest.approx(rho, abs=1e-9)
        assert found.rho_spearman == pytest.approx(spearman, abs=1e-9)
        fixed = fixed_step_correlation(losses, h, a, g, generator(7))
        rho, _ = slow_perturbation(losses, h, a, 32, 1e-3, generator(7))
        ceiling, _ = slow_perturbation(losses, h, g, 32, 1e-3, generator(7))
        assert (fixed.rho, fixed.ceiling) == pytest.approx((rho, ceiling), abs=1e-9)
        assert fixed.moved == len(h)


def test_in_the_linear_regime_rho_equals_the_cosine_within_its_error(net, batch):
    trace = net.probe(*batch)
    h, g = trace.states[1].detach(), trace.reference[1]
    for weight in (0.0, 0.5, 2.0):
        noise = torch.randn(g.shape, generator=generator(11), dtype=torch.float64)
        a = unit_rows(g) + weight * unit_rows(noise)
        cosine = float(F.cosine_similarity(a, g).mean())
        found = perturbation_correlation(row_losses(trace, 1), h, a, g, generator(13), directions=256)
        assert found.rho == pytest.approx(cosine, abs=4 * found.se + 0.01)
        assert found.ceiling > 0.999


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6, 1e8])
def test_rho_of_the_exact_gradient_stays_near_one_at_every_scale(scale):
    for h, g, losses in scaled_layers(scale):
        found = perturbation_correlation(losses, h, g, g, generator())
        assert found.ceiling >= 0.99 and found.rho == pytest.approx(found.ceiling)


def scaled_layers(scale):
    """State, gradient and losses of each layer of a net whose states are `scale` times as large."""
    torch.manual_seed(0)
    model = scaled_states(ResMLP(12, 5, depth=3, width=32), scale)
    trace = Adapter(model).probe(torch.randn(64, 12), torch.randint(5, (64,)))
    return [(trace.states[n].detach(), trace.reference[n], row_losses(trace, n)) for n in range(4)]


def test_a_fixed_step_reads_less_of_the_exact_gradient_the_larger_the_states_and_in_the_end_nothing():
    read = []
    for scale in (1.0, 1e3, 1e4, 1e8):
        h, g, losses = scaled_layers(scale)[-1]
        read.append(fixed_step_correlation(losses, h, g, g, generator()))
        assert read[-1].rho == read[-1].ceiling
    assert read[0].ceiling > 0.999 and read[0].moved == 64
    assert read[0].ceiling > read[1].ceiling > read[2].ceiling
    assert read[2].ceiling < 0.5 and read[2].moved > 0, "what moves there is rounding"
    assert (read[3].ceiling, read[3].moved) == (0.0, 0), "no loss moves: nothing is read, and that is said"


def test_a_fixed_step_tells_a_loss_that_stands_still_from_a_credit_that_is_none():
    h, g, losses = quadratic()
    still = fixed_step_correlation(lambda s: losses(s) * 0, h, g, g, generator())
    assert (still.rho, still.ceiling, still.moved) == (0.0, 0.0, 0)
    for loss in (losses, lambda s: losses(s) * 0):
        assert math.isnan(fixed_step_correlation(loss, h, 0 * g, g, generator()).rho)
    lost = fixed_step_correlation(lambda s: losses(s) * math.nan, h, g, g, generator())
    assert math.isnan(lost.rho) and lost.moved == 0


def test_the_reading_by_a_fixed_step_goes_along_the_same_directions_and_changes_no_other(net, batch):
    with net.evaluating():
        trace, rule = net.probe(*batch), ready_rule("dfa", net, *batch)
        plain, both = (
            measure_full(trace, rule, 1, generator(), draws=9, compat=compat) for compat in (False, True)
        )
    names = {reading.quantity for reading in both} - {reading.quantity for reading in plain}
    assert names == {f"perturbation.{name}_compat@1" for name in ("rho", "ceiling", "moved")}
    assert list(plain) == [reading for reading in both if reading.quantity not in names]
    for layer in range(4):  # in float64, where nothing drowns, the size of the step matters little
        relative, fixed = (both.number(f"perturbation.{n}@1", 1, layer) for n in ("rho", "rho_compat"))
        assert fixed == pytest.approx(relative, abs=1e-3)


def test_the_tail_of_a_sequential_net_skips_what_lies_below(net, batch):
    trace = net.probe(*batch)
    assert trace.sequential
    for layer in range(4):
        h = trace.states[layer] + 0.1
        assert torch.allclose(trace.tail(layer, h), net.forward_from(batch[0], layer, h))

    class Halved(ResMLP):
        def forward(self, x):
            return super().forward(x) / 2

    assert not Adapter(Halved(12, 5, depth=3, width=16).double()).probe(*batch).sequential


def test_parameter_gradients_are_those_of_training_and_the_model_is_left_alone(net, batch):
    trace = net.probe(*batch)
    rule = ready_rule("dfa", net, *batch)
    net.model.stem.weight.grad = torch.ones_like(net.model.stem.weight)
    net.model.out_head.weight.requires_grad_(False)
    found = block_gradients(rule, trace)
    assert (net.model.stem.weight.grad == 1).all() and not net.model.out_head.weight.requires_grad
    assert net.model.stem.bias.grad is None
    net.model.out_head.weight.requires_grad_(True)
    whole = gradients(rule, net, *batch)
    assert torch.equal(found[0], torch.cat([whole["stem.weight"].flatten(), whole["stem.bias"]]))
    second = torch.cat([whole[n].flatten() for n in whole if n.startswith("blocks.1.")])
    assert torch.equal(found[2], second)


def test_stability_tells_one_direction_from_noise():
    rng = generator(1)
    noise = torch.randn(400, 50, generator=rng)
    assert direction_stability(noise + 3.0) > 0.99
    assert abs(direction_stability(noise)) < 0.5
    assert direction_stability(torch.cat([noise[:200] + 3, noise[200:] - 3])) < -0.98
    assert math.isnan(direction_stability(torch.zeros(4, 3)))


def test_a_row_that_does_not_vary_has_no_rank_correlation():
    rng = np.random.default_rng(0)
    h, g = torch.tensor(rng.normal(size=(8, 5))), torch.tensor(rng.normal(size=(8, 5)))
    g[::2] = 0  # their loss is constant

    def losses(state):
        return (state * g).sum(-1)

    found = perturbation_correlation(losses, h, g, g, generator())
    assert found.rho == pytest.approx(1) and found.rho_spearman == pytest.approx(1)
    nothing = perturbation_correlation(losses, h, 0 * g, g, generator())
    assert math.isnan(nothing.rho) and math.isnan(nothing.rho_spearman)


@pytest.mark.parametrize("rule", ["pepita", "dfa", "kolen-pollack"])
def test_the_full_tier_of_a_rule_can_be_measured(net, batch, rule):
    with net.evaluating():
        table = measure_full(net.probe(*batch), ready_rule(rule, net, *batch), 1, generator(), draws=9)
    assert table.number("alignment.deep_null_p@1", 1) is not None


def test_the_null_of_fresh_feedback_is_centred_and_backprop_lies_outside_its_own(net, batch):
    trace = net.probe(*batch)
    dfa = cosine_null(ready_rule("dfa", net, *batch), trace, generator(), draws=99)
    assert dfa.kind == "fresh feedback" and dfa.draws == 99
    for mean, sd in zip(dfa.mean, dfa.sd, strict=True):
        assert abs(mean) < 4 * sd / 99**0.5 + 0.01
    bp = cosine_null(make_rule("bp"), trace, generator(), draws=99)
    assert bp.kind == "shuffled samples"
    assert all(p == pytest.approx(0.01) for p in bp.p) and all(z > 5 for z in bp.z)
    assert bp.deep_p == pytest.approx(0.01)


def test_the_deep_null_and_its_first_twenty_draws_are_those_of_feedback_drawn_one_by_one(net, batch):
    trace, rng = net.probe(*batch), generator()
    null = cosine_null(ready_rule("dfa", net, *batch), trace, rng, draws=30)
    rule, rng, deep = make_rule("dfa"), generator(), []
    for _ in range(30):
        rule.setup(trace, rng)
        deep.append(np.mean(mean_cosines(rule.credits(trace), trace)[1:]))
    assert (null.deep_mean, null.deep_sd) == pytest.approx((np.mean(deep), np.std(deep, ddof=1)), rel=1e-4)
    few = deep[:20]
    assert (null.few_mean, null.few_sd) == pytest.approx((np.mean(few), np.std(few, ddof=1)), rel=1e-4)
    fewer = cosine_null(ready_rule("dfa", net, *batch), trace, generator(), draws=19)
    assert math.isnan(fewer.few_mean) and math.isnan(fewer.few_sd), "nineteen draws are not twenty"


def test_where_no_feedback_reaches_the_null_is_that_of_shuffled_samples(net, batch):
    trace = net.probe(*batch)
    below = cosine_null(ready_rule("mixed(stem=dfa,blocks=bp)", net, *batch), trace, generator(), draws=99)
    assert below.deep_p == pytest.approx(0.01) and all(p == pytest.approx(0.01) for p in below.p[1:])
    above = cosine_null(ready_rule("mixed(stem=bp,blocks=dfa)", net, *batch), trace, generator(), draws=99)
    assert above.p[0] == pytest.approx(0.01) and above.sd[0] > 0
    dfa = cosine_null(ready_rule("dfa", net, *batch), trace, generator(), draws=99)
    assert above.mean[1:] == dfa.mean[1:], "the null of the blocks is still that of fresh feedback"


def test_rank_p_is_uniform_for_a_rule_that_is_its_own_null(net, batch):
    """A rule with feedback drawn like the null's must not look special: p spread over (0, 1]."""
    trace = net.probe(*batch)
    values = [
        cosine_null(ready_rule("dfa", net, *batch, seed=100 + i), trace, generator(i), draws=19).deep_p
        for i in range(60)
    ]
    assert stats.kstest(values, "uniform").pvalue > 0.001
    assert min(values) >= 1 / 20


def test_a_null_leaves_the_rule_with_the_feedback_it_had(net, batch):
    trace, rule = net.probe(*batch), ready_rule("dfa", net, *batch)
    before = mean_cosines(rule.credits(trace), trace)
    cosine_null(rule, trace, generator(), draws=5)
    assert mean_cosines(rule.credits(trace), trace) == before


def test_credit_metrics_stand_on_their_own():
    from walkback import credit_metrics
    from walkback.core.errors import BadInput

    a, g = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[5e-10, 0.0], [1.0, 0.0]])
    found = credit_metrics.cosine(a, g)
    assert (found.mean, found.n_valid, found.n) == (pytest.approx(0.6), 1, 2)
    assert credit_metrics.cosine(a[:1], g[:1]).compat == pytest.approx(0.03, rel=1e-3)
    assert credit_metrics.corrected(0.03, 5e-10) == pytest.approx(0.6)
    assert credit_metrics.corrected(0.3, 1.0) == 0.3
    for wrong in (lambda: credit_metrics.cosine(a, g[:1]), lambda: credit_metrics.corrected(0.1, 0.0)):
        with pytest.raises(BadInput):
            wrong()
    h, gradient, losses = quadratic()
    assert credit_metrics.nudge(losses, h, gradient, gradient, generator()).ratio == 1.0
    rho = credit_metrics.perturbation_correlation(losses, h, gradient, gradient, generator())
    assert rho.rho == pytest.approx(1.0)


def test_the_full_tier_says_what_each_measure_says(net, batch):
    with net.evaluating():
        trace = net.probe(*batch)
        table = measure_full(trace, make_rule("bp"), 4, generator(), draws=19)
    for layer in range(4):
        assert table.number("nudge.ratio@1", 4, layer) == 1.0
        assert table.number("perturbation.rho@1", 4, layer) > 0.99
        assert table.number("alignment.parameter_cosine@1", 4, layer) == pytest.approx(1.0)
        assert table.number("alignment.null_z@1", 4, layer) > 5
    assert table.number("alignment.null_draws@1", 4) == 19
    with torch.no_grad():
        net.model.blocks[0].fc2.bias.fill_(math.nan)
    broken = measure_full(net.probe(*batch), make_rule("bp"), 4, generator(), draws=3)
    assert broken.get("nudge.ratio@1", 4, 3).status == "not_applicable"
    assert broken.get("perturbation.rho@1", 4, 3).status == "nan"


def test_a_stack_of_states_gives_the_losses_of_each_alone(net, batch):
    trace = net.probe(*batch)
    for layer in range(trace.depth + 1):
        losses = row_losses(trace, layer)
        h = trace.states[layer].detach()
        stack = torch.stack([h, 2 * h, h + 0.1])
        alone = torch.stack([losses(state) for state in stack])
        assert hasattr(losses, "of_stack")
        assert torch.allclose(each_loss(losses, stack), alone, rtol=1e-12)
        assert torch.equal(each_loss(lambda s, f=losses: f(s), stack), alone), "and without a stack pass"
