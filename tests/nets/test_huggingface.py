"""Hugging Face models from small configs, without a download: audited like any other net."""

from __future__ import annotations

import copy
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.cli.test_cli import answer
from tests.conftest import ready_rule
from tests.nets.test_trace import assert_same, snapshot
from walkback import Bundle, FAProtocol, check_rule, freeze_blocks
from walkback.core.errors import BadInput, NotApplicable
from walkback.measure.full import measure_full
from walkback.nets import Adapter
from walkback.rules import make_rule

transformers = pytest.importorskip("transformers", reason="the extra `transformers` is not installed")

TOKENS = {"vocab_size": 23, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
GPT2 = {**TOKENS, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.2}
BERT = {**TOKENS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass
class Case:
    model: nn.Module
    x: Any
    y: torch.Tensor
    parts: dict[str, str]

    @property
    def net(self) -> Adapter:
        return Adapter(self.model, **self.parts)

    def output(self, model: nn.Module, **options: Any) -> Any:
        return model(**(self.x if isinstance(self.x, dict) else {self.main: self.x}), **options)

    @property
    def main(self) -> str:
        return self.model.main_input_name


def vit(attention: str = "sdpa") -> Case:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=5,
        initializer_range=0.2,
        hidden_dropout_prob=0.1,
        attn_implementation=attention,
    )
    model = transformers.ViTForImageClassification(config).double()
    blocks = "vit.layers" if hasattr(model.vit, "layers") else "vit.encoder.layer"  # from 5, and before
    parts = {"blocks": blocks, "out_ln": "vit.layernorm", "head": "classifier"}
    return Case(model, torch.randn(6, 1, 8, 8).double(), torch.randint(5, (6,)), parts)


def gpt2(attention: str = "sdpa") -> Case:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, attn_implementation=attention))
    parts = {"blocks": "transformer.h", "out_ln": "transformer.ln_f", "head": "lm_head"}
    ids = torch.randint(1, 23, (6, 10))
    return Case(model.double(), ids[:, :-1], ids[:, 1:], parts)


def padded_gpt2(attention: str = "sdpa") -> Case:
    case = gpt2(attention)
    mask = torch.ones_like(case.x)
    mask[:2, :3] = 0
    return Case(case.model, {"input_ids": case.x, "attention_mask": mask}, case.y, case.parts)


def gpt2_classifier(attention: str = "sdpa") -> Case:
    torch.manual_seed(0)
    config = transformers.GPT2Config(**GPT2, num_labels=4, attn_implementation=attention)
    model = transformers.GPT2ForSequenceClassification(config).double()
    parts = {"blocks": "transformer.h", "out_ln": "transformer.ln_f", "head": "score"}
    return Case(model, torch.randint(1, 23, (6, 9)), torch.randint(4, (6,)), parts)


def bert(attention: str = "sdpa") -> Case:
    torch.manual_seed(0)
    config = transformers.BertConfig(**BERT, num_labels=4, attn_implementation=attention)
    model = transformers.BertForSequenceClassification(config).double()
    parts = {"blocks": "bert.encoder.layer", "head": "classifier"}
    ids = torch.randint(1, 23, (6, 9))
    x = {"input_ids": ids, "attention_mask": (ids > 3).long()}
    return Case(model, x, torch.randint(4, (6,)), parts)


CASES = [vit, gpt2, padded_gpt2, gpt2_classifier, bert]
cases = pytest.mark.parametrize("make", CASES)
main_cases = pytest.mark.parametrize("make", [vit, gpt2])


def hidden_states(case: Case) -> tuple[list[torch.Tensor], torch.Tensor]:
    """h_0 … h_L as the library itself returns them, in one plain graph; h_L is what the last norm receives,
    because a language model returns it normalised."""
    model, caught = copy.deepcopy(case.model).eval(), []
    if "out_ln" in case.parts:
        last = model.get_submodule(case.parts["out_ln"])
        last.register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    found = case.output(model, output_hidden_states=True)
    top = caught[0] if caught else found.hidden_states[-1]
    return [*found.hidden_states[:-1], top], found.logits


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@cases
def test_states_and_reference_are_those_of_plain_autograd_on_the_hidden_states(make, attention):
    case = make(attention)
    states, logits = hidden_states(case)
    loss = F.cross_entropy(logits.flatten(0, -2), case.y.flatten(), reduction="sum")
    slow = torch.autograd.grad(loss, states)
    with case.net.evaluating():
        trace = case.net.probe(case.x, case.y)
        assert torch.allclose(trace.logits, logits, atol=1e-12)
        for layer in range(3):
            assert torch.allclose(trace.states[layer], states[layer], atol=1e-12)
            assert torch.allclose(trace.reference[layer], slow[layer], atol=1e-12)
            assert slow[layer].abs().max() > 1e-4, "there is something to compare"


