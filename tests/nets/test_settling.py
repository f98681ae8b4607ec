"""The settling nets in the house: trained, audited and refused like any other net."""

from __future__ import annotations

import json

import pytest
import torch

from tests.conftest import ready_rule
from walkback.check import check_rule
from walkback.cli.main import run
from walkback.core.errors import BadInput, NotApplicable
from walkback.measure.full import measure_full
from walkback.measure.light import measure_light
from walkback.nets import Adapter, nets
from walkback.nets.hopfield import HopfieldMLP
from walkback.nets.looped import LoopedMLP
from walkback.nets.resmlp import ResMLP
from walkback.rules import make_rule
from walkback.run.knockout import knock_out
from walkback.store import Store

KINDS = {"hopfield": HopfieldMLP, "looped": LoopedMLP}
both = pytest.mark.parametrize("kind", list(KINDS))


def make(kind: str, **options) -> Adapter:
    torch.manual_seed(0)
    return Adapter(KINDS[kind](12, 5, width=8, steps=10, **options).double())


@both
def test_a_settling_net_is_in_the_registry_and_keeps_its_defaults(kind):
    net = nets[kind]
    plain, written = net(64, 10), net(64, 10, **net.defaults)
    assert [p.shape for p in plain.parameters()] == [p.shape for p in written.parameters()]


@both
def test_its_states_over_time_are_its_layers(kind, batch):
    net = make(kind)
    trace = net.probe(*batch)
    assert trace.depth == 9 and trace.contiguous and trace.sequential
    for layer in range(trace.depth + 1):
        assert torch.allclose(trace.tail(layer, trace.states[layer]), trace.logits)
    growth = measure_light(trace, None, 0).number("scale.growth_max@1", 0)
    assert 0 < growth < 10, "the first state is that of the first step, not zero"


@both
def test_one_set_of_weights_serves_all_blocks(kind):
    net = make(kind)
    held = [sum(p.numel() for p in block.parameters()) for block in net.blocks]
    assert held[0] > 0 and not any(held[1:])
    assert net.shares_weights and not Adapter(ResMLP(12, 5, depth=2, width=8)).shares_weights


def test_a_module_used_by_two_blocks_is_shared_too():
    model = ResMLP(12, 5, depth=2, width=8)
    model.blocks[1].fc1 = model.blocks[0].fc1
    assert Adapter(model).shares_weights


@pytest.mark.parametrize(
    ("kind", "rule", "why"),
    [
        ("hopfield", "fa", "needs the head to be one nn.Linear"),
        ("hopfield", "shallow", "no weights above its blocks"),
        ("hopfield", "ladder", "share weights"),
        ("looped", "ladder", "share weights"),
        ("looped", "mixed", "cannot tell stem and blocks apart"),
        ("looped", "ep(solver=gd)", "steps of its own"),
    ],
)
def test_a_rule_that_does_not_fit_says_why(kind, rule, why, batch):
    (found,) = check_rule(rule, make(kind).model, *batch)
    assert found.status == "not applicable" and why in found.sentence


@pytest.mark.parametrize("options", [{}, {"spectral_norm": True}])
def test_ep_on_a_loop_is_exact_and_says_how_far_it_settled(options, batch):
    found = {check.name: check for check in check_rule("ep", make("looped", **options).model, *batch)}
    assert {check.status for check in found.values()} == {"pass"}
    assert found["settles"].detail["residual"] < 0.01


def test_steps_without_weights_of_their_own_have_no_parameter_cosine(batch):
    net = make("looped")
    rule = ready_rule("ep", net, *batch)
    table = measure_full(net.probe(*batch), rule, 0, torch.Generator().manual_seed(0), draws=9)
    states = [table.get("alignment.parameter_cosine@1", 0, layer).status for layer in range(10)]
    assert states == ["ok", "ok", *["not_applicable"] * 8]


@both
def test_a_settling_net_is_trained_and_audited_from_the_command_line(kind, tmp_path, capsys):
    options = ["--net", f"{kind}(steps=8)", "--width", "8", "--data", "digits", "--epochs", "1", "--json"]
    store = str(tmp_path / "runs")
    assert run(["train", "--rules", "bp,ep,frozen", *options, "--store", store]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [row["rule"].split()[0] for row in rows] == ["bp", "ep", "frozen"]
    bundles = Store(store).bundles()
    residuals = {b.card["rule"]["label"]: b.measurements().get("settling.residual@1", 1) for b in bundles}
    assert residuals["bp"] is residuals["frozen"] is None and 0 < residuals["ep"].value < 1
    assert run(["diagnose", *(str(bundle.path) for bundle in bundles), "--json"]) in (0, 1, 3)
    with pytest.raises(NotApplicable, match="rewound alone"):
        knock_out(next(b for b in bundles if b.card["rule"]["label"] == "bp"))
    assert run(["train", "--rules", "ladder", *options, "--store", store]) == 2


def test_a_stem_that_feeds_every_block_is_told_from_one_that_does_not(batch):
    ready_rule("mixed", Adapter(ResMLP(12, 5, depth=2, width=8).double()), *batch)
    with pytest.raises(NotApplicable, match="past h_0"):
        make_rule("mixed").setup(make("hopfield").probe(*batch), torch.Generator())


@pytest.mark.parametrize("options", [{"steps": 1}, {"step_size": 0.0}, {"step_size": 1.5}, {"depth": 0}])
def test_a_hopfield_net_that_cannot_settle_is_refused(options):
    with pytest.raises(BadInput):
        HopfieldMLP(12, 5, **options)
