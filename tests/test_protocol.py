"""FAProtocol and Bundle.from_model: the audit in one call."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import ready_rule
from walkback import Bundle, FAProtocol, Thresholds
from walkback.core.errors import BadInput, NotApplicable
from walkback.judge.assemble import judge_bundles
from walkback.judge.replay import first_firing, histories, replay
from walkback.judge.sweep import sweep
from walkback.nets import Adapter, freeze_blocks
from walkback.nets.resmlp import ResMLP
from walkback.rules.dfa import DFA


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ResMLP(12, 5, depth=3, width=16)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(300, 12, generator=generator), torch.randint(5, (300,), generator=generator)


def test_the_documented_keys_answer(model, data):
    report = FAProtocol(model, *data).run()
    assert report["verdict"] == "INCOMPLETE(D3)"
    for name in ("D1_scale_growth", "D2_ref_validity", "D3_depth_utility"):
        assert name in report["diagnostics"]


@pytest.mark.parametrize(
    "baseline", [0.01, [0.01, 0.02], (0.01,), np.array([0.01, 0.02]), np.array(0.01), np.float32(0.01)]
)
def test_a_baseline_is_a_number_or_one_per_seed(model, data, baseline):
    assert FAProtocol(model, *data, baseline=baseline).run()["verdict"] == "PASS"


@pytest.mark.parametrize("baseline", ["0.3", True, 35, -0.1, [], ["a"], float("nan")])
def test_a_baseline_that_is_no_accuracy_is_refused(model, data, baseline):
    with pytest.raises(BadInput):
        FAProtocol(model, *data, baseline=baseline)


def test_other_wrong_arguments_are_refused(model, data):
    for wrong in (
        {"thresholds": {"growth": 3}},
        {"rule": "bp", "credits": []},
        {"accuracy": 35},
        {"credits": [torch.zeros(300, 16)]},
        {"credits": [torch.zeros(300, 3)] * 4},
        {"credits": lambda trace: None},
        {"credits": [np.zeros((300, 16))] * 4},
        {"logic": "majority"},
    ):
        with pytest.raises(BadInput):
            FAProtocol(model, *data, **wrong).run()


def test_a_rule_with_its_feedback_gives_alignment_and_without_it_says_so(model, data):
    rule = ready_rule("dfa", Adapter(model), *data)
    with_feedback = FAProtocol(model, *data, rule=rule).run()
    assert all(layer["cosine"] is not None for layer in with_feedback["layers"])
    without = FAProtocol(model, *data, rule="dfa").run()
    assert all(layer["cosine"] is None for layer in without["layers"])
    assert any("without the feedback" in note for note in without.notes)
    assert FAProtocol(model, *data, rule="bp").run()["layers"][2]["cosine"] == pytest.approx(1)


def test_ones_own_credits_may_be_tensors_or_a_function(model, data):
    given = [torch.randn(300, 16) for _ in range(4)]
    as_list = FAProtocol(model, *data, credits=given).run()
    as_function = FAProtocol(model, *data, credits=lambda trace: given).run()
    assert as_list["layers"] == as_function["layers"]


def test_thresholds_reach_the_verdict(model, data):
    verdict = FAProtocol(model, *data, thresholds=Thresholds(growth=0.001, validity=1e3)).run()
    assert verdict["verdict"] == "FAIL(D1+D2)"
    assert verdict["evidence"]["thresholds"]["growth"] == 0.001


def test_a_captured_model_is_a_bundle_that_judges_the_same(model, data, tmp_path):
    twin = freeze_blocks(ResMLP(12, 5, depth=3, width=16))
    bundle = Bundle.from_model(model, *data, tmp_path / "mine", label="my rule")
    frozen = Bundle.from_model(twin, *data, tmp_path / "frozen", role="baseline")
    live = FAProtocol(model, *data, baseline=frozen).run()
    (stored,) = judge_bundles([Bundle.open(bundle.path)], [Bundle.open(frozen.path)])
    for name, found in live["diagnostics"].items():
        assert stored.verdict["diagnostics"][name] == found
    assert live["diagnostics"]["D3_depth_utility"]["interval"] is not None
    assert stored.label == "my rule" and bundle.verify() == 4
    with pytest.raises(BadInput, match="exists already"):
        Bundle.from_model(model, *data, tmp_path / "mine")
    with pytest.raises(BadInput, match="is not a baseline"):
        FAProtocol(model, *data, baseline=bundle)


def test_a_captured_baseline_of_another_shape_or_batch_is_not_compared(model, data, tmp_path):
    wide = freeze_blocks(ResMLP(12, 5, depth=3, width=32))
    other = Bundle.from_model(wide, *data, tmp_path / "wide", role="baseline")
    verdict = FAProtocol(model, *data, baseline=other).run()
    assert "another net" in verdict["diagnostics"]["D3_depth_utility"]["sentence"]
    same = freeze_blocks(ResMLP(12, 5, depth=3, width=16))
    shifted = Bundle.from_model(same, data[0] + 1, data[1], tmp_path / "shifted", role="baseline")
    verdict = FAProtocol(model, *data, baseline=shifted).run()
    assert "other items" in verdict["diagnostics"]["D3_depth_utility"]["sentence"]


def test_a_captured_model_is_replayed_and_swept_like_any_other(model, data, tmp_path):
    bundle = Bundle.from_model(model, *data, tmp_path / "mine", label="mine")
    rows = first_firing(replay(histories([bundle])))
    assert [(row["rule"], row["detector"], row["known_epochs"], row["epochs"]) for row in rows] == [
        ("mine", "D1", 1, 1),
        ("mine", "D2", 1, 1),
        ("mine", "D3", 0, 1),
    ]
    known = {(row["threshold"], row["known"]) for row in sweep([bundle])}
    assert known == {("growth", 1), ("validity", 1), ("depth_gain", 0)}


@pytest.mark.parametrize("label", ["shallow", "frozen(stem=dfa)"])
def test_a_bundle_of_another_control_is_not_taken_for_frozen_blocks(model, data, tmp_path, label):
    base = Bundle.from_model(model, *data, tmp_path / "base", label=label, role="baseline")
    base.commit(status={"state": "finished", "epoch": 2, "reason": ""})
    with pytest.raises(BadInput, match="not frozen"):
        FAProtocol(model, *data, baseline=base)


def test_a_baseline_whose_grid_has_not_ended_is_not_compared(model, data, tmp_path):
    base = Bundle.from_model(model, *data, tmp_path / "base", role="baseline")
    base.spec.update({"lr": 0.01, "lr_grid": "0.001,0.01"})
    base.commit(status={"state": "finished", "epoch": 2, "reason": ""})
    depth = FAProtocol(model, *data, baseline=base).run().reasons[2]
    assert depth.fires is None and "of the 2 runs of frozen's grid" in depth.sentence


def test_an_accuracy_from_elsewhere_is_not_compared_with_one_of_a_batch(model, data, tmp_path):
    twin = freeze_blocks(ResMLP(12, 5, depth=3, width=16))
    on_batch = Bundle.from_model(twin, *data, tmp_path / "batch", role="baseline")
    given = Bundle.from_model(twin, *data, tmp_path / "given", role="baseline", accuracy=0.1)
    for options in ({"accuracy": 0.9, "baseline": on_batch}, {"baseline": given}):
        verdict = FAProtocol(model, *data, **options).run()
        assert verdict["verdict"] == "INCOMPLETE(D3)"
        assert "the other was given" in verdict["diagnostics"]["D3_depth_utility"]["sentence"]
    assert FAProtocol(model, *data, accuracy=0.9, baseline=given).run()["verdict"] == "PASS"


def test_a_class_that_the_model_rules_out_does_not_make_every_answer_wrong(model, data):
    class Masked(ResMLP):
        def forward(self, x):
            return super().forward(x).masked_fill(torch.arange(5) == 4, -torch.inf)

    torch.manual_seed(0)
    masked, x, y = Masked(12, 5, depth=3, width=16), data[0], data[1] % 4
    with torch.no_grad():
        expected = (masked(x).argmax(-1) == y).double().mean().item()
    assert FAProtocol(masked, x, y).measure().accuracy == pytest.approx(expected) and expected > 0


def test_a_limit_that_nothing_could_pass_is_refused():
    with pytest.raises(BadInput, match="positive and finite"):
        Thresholds(growth=float("inf"))


def test_the_split_is_named_by_the_data_as_given_whatever_the_models_precision(model, data):
    single = FAProtocol(model, *data).split
    assert FAProtocol(model.double(), *data).split == single


def test_a_bfloat16_model_can_be_kept(model, data, tmp_path):
    from walkback.protocol import _numpy

    assert _numpy(torch.ones(3, dtype=torch.bfloat16)).dtype == np.float32


def test_a_rule_that_did_not_settle_is_called_unconverged_in_its_verdict():
    torch.manual_seed(0)
    net, x, y = ResMLP(12, 5, depth=2, width=16), torch.randn(16, 12), torch.arange(16) % 5
    few, solved = (FAProtocol(net, x, y, rule=rule).run() for rule in ("ep(solver=gd)", "ep"))
    assert few.claim == "ep(nudge=random,solver=gd) (unconverged) assigns credit to deep layers"
    assert few.evidence["residual"][0] > 0.05 and any("not come to rest" in note for note in few.notes)
    assert solved.claim == "ep assigns credit to deep layers" and solved.evidence["residual"][0] < 0.05


class Pair(ResMLP):
    """Features first, and logits that its head made second."""

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return h, self.out_head(self.out_ln(h))


class Scaled(Pair):
    """Two outputs as wide as the head's, and neither is its own."""

    def forward(self, x):
        logits = super().forward(x)[1]
        return logits * 2, logits * 3