@main_cases
def test_the_audit_gives_the_cosines_of_dfa_credits_written_out(make):
    """a_l = e B_l for every token: of its own label's e, or of the sample's where there is one label."""
    case = make()
    with case.net.evaluating():
        rule = ready_rule("dfa", case.net, case.x, case.y)
    verdict = FAProtocol(case.model, case.x, case.y, rule=rule, **case.parts).run()
    states, logits = hidden_states(case)
    loss = F.cross_entropy(logits.flatten(0, -2), case.y.flatten(), reduction="sum")
    error = (logits.softmax(-1) - F.one_hot(case.y, logits.shape[-1])).detach()
    for layer, g in enumerate(torch.autograd.grad(loss, states)):
        a = error @ rule.get_buffer(f"feedback_{layer}")
        a = a if a.dim() == g.dim() else a.unsqueeze(1).expand_as(g)
        rows = case.y.numel()
        slow = F.cosine_similarity(a.reshape(rows, -1), g.reshape(rows, -1)).mean()
        assert verdict["layers"][layer]["cosine"] == pytest.approx(float(slow), abs=1e-9)
        assert verdict["layers"][layer]["n_valid"] == rows
    assert verdict["verdict"] == "INCOMPLETE(D3)"
    exact = FAProtocol(case.model, case.x, case.y, rule="bp", **case.parts).run()
    assert [layer["cosine"] for layer in exact["layers"]] == pytest.approx([1.0] * 3)


@cases
def test_the_tail_is_the_model_with_one_state_replaced(make):
    """Also for another state: blocks that had the cache of the pass before would attend to its keys."""
    case = make()
    net = case.net
    with net.evaluating(), torch.no_grad():
        trace = net.probe(case.x, case.y)
        for layer in range(3):
            own = trace.states[layer].detach()
            assert torch.allclose(trace.tail(layer, own), trace.logits, atol=1e-12)
            if layer:
                again = trace.block(layer, trace.states[layer - 1])
                assert torch.allclose(again, own, atol=1e-12)
            other = own + torch.randn_like(own)
            assert torch.allclose(trace.tail(layer, other), replaced(case, layer, other), atol=1e-12)


def replaced(case: Case, layer: int, h: torch.Tensor) -> torch.Tensor:
    """Logits of a copy of the model in which block `layer` returns h, or the first one receives it."""
    model = copy.deepcopy(case.model)
    blocks = model.get_submodule(case.parts["blocks"])
    if layer:
        blocks[layer - 1].forward = lambda *args, **kwargs: (h,) if old_style(case) else h
    else:
        forward = blocks[0].forward
        blocks[0].forward = lambda state, *args, **kwargs: forward(h, *args, **kwargs)
    return case.output(model).logits


def old_style(case: Case) -> bool:
    """Before version 5 a block returned a tuple."""
    blocks = copy.deepcopy(case.model).get_submodule(case.parts["blocks"])
    return isinstance(blocks[0](torch.zeros(1, 3, 16).double()), tuple)


@main_cases
def test_the_full_tier_works_and_the_gradient_reaches_its_ceiling(make):
    case = make()
    with case.net.evaluating():
        trace = case.net.probe(case.x, case.y)
        dfa = ready_rule("dfa", case.net, case.x, case.y)
        tables = {
            rule.name: measure_full(trace, rule, 0, torch.Generator().manual_seed(0), draws=20)
            for rule in (dfa, make_rule("bp"))
        }
    for name, table in tables.items():
        assert all(np.isfinite(reading.value) for reading in table.readings), name
    read = {(name, r.quantity, r.layer): r.value for name, table in tables.items() for r in table.readings}
    for layer in range(3):
        assert read["bp", "nudge.ratio@1", layer] == pytest.approx(1)
        assert read["bp", "perturbation.rho@1", layer] > 0.9999
        assert read["bp", "alignment.parameter_cosine@1", layer] == pytest.approx(1)
        assert abs(read["dfa", "perturbation.rho@1", layer]) < 0.6
        assert abs(read["dfa", "nudge.ratio@1", layer]) < 0.6


