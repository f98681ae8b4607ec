"""The forms and combinations of rules, each against its formula written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.conftest import ready_rule
from tests.rules.test_rules import autograd_gradients, gelu_slope, gradients, relative
from walkback.check import check_rule
from walkback.core.errors import BadInput, NotApplicable, UnknownName
from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.judge.assemble import judge_bundles
from walkback.nets import Adapter
from walkback.nets.mlp import MLP
from walkback.nets.small_resnet import SmallResNet
from walkback.rules import describe_rule, make_rule, resolve_rule
from walkback.rules.dose import turn
from walkback.rules.normalise import _root_mean_square
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.store import Store


def test_fa_block_form_sends_credit_from_block_to_block_without_the_skip(net, batch):
    x, y = batch
    rule, trace = ready_rule("fa(form=block)", net, x, y), net.probe(x, y)
    b = [rule.get_buffer(f"feedback_{layer}") for layer in range(4)]
    assert [tuple(m.shape) for m in b] == [(16, 16)] * 3 + [(5, 16)]
    expected = [trace.error @ b[3] @ b[2] @ b[1] @ b[0], trace.error @ b[3] @ b[2] @ b[1]]
    expected += [trace.error @ b[3] @ b[2], trace.error @ b[3]]
    for mine, slow in zip(rule.credits(trace), expected, strict=True):
        assert relative(mine, slow) < 1e-12
    found = gradients(rule, net, x, y)
    block, h = net.model.blocks[1], trace.states[1].detach()
    names, parameters = zip(*block.named_parameters(), strict=True)
    local = torch.autograd.grad(((block(h) - h) * expected[2]).sum() / len(y), parameters)
    for name, gradient in zip(names, local, strict=True):
        assert relative(found[f"blocks.1.{name}"], gradient) < 1e-12


def test_fa_block_feedback_reaches_all_blocks_below_it_and_none_above(net, batch):
    rule = ready_rule("fa(form=block)", net, *batch)
    before = gradients(rule, net, *batch)
    rule.get_buffer("feedback_1").mul_(-1)
    after = gradients(rule, net, *batch)
    changed = {
        name.rsplit(".", 2)[0] if "blocks" in name else name.split(".")[0]
        for name in before
        if not torch.equal(before[name], after[name])
    }
    assert changed == {"stem", "blocks.0"}


def test_dfa_skip_sum_lets_the_skip_carry_the_credits_of_all_blocks_above(net, batch):
    rule, trace = ready_rule("dfa(skip=sum)", net, *batch), net.probe(*batch)
    own = [trace.error @ rule.get_buffer(f"feedback_{layer}") for layer in range(4)]
    for layer, mine in enumerate(rule.credits(trace)):
        assert relative(mine, sum(own[layer:])) < 1e-12


def test_dfa_layer_form_gives_every_activation_its_own_projection(net, batch):
    """Written out: W2 learns from B_l e, W1 from (B e)∘gelu'(z), the norm from a third projection."""
    x, y = batch
    rule, trace = ready_rule("dfa(form=layer)", net, x, y), net.probe(x, y)
    found = gradients(rule, net, x, y)
    for layer in (1, 2, 3):
        block, h = net.model.blocks[layer - 1], trace.states[layer - 1].detach()
        sigma = (h.var(-1, unbiased=False, keepdim=True) + block.ln.eps).sqrt()
        unit = (h - h.mean(-1, keepdim=True)) / sigma
        n = unit * block.ln.weight + block.ln.bias
        z = n @ block.fc1.weight.T + block.fc1.bias
        a = trace.error @ rule.get_buffer(f"feedback_{layer}")
        dz = (trace.error @ rule.get_buffer(f"direct_blocks_{layer - 1}_fc2")) * gelu_slope(z)
        dn = trace.error @ rule.get_buffer(f"direct_blocks_{layer - 1}_fc1")
        expected = {
            "fc2.weight": a.T @ F.gelu(z), "fc2.bias": a.sum(0), "fc1.weight": dz.T @ n,
            "fc1.bias": dz.sum(0), "ln.weight": (dn * unit).sum(0), "ln.bias": dn.sum(0),
        }  # fmt: skip
        for name, gradient in expected.items():
            assert relative(found[f"blocks.{layer - 1}.{name}"], gradient / len(y)) < 1e-10, name