def test_of_several_outputs_the_one_that_the_head_made_is_read(model, data):
    pair = Pair(12, 5, depth=3, width=16)
    pair.load_state_dict(model.state_dict())
    ours, theirs = (FAProtocol(net, *data, baseline=0.01).run() for net in (model, pair))
    assert theirs.to_dict()["diagnostics"] == ours.to_dict()["diagnostics"]
    with pytest.raises(NotApplicable, match=r"shapes \(300, 5\) and \(300, 5\), and none of them"):
        FAProtocol(Scaled(12, 5, depth=3, width=16), *data).run()


class Deaf(ResMLP):
    """A head that does not listen to the blocks."""

    def forward(self, x):
        return self.out_head(self.out_ln(super().forward(x).detach().sum() * 0 + self.stem(x).detach()))


def test_a_head_that_does_not_depend_on_the_blocks_is_told_so(data):
    with pytest.raises(NotApplicable, match="No gradient comes back from the logits to the last block"):
        FAProtocol(Deaf(12, 5, depth=3, width=16), *data).run()


@pytest.mark.parametrize("options", [{"blocks": 5}, {"blocks": [5]}, {"seed": "a"}])
def test_options_of_another_kind_are_refused_in_a_sentence(model, data, options):
    with pytest.raises(BadInput, match="not"):
        FAProtocol(model, *data, **options)