@main_cases
def test_the_model_comes_back_as_it_was(make):
    case = make()
    case.model.train()
    first = next(case.model.parameters())
    first.requires_grad_(False)
    last = list(case.model.parameters())[-1]
    last.grad = torch.ones_like(last)
    rule = ready_rule("dfa", case.net, case.x, case.y)
    before, config = snapshot(case.model), case.model.config.to_dict()
    FAProtocol(case.model, case.x, case.y, rule=rule, **case.parts).run()
    with case.net.evaluating():
        trace = case.net.probe(case.x, case.y)
        measure_full(trace, rule, 0, torch.Generator().manual_seed(0), draws=2)
    assert_same(before, snapshot(case.model))
    assert case.model.config.to_dict() == config
    with pytest.raises(BadInput):
        FAProtocol(case.model, case.x, case.y + 100, **case.parts).run()
    assert_same(before, snapshot(case.model))
    assert case.model.config.to_dict() == config


@main_cases
def test_dfa_trains_every_part_with_its_own_credit(make):
    """Blocks by the gradient of ⟨f_l(sg h_l), a_l⟩; GPT-2's tied embedding by its two roles added up."""
    case = make()
    net, model = case.net, case.model.eval()
    rule = ready_rule("dfa", net, case.x, case.y)
    states, logits = hidden_states(case)
    error = (logits.softmax(-1) - F.one_hot(case.y, logits.shape[-1])).detach()
    credits = [error @ rule.get_buffer(f"feedback_{layer}") / case.y.numel() for layer in range(3)]
    if case.y.dim() == 1:
        credits = [a.unsqueeze(1).expand_as(h) for a, h in zip(credits, states, strict=True)]
    rule.deposit_gradients(net, case.x, case.y)
    for layer, block in enumerate(net.blocks, start=1):
        out = block(states[layer - 1].detach())
        out = out[0] if isinstance(out, tuple) else out
        slow = torch.autograd.grad(out, list(block.parameters()), credits[layer])
        for parameter, gradient in zip(block.parameters(), slow, strict=True):
            assert torch.allclose(parameter.grad, gradient, atol=1e-12)
    top = states[-1].detach()
    if make is gpt2:
        tied = model.lm_head.weight
        stem = model.transformer.wte(case.x) + model.transformer.wpe(torch.arange(case.x.shape[1]))
        read = model.lm_head(model.transformer.ln_f(top))
        both = torch.autograd.grad([stem, read], tied, [credits[0], error / case.y.numel()])[0]
        assert model.transformer.wte.weight is tied and torch.allclose(tied.grad, both, atol=1e-12)
    else:
        read = model.classifier(model.vit.layernorm(top)[:, 0])
        (slow,) = torch.autograd.grad(read, model.classifier.weight, error / case.y.numel())
        assert torch.allclose(model.classifier.weight.grad, slow, atol=1e-12)


def test_an_estimator_runs_forward_through_fused_attention():
    """With 60 draws in 3·9·16 dimensions a cosine of about √(60/(60 + 432)) is expected."""
    case = gpt2()
    with case.net.evaluating():
        trace = case.net.probe(case.x, case.y)
        credits = make_rule("forward-gradient(draws=60)").credits(trace)
    for a, g in zip(credits, trace.reference, strict=True):
        assert F.cosine_similarity(a.flatten(1), g.flatten(1)).mean() > 0.2


@main_cases
def test_the_proofs_of_a_rule_run_on_it(make):
    case = make()
    for name in ("bp", "dfa"):
        found = check_rule(name, case.net, case.x, case.y)
        told = [check.sentence for check in found]
        assert len(found) >= 4 and {check.status for check in found} == {"pass"}, told


def test_layer_form_reaches_every_linear_of_a_vit_and_refuses_gpt2_by_name():
    case, other = vit(), gpt2()
    found = check_rule("dfa(form=layer)", case.net, case.x, case.y)
    assert [check.status for check in found] == ["pass"] * 5, [check.sentence for check in found]
    (refused,) = check_rule("dfa(form=layer)", other.net, other.x, other.y)
    assert refused.status == "not applicable" and "c_attn.weight" in refused.sentence


def test_a_credit_may_reach_a_head_that_is_tied_to_the_embedding_and_no_other():
    case = gpt2()
    for tied in (True, False):
        if not tied:
            case.model.lm_head.weight = nn.Parameter(case.model.lm_head.weight.detach().clone())
        checks = check_rule("dfa", case.net, case.x, case.y)
        (found,) = (check for check in checks if check.name == "feedback")
        assert found.status == "pass" and "transformer.wte.weight" in found.detail["feedback_0"]
        assert tied or not any("lm_head.weight" in reached for reached in found.detail.values())