def test_the_three_forms_of_dfa_are_three_rules(net, batch):
    texts = ("dfa", "dfa(form=layer)", "dfa(skip=sum)")
    grads = [gradients(ready_rule(text, net, *batch), net, *batch) for text in texts]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert relative(grads[one]["blocks.0.fc1.weight"], grads[other]["blocks.0.fc1.weight"]) > 0.1


def test_frozen_with_another_stem_rule_trains_the_stem_by_its_credit(net, batch):
    frozen = make_rule("frozen(stem=dfa)")
    frozen.setup(net.probe(*batch), torch.Generator().manual_seed(2))
    dfa = ready_rule("dfa", net, *batch)
    assert frozen.ready and frozen.has_feedback
    for name in ("stem.weight", "stem.bias", "out_head.weight", "out_ln.weight"):
        assert torch.equal(gradients(frozen, net, *batch)[name], gradients(dfa, net, *batch)[name])
    assert {name.split(".")[0] for name in frozen.trained(net)} == {"stem", "out_ln", "out_head"}
    assert describe_rule(resolve_rule("frozen(stem=dfa)"))["role"] == "baseline"


def trained_parts(text, net):
    return {
        ".".join(n.split(".")[:2]) if "blocks" in n else n.split(".")[0]
        for n in make_rule(text).trained(net)
    }


def test_shallow_and_ladder_train_the_top_only(net, batch):
    assert trained_parts("shallow", net) == {"out_ln", "out_head"}
    assert trained_parts("ladder(2)", net) == {"blocks.1", "blocks.2", "out_ln", "out_head"}
    assert trained_parts("ladder(k=0)", net) == trained_parts("shallow", net)
    with pytest.raises(BadInput, match="does not fit a net of 3 blocks"):
        make_rule("ladder(4)").trained(net)
    rule = make_rule("shallow")
    kept = rule.trained(net)
    for name, parameter in net.model.named_parameters():
        parameter.requires_grad_(name in kept)
    rule.deposit_gradients(net, *batch)
    assert net.model.out_head.weight.grad is not None and net.model.stem.weight.grad is None


@pytest.mark.parametrize("stem", ["weight-mirror", "kolen-pollack", "dtp", "credit-bridge"])
def test_mixed_refuses_a_stem_whose_feedback_would_never_learn(stem):
    with pytest.raises(NotApplicable, match="learns its feedback as it goes"):
        make_rule(f"mixed(stem={stem},blocks=bp)")