def test_what_is_no_model_or_no_limit_is_refused_in_a_sentence(data):
    with pytest.raises(BadInput, match=r"must be a torch.nn.Module, not NoneType"):
        FAProtocol(None, *data)
    with pytest.raises(BadInput, match="growth must be positive and finite, not '5'"):
        Thresholds(growth="5")


def test_a_run_that_lies_in_a_store_twice_is_not_replayed_twice(model, data, tmp_path):
    for name in ("one", "copy"):
        Bundle.from_model(model, *data, tmp_path / name)
    bundles = [Bundle.open(tmp_path / name) for name in ("one", "copy")]
    with pytest.raises(BadInput, match="given more than once"):
        histories(bundles)


def test_a_gain_over_a_number_says_how_many_items_it_is_from(model, data):
    x, y = data
    gain = FAProtocol(model, x[:1], y[:1], baseline=0.01).run()["diagnostics"]["D3_depth_utility"]
    low, high = (0.0, 79.3) if gain["value"] < 0 else (20.7, 100.0)  # Wilson's interval for one item
    assert f"and 1 item puts the accuracy between {low} and {high} %" in gain["sentence"]
    gain = FAProtocol(model, x, y, baseline=0.01).run()["diagnostics"]["D3_depth_utility"]
    assert "300 items put the accuracy between" in gain["sentence"]
    gain = FAProtocol(model, x, y, baseline=0.01, accuracy=0.5).run()["diagnostics"]["D3_depth_utility"]
    assert "items put" not in gain["sentence"], "an accuracy that was given is of unknown items"


def test_blocks_may_come_one_by_one(model, data):
    given = FAProtocol(model, *data, blocks=model.blocks.children(), head="out_head").run()
    assert given["verdict"] == "INCOMPLETE(D3)"


class Late(Pair):
    """Logits first, and not the very tensor that the head made."""

    def forward(self, x):
        features, logits = super().forward(x)
        return logits / 2, features