@main_cases
def test_a_frozen_twin_gives_the_baseline_and_both_are_kept(make, tmp_path):
    case, twin = make(), freeze_blocks(make().model, make().parts["blocks"])
    fixed = {name for name, p in twin.named_parameters() if not p.requires_grad}
    assert fixed and all(name.startswith(case.parts["blocks"]) for name in fixed)
    baseline = Bundle.from_model(twin, case.x, case.y, tmp_path / "f", role="baseline", **case.parts)
    kept = Bundle.from_model(case.model, case.x, case.y, tmp_path / "m", **case.parts)
    assert kept.verify() == baseline.verify() == 4
    verdict = FAProtocol(case.model, case.x, case.y, baseline=baseline, **case.parts).run()
    assert verdict["verdict"] == "INCOMPLETE(D3)", "equal blocks are no baseline of each other"
    assert "weight for weight" in verdict.reasons[2].sentence


@main_cases
def test_inputs_by_name_are_the_same_audit(make):
    case = make()
    named = transformers.BatchFeature({case.main: case.x})
    by_place, by_name = (
        FAProtocol(case.model, x, case.y, rule="bp", **case.parts).run() for x in (case.x, named)
    )
    assert by_name["layers"] == by_place["layers"]


def test_labels_of_padding_are_refused_with_the_reason():
    case = gpt2()
    with pytest.raises(BadInput, match="such as -100"):
        FAProtocol(case.model, case.x, case.y.masked_fill(case.y < 5, -100), **case.parts).run()


def test_a_wrong_path_is_answered_with_the_lists_there_are():
    case = vit()
    with pytest.raises(BadInput, match=f"Lists of modules in it: {case.parts['blocks']}"):
        Adapter(case.model, blocks="vit.encoder.blocks")


def test_checkpointing_that_hides_the_blocks_is_refused_and_the_other_kind_is_exact():
    """A re-entrant checkpoint runs its block without a graph: cutting it there would have no effect."""

    def gradients(reentrant):
        case = vit()
        rule = ready_rule("dfa", case.net, case.x, case.y)
        case.model.train()
        for part in case.model.modules():
            part.p = 0.0 if isinstance(part, nn.Dropout) else getattr(part, "p", None)
        if reentrant is not None:
            case.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        rule.deposit_gradients(case.net, case.x, case.y)
        return {name: p.grad for name, p in case.model.named_parameters()}

    plain, other = gradients(None), gradients(False)
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    with pytest.raises(NotApplicable, match="Block 0 runs without a graph"):
        gradients(True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing its compiler
@main_cases
def test_compiled_it_gives_the_same_numbers(make):
    case = make()
    case.model.eval()
    rule = ready_rule("dfa", case.net, case.x, case.y)
    plain = FAProtocol(case.model, case.x, case.y, rule=rule, **case.parts).run()
    wrapped = torch.compile(copy.deepcopy(case.model), backend="eager")
    case.model.compile(backend="eager")
    for model in (wrapped, case.model):
        case.output(model)
        found = FAProtocol(model, case.x, case.y, rule=rule, **case.parts).run()
        assert found["layers"] == plain["layers"] and found["layers"][1]["cosine"] is not None


FACTORY = """
import transformers
def build():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{config}))
"""


def test_gpt2_is_audited_by_the_documented_command(tmp_path, monkeypatch, capsys):
    """The saved file has no lm_head, which is tied; the batch names its inputs."""
    case = padded_gpt2()
    case.model.float()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_gpt2.py").write_text(FACTORY.format(config=GPT2))
    case.model.save_pretrained(tmp_path / "saved")
    arrays = {name: part.numpy() for name, part in {**case.x, "y": case.y}.items()}
    np.savez(tmp_path / "batch.npz", **arrays)
    page = (Path(__file__).parents[2] / "docs/how-to/audit-a-model.md").read_text(encoding="utf-8")
    (shown,) = (block for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "my_gpt2" in block)
    program, *words = shlex.split(shown.replace("\\\n", " "))
    code, found = answer(capsys, *words)
    live = FAProtocol(case.model, case.x, case.y, baseline=0.01, **case.parts).run()
    assert program == "walkback" and code == live.outcome.exit_code and found["layers"] == live["layers"]
    assert found["diagnostics"] == live.to_dict()["diagnostics"]
