"""Every pitfall of the protocol, committed on purpose: walkback refuses it, detects it, or is immune."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conftest import ready_rule
from tests.measure.test_light import scaled_states
from walkback import Bundle, FAProtocol
from walkback.core.errors import BadInput
from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.judge.assemble import judge_bundles
from walkback.nets import Adapter, freeze_blocks
from walkback.nets.resmlp import ResMLP
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.store import Store


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ResMLP(12, 5, depth=4, width=32)


@pytest.fixture
def data():
    rng = torch.Generator().manual_seed(1)
    return torch.randn(400, 12, generator=rng), torch.randint(5, (400,), generator=rng)


def test_layer_0_dominance_is_shown_apart(model, data):
    """Exact credit at the stem and noise below: Γ looks fine, the deep cosine does not."""

    def only_the_stem(trace):
        noise = [torch.randn(h.shape, generator=torch.Generator().manual_seed(3)) for h in trace.states[1:]]
        return [trace.reference[0], *noise]

    found = FAProtocol(model, *data, credits=only_the_stem).run()
    assert found["layers"][0]["cosine"] == pytest.approx(1.0)
    assert found["evidence"]["gamma_mean"][0] > 0.15, "the usual headline"
    assert abs(found["evidence"]["deep_cosine"][0]) < 0.05


def test_a_cosine_against_the_floor_is_seen_beside_the_exact_one(model, data):
    scaled_states(model, 1e7)
    rule = ready_rule("dfa", Adapter(model), *data)
    found = FAProtocol(model, *data, rule=rule).run()
    assert found["diagnostics"]["D2_ref_validity"]["detail"]["unit_probe"] < 0.1
    for layer in found["layers"][1:]:
        assert abs(layer["cosine_compat"]) < 0.2 * abs(layer["cosine"]) + 1e-4


class Noisy(ResMLP):
    """Dropout and batch statistics: in training mode two passes differ, and rows are not independent."""

    def __init__(self):
        super().__init__(12, 5, depth=2, width=32)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(32)

    def forward(self, x):
        h = self.drop(self.norm(self.stem(x)))
        for block in self.blocks:
            h = self.drop(block(h))
        return self.out_head(self.out_ln(h))


def test_different_masks_and_train_mode_cannot_mix_in(data):
    torch.manual_seed(0)
    model = Noisy().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one, other = (FAProtocol(model, *data, rule="bp").run() for _ in range(2))
    assert one["layers"] == other["layers"]
    assert model.training and model.drop.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    alone = FAProtocol(model, data[0][:1], data[1][:1]).measure().table
    assert alone.number("scale.state_norm@1", 0, 0) is not None, "one row is measured by itself"


def test_credits_of_another_batch_do_not_fit(model, data):
    other = Adapter(model).probe(data[0][:100], data[1][:100])
    with pytest.raises(BadInput, match="its state"):
        FAProtocol(model, *data, credits=[g.detach() for g in other.reference]).run()


def test_an_unmatched_baseline_is_not_compared(model, data, tmp_path):
    narrow = freeze_blocks(ResMLP(12, 5, depth=4, width=16))
    baseline = Bundle.from_model(narrow, *data, tmp_path / "b", role="baseline")
    assert FAProtocol(model, *data, baseline=baseline).run()["verdict"] == "INCOMPLETE(D3)"


def test_growth_is_logged_before_any_norm_could_hide_it(model, data):
    plain = FAProtocol(model, *data).run()["layers"]
    exploded = FAProtocol(scaled_states(model, 1e6), *data).run()["layers"]
    for one, other in zip(plain, exploded, strict=True):
        assert other["state_norm"] == pytest.approx(1e6 * one["state_norm"], rel=0.01)


def test_an_intervention_without_its_control_is_said(tmp_path):
    digits = load_dataset(Call("digits"))
    setting = {
        "net": "resmlp(width=16,depth=2)",
        "seeds": [1],
        "data": "digits",
        "dataset": digits,
        "epochs": 1,
    }
    store = Store(tmp_path)
    for spec in plan_runs(rules=["dfa+penalty(0.01)", "dfa", "frozen"], **setting):
        run_one(spec, digits, store)
    notes = {item.label: item.verdict.notes for item in judge_bundles(store.bundles())}
    assert any("without its control: bp+penalty" in note for note in notes["dfa+penalty(0.01)"])
    assert not any("control" in note for note in notes["dfa"])
    run_one(plan_runs(rules=["bp+penalty(0.01)"], **setting)[0], digits, store)
    notes = {item.label: item.verdict.notes for item in judge_bundles(store.bundles())}
    assert not any("control" in note for note in notes["dfa+penalty(0.01)"])