class Twofold(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.aux = nn.Linear(16, 5), nn.Linear(16, 4)

    def forward(self, h):
        return self.own(h), self.aux(h)


class Both(Pair):
    """A head that returns more than logits."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.out_head = Twofold()

    def forward(self, x):
        return super().forward(x)[1]


@pytest.mark.parametrize("kind", [Late, Both])
def test_logits_that_can_be_told_from_other_outputs_are_read(kind, data):
    assert FAProtocol(kind(12, 5, depth=3, width=16), *data).measure().classes == 5


def test_outputs_that_cannot_be_told_apart_are_refused_where_no_head_is_known(data):
    pair = Pair(12, 5, depth=3, width=16)
    pair.classifier = pair.out_head
    del pair.out_head
    pair.forward = lambda x: (
        pair.stem(x),
        pair.classifier(pair.blocks[2](pair.blocks[1](pair.blocks[0](pair.stem(x))))),
    )
    with pytest.raises(NotApplicable, match="no head is known that made one of them"):
        FAProtocol(pair, *data).run()
    assert FAProtocol(pair, *data, head="classifier").run()["verdict"] == "INCOMPLETE(D3)"


class Branch(nn.Module):
    """A block that returns its branch alone: the skip is the model's."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, h):
        return torch.relu(self.linear(self.norm(h)))


class SkipOutside(nn.Module):
    """h ← scale·(h + block(h)), and what the head is given of it."""

    def __init__(self, scale=1.0, read=lambda h: h):
        super().__init__()
        self.stem, self.out_ln, self.out_head = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 5)
        self.blocks = nn.ModuleList(Branch() for _ in range(3))
        self.scale, self.read = scale, read

    def stream(self, x):
        states = [self.stem(x)]
        for block in self.blocks:
            states.append(self.scale * (states[-1] + block(states[-1])))
        return states

    def forward(self, x):
        return self.out_head(self.out_ln(self.read(self.stream(x)[-1])))


def growth_written_out(model, x):
    norms = [h.norm(dim=1) for h in model.stream(x)]
    return max((above / below).median().item() for below, above in itertools.pairwise(norms))


@pytest.mark.parametrize("scale, fires", [(1e3, True), (1.0, False)])
def test_where_blocks_return_their_branch_d1_follows_the_stream_that_the_model_adds_up(data, scale, fires):
    torch.manual_seed(0)
    model = SkipOutside(scale)
    with torch.no_grad():
        model.blocks[0].linear.weight.mul_(1e-2 if scale == 1 else 1e2)  # tells branches from the stream
        model.blocks[0].linear.bias.zero_()
    verdict = FAProtocol(model, *data, rule="bp", baseline=0.01).run()
    scale_reason = verdict.reasons[0]
    assert scale_reason.fires is fires
    assert scale_reason.value == pytest.approx(growth_written_out(model, data[0]), rel=1e-2)
    assert any("D1 is of what each block receives" in note for note in verdict.notes)


@pytest.mark.parametrize("unknown", ["no head is named", "the head is given something smaller"])
def test_where_the_stream_after_the_last_block_cannot_be_told_d1_is_not_applicable(data, unknown):
    torch.manual_seed(0)
    model = SkipOutside(1e3)
    if unknown == "no head is named":
        model.norm_, model.classifier = model.out_ln, model.out_head
        del model.out_ln, model.out_head
        model.forward = lambda x: model.classifier(model.norm_(model.stream(x)[-1]))
    else:
        model.out_ln, model.out_head, model.read = nn.Identity(), nn.Linear(8, 5), lambda h: h[:, :8]
    verdict = FAProtocol(model, *data, rule="bp", baseline=0.01).run()
    assert verdict["verdict"] == "INCOMPLETE(D1)"
    assert "is not applicable" in verdict.reasons[0].sentence
    assert any("what leaves the last block cannot be told" in note for note in verdict.notes)


@pytest.mark.parametrize("rule", ["frozen", "shallow"])
def test_a_rule_that_is_a_baseline_gets_no_verdict_here_either(model, data, tmp_path, rule):
    verdict = FAProtocol(model, *data, rule=rule, baseline=0.01).run()
    assert verdict["verdict"] == "BASELINE" and verdict.chain == ()
    bundle = Bundle.from_model(model, *data, tmp_path / rule, rule=rule)
    assert bundle.card["rule"]["role"] == "baseline" and bundle.card["rule"]["label"] == rule
    (stored,) = judge_bundles([bundle])
    assert stored.verdict["verdict"] == "BASELINE"