@pytest.mark.parametrize("stem", ["dose(cosine=0.3)", "forward-gradient", "node-perturbation"])
@pytest.mark.parametrize("blocks", ["bp", "dfa"])
def test_a_stem_that_learns_from_noise_is_given_fresh_noise_in_every_step(net, batch, stem, blocks):
    rule = make_rule(f"mixed(stem={stem},blocks={blocks})")
    rule.setup(net.probe(*batch), torch.Generator().manual_seed(2))
    first, second = (rule.training_credits(net.trace(*batch, rule.wiring))[0] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("rule", ["kolen-pollack+penalty", "dtp+penalty", "frozen(stem=kolen-pollack)"])
def test_a_rule_made_from_another_is_ready_when_that_is(net, batch, rule):
    made = make_rule(rule)
    made.setup(net.probe(*batch), torch.Generator().manual_seed(2))
    assert made.ready and made.inner.ready


@pytest.mark.parametrize(
    "rule",
    ["bp", "dose(cosine=0.5)", "forward-gradient", "node-perturbation(draws=3)", "mixed(blocks=dfa)"],
)
def test_batch_norm_counts_one_pass_a_step_whatever_the_rule_does_beside_it(rule):
    torch.manual_seed(0)
    net = Adapter(SmallResNet(3 * 8 * 8, 3, depth=2, width=4, stages=2))
    x, y = torch.randn(6, 3, 8, 8), torch.arange(6) % 3
    made = make_rule(rule)
    made.setup(net.probe(x, y), torch.Generator().manual_seed(2))
    counts = [m for m in net.model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    before = [int(m.num_batches_tracked) for m in counts]
    net.model.train()
    made.deposit_gradients(net, x, y)
    assert [int(m.num_batches_tracked) for m in counts] == [n + 1 for n in before]


def test_a_state_of_zeros_has_a_credit_of_zeros_under_dtp():
    torch.manual_seed(0)
    net = Adapter(MLP(6, 3, depth=2, width=2))
    x, y = torch.randn(64, 6), torch.arange(64) % 3
    rule = ready_rule("dtp", net, x, y)
    trace = net.probe(x, y)
    assert (trace.states[-1] == 0).all(1).any(), "some rows of a narrow ReLU net are dead"
    assert all(torch.isfinite(a).all() for a in rule.credits(trace))


@pytest.mark.parametrize("weight", ["-1", "nan", "inf"])
def test_a_penalty_that_rewards_or_is_no_number_is_refused(weight):
    with pytest.raises(BadInput, match="weight of 0 or more"):
        make_rule(f"bp+penalty({weight})")


@pytest.mark.parametrize("blocks", ["dfa", "fa", "fa(form=block)", "bp"])
@pytest.mark.parametrize("stem", ["bp", "dfa"])
def test_mixed_takes_the_stem_from_one_rule_and_the_blocks_from_another(net, batch, stem, blocks):
    mixed = make_rule(f"mixed(stem={stem},blocks={blocks})")
    mixed.setup(net.probe(*batch), torch.Generator().manual_seed(2))
    inner, outer = mixed.inner, mixed.stem_rule
    found = gradients(mixed, net, *batch)
    of_blocks = gradients(inner, net, *batch)
    a0 = outer.credits(net.probe(*batch))[0]
    stem_gradient = a0.T @ batch[0] / len(batch[1])
    assert relative(found["stem.weight"], stem_gradient) < 1e-10
    for name in of_blocks:
        if not name.startswith("stem"):
            assert relative(found[name], of_blocks[name]) < 1e-10, name


def penalised(net, x, y, weight, *, detached):
    """Mean cross-entropy plus λ Σ_l mean ‖f_l‖², written out; its gradients by autograd."""
    h, total = net.model.stem(x), 0.0
    for block in net.model.blocks:
        source = h.detach() if detached else h
        branch = block.fc2(F.gelu(block.fc1(block.ln(source))))
        total = total + branch.square().sum(-1).mean()
        h = h + (block(h) - h)
    names, parameters = zip(*net.model.named_parameters(), strict=True)
    found = torch.autograd.grad(weight * total, parameters, allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, parameters, found, strict=True)
    }


def test_a_penalty_on_a_cut_rule_is_local_and_on_backprop_end_to_end(net, batch):
    x, y = batch
    for text, detached in (("dfa", True), ("bp", False)):
        plain = gradients(ready_rule(text, net, x, y), net, x, y)
        rule = ready_rule(f"{text}+penalty(0.3)", net, x, y)
        found = gradients(rule, net, x, y)
        extra = penalised(net, x, y, 0.3, detached=detached)
        for name in found:
            assert torch.allclose(found[name], plain[name] + extra[name], rtol=1e-9, atol=1e-12), (
                text,
                name,
            )
    assert extra["stem.weight"].abs().sum() > 0, "end to end reaches the stem"


def test_a_penalty_leaves_the_credits_alone_and_weight_zero_changes_nothing(net, batch):
    plain, zero = ready_rule("dfa", net, *batch), ready_rule("dfa+penalty(0)", net, *batch)
    one, other = gradients(plain, net, *batch), gradients(zero, net, *batch)
    assert all(torch.equal(one[name], other[name]) for name in one)
    for a, b in zip(plain.credits(net.probe(*batch)), zero.credits(net.probe(*batch)), strict=True):
        assert torch.equal(a, b)
    mean = gradients(ready_rule("dfa+penalty(weight=0.3,over=mean)", net, *batch), net, *batch)
    total = gradients(ready_rule("dfa+penalty(0.3)", net, *batch), net, *batch)
    name = "blocks.1.fc2.bias"
    assert torch.allclose((total[name] - one[name]) / 16, mean[name] - one[name], atol=1e-12)


@pytest.mark.parametrize(
    ("text", "label", "variant"),
    [
        ("dfa", "dfa", "dfa(form=block,skip=cut)"),
        ("dfa(form=layer)+penalty(1e-2)", "dfa(form=layer)+penalty(0.01)", None),
        (
            "dfa+penalty(1e-4)",
            "dfa+penalty(0.0001)",
            "dfa(form=block,skip=cut)+penalty(over=sum,weight=0.0001)",
        ),
        ("frozen(stem=dfa(skip=sum))", "frozen(stem=dfa(skip=sum))", "frozen(stem=dfa(skip=sum))"),
        ("mixed(stem=bp,blocks=fa)", "mixed(blocks=fa)", "mixed(blocks=fa,stem=bp)"),
    ],
)
def test_rules_are_written_and_read_back(text, label, variant):
    call = resolve_rule(text)
    assert resolve_rule(str(call)) == call
    about = describe_rule(call)
    assert about["label"] == label and about["variant"] == (variant or str(call))
    assert resolve_rule(label) == call


def test_an_unknown_addition_or_stem_is_refused():
    with pytest.raises(UnknownName, match="Unknown addition 'penlty'"):
        resolve_rule("dfa+penlty(1)")
    with pytest.raises(UnknownName, match="Unknown rule 'dfaa'"):
        make_rule("frozen(stem=dfaa)")
    with pytest.raises(BadInput, match="Choose: sum, mean"):
        resolve_rule("dfa+penalty(weight=1,over=max)")


def test_exact_rules_of_this_net_still_agree_with_autograd(net, batch):
    exact = autograd_gradients(net, *batch)
    found = gradients(make_rule("mixed(stem=bp,blocks=bp)"), net, *batch)
    assert all(relative(found[name], exact[name]) < 1e-10 for name in exact)


@pytest.mark.parametrize("noise", ["fresh", "fixed"])
@pytest.mark.parametrize("cosine", [-0.5, 0.0, 0.2, 0.95, 1.0])
def test_dose_has_exactly_the_cosine_and_the_norm_it_says_at_every_row_and_layer(net, batch, noise, cosine):
    rule, trace = ready_rule(f"dose(cosine={cosine},noise={noise})", net, *batch), net.probe(*batch)
    for credit, reference in zip(rule.credits(trace), trace.reference, strict=True):
        found = F.cosine_similarity(credit, reference, dim=1)
        assert torch.allclose(found, torch.full_like(found, cosine), atol=1e-12)
        assert torch.allclose(credit.norm(dim=1), reference.norm(dim=1), rtol=1e-12)


def test_dose_of_one_is_backprop_and_trains_like_it(net, batch):
    dosed = gradients(ready_rule("dose(cosine=1.0)", net, *batch), net, *batch)
    exact = autograd_gradients(net, *batch)
    for name, gradient in exact.items():
        assert relative(dosed[name], gradient) < 1e-10, name


def test_fresh_noise_changes_from_step_to_step_and_fixed_noise_does_not(net, batch):
    for noise, repeats in (("fresh", False), ("fixed", True)):
        rule = ready_rule(f"dose(cosine=0.3,noise={noise})", net, *batch)
        first, second = gradients(rule, net, *batch), gradients(rule, net, *batch)
        assert torch.equal(first["stem.weight"], second["stem.weight"]) is repeats
        trace = net.probe(*batch)
        again = zip(rule.credits(trace), rule.credits(trace), strict=True)
        assert all(torch.equal(one, two) for one, two in again), "a measurement can be repeated"


def test_fixed_noise_is_one_direction_for_all_rows(net, batch):
    rule, trace = ready_rule("dose(cosine=0.0,noise=fixed)", net, *batch), net.probe(*batch)
    credits = torch.nn.functional.normalize(rule.credits(trace)[1], dim=1)
    assert (credits @ credits.T).min() > 0.5
    fresh = ready_rule("dose(cosine=0.0,noise=fresh)", net, *batch).credits(trace)[1]
    fresh = torch.nn.functional.normalize(fresh, dim=1)
    assert (fresh @ fresh.T).mean() < 0.5


def test_dose_survives_a_reference_too_small_to_square_and_a_zero_row():
    g = torch.randn(3, 16, dtype=torch.float32) * torch.tensor([[1e-30], [1.0], [0.0]])
    turned = turn(g, torch.randn(3, 16, generator=torch.Generator().manual_seed(0)), 0.6)
    scaled = [(row.double() / row.abs().max().double()) for row in (turned[0], g[0])]
    assert float(F.cosine_similarity(*scaled, dim=0)) == pytest.approx(0.6, abs=1e-5)
    assert torch.equal(turned[2], torch.zeros(16))


def test_a_dose_outside_the_range_of_a_cosine_is_refused():
    with pytest.raises(BadInput, match="lies in"):
        resolve_rule("dose(cosine=1.5)")


def test_feedback_of_another_seed_is_that_runs_feedback_and_nothing_else(tmp_path):
    digits = load_dataset(Call("digits"))
    setting = {"net": "resmlp(width=8,depth=1)", "data": "digits", "dataset": digits, "epochs": 1}
    first = {}
    for rule, seed in (("dfa", 1), ("dfa", 2), ("dfa+feedback(seed=2)", 1)):
        (spec,) = plan_runs(rules=[rule], seeds=[seed], **setting)
        bundle = run_one(spec, digits, Store(tmp_path))
        first[rule, seed] = bundle.arrays(bundle.checkpoint_epochs()[0])
        if "+" in rule:
            assert (
                bundle.card["rule"]["label"] == "dfa+feedback(2)" and bundle.card["rule"]["control"] == ""
            )
            (judged,) = judge_bundles([bundle])
            assert not any("without its control" in note for note in judged.verdict.notes)
    own, other, swapped = first.values()
    for name, array in swapped.items():
        kind, _, rest = name.partition("/")
        source, key = (other, f"rule/{rest.removeprefix('inner.')}") if kind == "rule" else (own, name)
        assert np.array_equal(array, source[key]), name
    assert any(name.startswith("rule/inner.feedback") for name in swapped)


def test_a_rule_that_draws_nothing_has_no_feedback_of_another_seed(net, batch):
    with pytest.raises(NotApplicable, match="bp draws no feedback"):
        ready_rule("bp+feedback(3)", net, *batch)


@pytest.mark.parametrize("read", ["use", "label", "reuse"])
def test_under_an_offset_each_block_learns_by_the_feedback_of_the_state_it_reads(net, batch, read):
    """The same gradients as plain DFA gives once each matrix is moved up by one block."""
    plain, offset = ready_rule("dfa", net, *batch), ready_rule(f"dfa+offset({read})", net, *batch)
    drawn = [plain.get_buffer(f"feedback_{layer}").clone() for layer in range(len(net.blocks) + 1)]
    before = gradients(plain, net, *batch)
    found = gradients(offset, net, *batch)
    for layer in range(1, len(drawn)):
        plain.get_buffer(f"feedback_{layer}").copy_(drawn[layer - 1])
    moved = gradients(plain, net, *batch)
    assert all(torch.equal(found[name], moved[name]) for name in moved)
    assert any(not torch.equal(found[name], before[name]) for name in before)


def test_an_offset_that_is_read_as_used_diagnoses_what_trains_and_one_that_is_read_by_label_does_not(
    net, batch
):
    trace = net.probe(*batch)
    plain = ready_rule("dfa", net, *batch).credits(trace)
    shown = {"label": plain, "use": [plain[0], *plain[:-1]], "reuse": [*plain[:-1], plain[-2]]}
    for read, expected in shown.items():
        rule = ready_rule(f"dfa+offset({read})", net, *batch)
        assert all(torch.equal(*pair) for pair in zip(rule.credits(trace), expected, strict=True)), read
        (check,) = (found for found in check_rule(rule, net, *batch) if found.name == "diagnosed")
        assert check.status == ("pass" if read == "use" else "fail")


@pytest.mark.parametrize(
    ("rule", "idle"),
    [
        ("dfa", {"inner.feedback_3"}),
        ("dfa(form=layer)", {"inner.feedback_3"}),
        ("dfa+normalise", {"inner.inner.feedback_3"}),  # a factor would be taken back out
        ("dfa(skip=sum)", set()),  # the skip carries a_L down
        ("fa(form=block)", set()),  # every credit below is made from a_L
    ],
)
def test_under_an_offset_only_what_makes_the_last_credit_and_no_other_is_idle(net, batch, rule, idle):
    made = ready_rule(f"{rule}+offset", net, *batch)
    assert {name for name in made.idle_feedback() if "feedback" in name} == idle
    (check,) = (found for found in check_rule(made, net, *batch) if found.name == "feedback")
    assert check.status == "pass", check.sentence


def test_a_credit_that_does_not_fit_the_block_above_is_refused():
    torch.manual_seed(0)
    net = Adapter(SmallResNet(3 * 8 * 8, 5, depth=3, width=4))
    with pytest.raises(NotApplicable, match="one shape"):
        ready_rule("dfa+offset", net, torch.randn(4, 3, 8, 8), torch.arange(4))


def test_there_is_no_offset_for_a_rule_whose_blocks_share_one_chain(net, batch):
    with pytest.raises(NotApplicable, match="no credit that another could have"):
        ready_rule("bp+offset", net, *batch)


@pytest.mark.parametrize("over", ["sample", "batch"])
def test_normalised_credits_point_where_they_did_and_have_a_root_mean_square_of_one(net, batch, over):
    trace = net.probe(*batch)
    plain = ready_rule("dfa", net, *batch).credits(trace)
    made = ready_rule(f"dfa+normalise({over})", net, *batch)
    for before, after in zip(plain, made.credits(trace), strict=True):
        size = before.square().mean(*([1, True] if over == "sample" else [])).sqrt()
        assert torch.allclose(after * size, before, rtol=1e-6)
        squares = after.square().mean(1)
        assert torch.allclose(squares if over == "sample" else squares.mean(), torch.ones(1).to(after))


def test_blocks_learn_by_the_normalised_credits_and_the_head_by_its_own_error(net, batch):
    """LOC of the credits that are diagnosed, block by block, by autograd alone."""
    made = ready_rule("dfa+normalise", net, *batch)
    found, trace = gradients(made, net, *batch), net.probe(*batch)
    credits = made.credits(trace)
    names = {id(p): name for name, p in net.model.named_parameters()}
    for layer, block in enumerate(net.blocks, start=1):
        own = list(block.parameters())
        pushed = (
            trace.branch(layer, trace.states[layer - 1].detach()) * credits[layer]
        ).sum() / trace.count
        for parameter, expected in zip(own, torch.autograd.grad(pushed, own), strict=True):
            assert torch.allclose(found[names[id(parameter)]], expected, rtol=1e-5, atol=1e-9)
    plain = gradients(ready_rule("dfa", net, *batch), net, *batch)
    assert all(torch.equal(found[name], plain[name]) for name in plain if name.startswith("out_"))


def test_a_credit_too_small_to_be_squared_is_normalised_and_one_of_zero_stays_zero():
    rows = torch.tensor([[3e-30, 4e-30], [0.0, 0.0], [1e30, -1e30]])
    size = _root_mean_square(rows)
    expected = torch.tensor([[0.6 * 2**0.5, 0.8 * 2**0.5], [0, 0], [1, -1]])
    assert torch.allclose(rows / size, expected)


def test_there_is_nothing_to_normalise_where_blocks_share_one_chain(net, batch):
    with pytest.raises(NotApplicable, match="no credit that could be normalised"):
        ready_rule("bp+normalise", net, *batch)