def test_a_model_is_not_its_own_baseline(model, data, tmp_path):
    own = Bundle.from_model(model, *data, tmp_path / "self", role="baseline")
    verdict = FAProtocol(model, *data, baseline=own).run()
    assert verdict["verdict"] == "INCOMPLETE(D3)"
    assert "are those of the audited model, weight for weight" in verdict.reasons[2].sentence
    mine = Bundle.from_model(model, *data, tmp_path / "mine", label="mine")
    (stored,) = judge_bundles([mine], [Bundle.open(own.path)])
    assert stored.verdict.reasons[2].sentence == verdict.reasons[2].sentence


def test_a_baseline_whose_blocks_were_never_frozen_is_told_beside_every_verdict_on_it(data, tmp_path):
    run, other = (ResMLP(12, 5, depth=3, width=16) for _ in range(2))
    thawed = Bundle.from_model(other, *data, tmp_path / "thawed", role="baseline")
    frozen = Bundle.from_model(freeze_blocks(other), *data, tmp_path / "frozen", role="baseline")
    mine = Bundle.from_model(run, *data, tmp_path / "mine", label="mine")
    for baseline, told in ((thawed, True), (frozen, False)):
        (stored,) = judge_bundles([mine], [baseline])
        for verdict in (FAProtocol(run, *data, baseline=baseline).run(), stored.verdict):
            assert any("were they frozen" in note for note in verdict.notes) is told


@pytest.mark.parametrize(
    ("fill", "words"), [(float("nan"), "not finite in 300 of 300 rows"), (0.0, "zero in 300 of 300 rows")]
)
def test_credits_without_a_direction_are_told_and_not_called_unmeasured(model, data, fill, words):
    credits = [torch.full((300, 16), fill)] * 4
    verdict = FAProtocol(model, *data, credits=credits, accuracy=0.9, baseline=0.1).run()
    assert f"The credit of layers 0, 1, 2 and 3 is {words}." in verdict.notes
    sentence = verdict.evidence["C_credit_direction"]["sentence"]
    assert sentence == "The direction of the credit is not a number."
    assert verdict.chain[0]["survives"] is (None if fill else False)
    part = [torch.ones(300, 16) for _ in range(4)]
    part[2][:7] = fill
    notes = FAProtocol(model, *data, credits=part).run().notes
    assert f"The credit of layer 2 is {words.replace('300', '7', 1)}." in notes


def test_credits_that_change_the_trace_in_place_are_refused(model, data):
    def careless(trace):
        e = trace.error
        e /= len(e)
        return [torch.ones_like(h) for h in trace.states]

    with pytest.raises(BadInput, match="change the error of the trace in place"):
        FAProtocol(model, *data, credits=careless).run()
    for name, of in {
        "reference": lambda t: t.reference[1],
        "logits": lambda t: t.logits.detach(),
        "labels": lambda t: t.labels,
        "states": lambda t: t.states[1].detach(),
    }.items():
        change = lambda t, of=of: [of(t).zero_(), *map(torch.ones_like, t.states)][1:]  # noqa: E731
        with pytest.raises(BadInput, match=f"change the {name} of the trace"):
            FAProtocol(model, *data, credits=change).run()


class Detached(ResMLP):
    """No gradient flows from block to block."""

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h.detach())
        return self.out_head(self.out_ln(h))


def test_layers_that_no_gradient_reaches_are_not_called_measurable(data):
    verdict = FAProtocol(Detached(12, 5, depth=3, width=16), *data, rule="bp", baseline=0.01).run()
    assert verdict.chain[1]["survives"] is False
    assert "Only at the last state: no gradient reaches layers 0, 1 and 2" in verdict.chain[1]["sentence"]
    assert "no gradient reaches layers 0, 1 and 2" in verdict.chain[3]["sentence"]


def test_without_a_cosine_the_status_quo_claim_is_not_known(model, data):
    verdict = FAProtocol(model, *data, accuracy=0.9, baseline=0.1).run()
    assert verdict.chain[0]["survives"] is None
    assert "without a cosine the usual reading is not known" in verdict.chain[0]["sentence"]
    assert FAProtocol(model, *data, accuracy=0.1).run().chain[0]["survives"] is False


class Noisy(ResMLP):
    """Dropout that does not ask in which mode the model is."""

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = nn.functional.dropout(block(h), 0.3)
        return self.out_head(self.out_ln(h))


class Woken(Noisy):
    """Puts itself in training mode, in which its dropout drops."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        self.train()
        return self.out_head(self.dropout(self.out_ln(self.blocks[0](self.stem(x)))))


class Wasteful(ResMLP):
    """Draws numbers and does not use them, as a LayerDrop in evaluation mode."""

    def forward(self, x):
        torch.rand(())
        return super().forward(x)


@pytest.mark.parametrize("kind, random", [(Noisy, True), (Woken, True), (Wasteful, False), (ResMLP, False)])
def test_a_model_that_draws_in_evaluation_mode_is_told_and_not_compared_with_its_float64_twin(
    data, kind, random
):
    torch.manual_seed(0)
    model = kind(12, 5, depth=1 if kind is Woken else 3, width=16)
    verdict = FAProtocol(model, *data).run()
    assert any("draws random numbers in evaluation mode" in note for note in verdict.notes) is random
    relerr = verdict.reasons[1].detail["float64_relerr"]
    assert relerr is None if random else relerr < 1e-4
    assert model.training, "it is handed back in the mode it came in"


class Reader(nn.Module):
    """Reads tokens; one label each."""

    def __init__(self):
        super().__init__()
        self.embed, self.out_head = nn.Embedding(9, 16), nn.Linear(16, 9)
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))])

    def forward(self, input_ids, attention_mask=None, labels=None):
        return self.out_head(self.blocks[0](self.embed(input_ids)))


def test_labels_that_are_the_tokens_themselves_are_refused():
    tokens = torch.arange(40).reshape(8, 5) % 9
    for x in (tokens, {"input_ids": tokens}, {"input_ids": tokens.int()}):
        with pytest.raises(BadInput, match=r"are the inputs .* themselves"):
            FAProtocol(Reader(), x, tokens)
    shifted, mask = tokens.roll(-1, dims=1), (tokens > 3).long()
    for x, y in (
        (tokens, shifted),
        ({"input_ids": tokens, "labels": shifted}, shifted),
        ({"input_ids": tokens, "attention_mask": mask}, mask),
        (tokens * 0, tokens * 0),
    ):
        assert FAProtocol(Reader(), x, y).run()["verdict"] == "INCOMPLETE(D3)"


def test_padding_that_counts_like_any_token_is_told():
    tokens = torch.arange(40).reshape(8, 5) % 9
    for mask, told in ((tokens > 0, True), (torch.ones_like(tokens), False)):
        x = {"input_ids": tokens, "attention_mask": mask}
        notes = FAProtocol(Reader(), x, tokens.roll(1, dims=1)).run().notes
        assert any("attention_mask leaves out 5 of 40 positions" in note for note in notes) is told


def test_a_model_without_weights_is_refused_in_a_sentence(data):
    with pytest.raises(BadInput, match="on the meta device"):
        FAProtocol(ResMLP(12, 5, depth=3, width=16).to("meta"), *data)


def test_a_table_is_refused_in_a_sentence(data):
    import pandas as pd

    from walkback.nets.batch import as_tensor

    with pytest.raises(BadInput, match="cannot be read as numbers, as DataFrame: KeyError"):
        as_tensor(pd.DataFrame(data[0].numpy()), "The inputs (x)")


@pytest.mark.parametrize("rule", [DFA, 3, nn.Linear(2, 2), DFA.credits])
def test_what_is_no_rule_is_refused_in_a_sentence(model, data, rule):
    with pytest.raises(BadInput, match="must be its name or a Rule that was made, not"):
        FAProtocol(model, *data, rule=rule)


@pytest.mark.parametrize(
    ("credit", "words"),
    [
        (torch.ones(300, 16).to_sparse(), "sparse"),
        (torch.ones(300, 16, dtype=torch.complex64), "complex"),
        (torch.ones(300, 16, device="meta"), "on the meta device"),
    ],
)
def test_credits_that_are_no_real_numbers_are_refused_in_a_sentence(model, data, credit, words):
    with pytest.raises(BadInput, match=f"The credit of layer 0 is {words}"):
        FAProtocol(model, *data, credits=[credit] * 4).run()


class Named(ResMLP):
    def forward(self, x):
        return {"loss": x.sum(), "logits": super().forward(x)}


def test_logits_in_a_dictionary_are_read(model, data):
    named = Named(12, 5, depth=3, width=16)
    named.load_state_dict(model.state_dict())
    plain, found = (FAProtocol(net, *data, rule="bp").run() for net in (model, named))
    assert found["layers"] == plain["layers"]
    named.forward = lambda x: {"scores": model(x)}
    with pytest.raises(NotApplicable, match="not a batch of logits"):
        FAProtocol(named, *data).run()
