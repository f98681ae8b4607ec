"""check_rule catches the shams this field knows, and passes the rules that are what they say."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from torch import nn

from walkback import check_rule
from walkback.check import check_all, forms_of
from walkback.cli.main import run
from walkback.nets.resmlp import ResMLP
from walkback.rules import rules
from walkback.rules.bp import BP
from walkback.rules.dfa import DFA
from walkback.rules.perturbation import ForwardGradient


def model() -> ResMLP:
    torch.manual_seed(0)
    return ResMLP(12, 5, depth=2, width=8, expansion=2)


def status(rule, name: str) -> str:
    return next(check.status for check in check_rule(rule, model()) if check.name == name)


class UnusedFeedback(DFA):
    """Says DFA and does backprop: its matrices are drawn, saved and never used."""

    def credits(self, trace):
        return trace.reference if trace.wiring == "probe" else self.training_credits(trace)

    def training_credits(self, trace):
        return trace.net.trace(trace.inputs, trace.labels, "probe").reference


class AlmostBackprop(BP):
    """A 'BP' that is a third off: what libraries have shipped."""

    def top_credit(self, trace):
        return 1.3 * super().top_credit(trace)


class FeedbackInHead(DFA):
    """Lets its feedback into the head's gradient."""

    def training_credits(self, trace):
        trace.__dict__["error"] = trace.error * (1 + self.get_buffer("feedback_0").sum())
        return super().training_credits(trace)

    def deposit_gradients(self, net, x, y):
        trace = net.trace(x, y, self.wiring)
        credits = self.training_credits(trace)
        sources = [trace.logits, *trace.outputs]
        torch.autograd.backward(sources, [trace.error, *credits])
        return trace


class Lopsided(ForwardGradient):
    """An estimator with a factor too much."""

    def rise(self, trace, states, directions):
        return 1.5 * super().rise(trace, states, directions)


class Infinite(DFA):
    def credits(self, trace):
        return [a / 0 for a in super().credits(trace)]


class Asleep(DFA):
    """Never gives the last block any credit: its weights do not train."""

    def training_credits(self, trace):
        *rest, last = super().training_credits(trace)
        return [*rest, 0 * last]


class OffByOne(DFA):
    """Numbers its matrices by the state that a block reads, and is diagnosed by the one that it makes."""

    def training_credits(self, trace):
        first, *rest = super().training_credits(trace)
        return [first, first, *rest[:-1]]

    def idle_feedback(self):
        return {"feedback_2"}


class LostInTraining(DFA):
    """Diagnosed in numbers, trained by what is none."""

    def training_credits(self, trace):
        return [a * float("nan") for a in super().training_credits(trace)]


class Tossed(DFA):
    """Now and then it gives no credit: what is diagnosed is what it gives on average."""

    def training_credits(self, trace):
        kept = float(torch.rand(()) < 0.9)
        return [a * kept / 0.9 for a in super().training_credits(trace)]


class ReadsThePass(DFA):
    """Notes something while the training pass runs, and needs it for its credits."""

    @contextlib.contextmanager
    def inside(self, net):
        self.noted = 1.0
        yield

    def training_credits(self, trace):
        return [a * self.noted for a in super().training_credits(trace)]

    def learn(self, trace):
        self.noted = None  # the pass is over


def test_a_rule_that_notes_something_in_its_pass_is_asked_within_one():
    assert status(ReadsThePass(**ReadsThePass.defaults), "diagnosed") == "pass"


def test_a_rule_that_draws_as_it_trains_is_not_called_off_by_one():
    found = check_rule(Tossed(**Tossed.defaults), model())
    assert "diagnosed" not in {check.name for check in found}


def test_what_is_diagnosed_is_compared_for_every_rule_that_draws_nothing():
    forms = [str(form) for name in rules for form in forms_of(name) if rules[name].role == "rule"]
    asked = {form: any(c.name == "diagnosed" for c in check_rule(form, model())) for form in forms}
    drawing = ("noise=fresh", "forward-gradient", "node-perturbation", "form=brsf", "nudge=random")
    assert asked == {form: not any(part in form for part in drawing) for form in forms}


@pytest.mark.parametrize(
    ("sham", "check"),
    [
        (UnusedFeedback, "feedback"),
        (AlmostBackprop, "exact"),
        (FeedbackInHead, "feedback"),
        (Lopsided, "unbiased"),
        (Infinite, "credits"),
        (Asleep, "moves"),
        (OffByOne, "diagnosed"),
        (LostInTraining, "diagnosed"),
    ],
)
def test_a_sham_fails_the_check_that_is_made_for_it(sham, check):
    assert status(sham(**sham.defaults), check) == "fail"


def test_the_net_and_the_rule_stay_as_they_were():
    net, rule = model(), DFA(**DFA.defaults)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.random.get_rng_state()
    check_rule(rule, net)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in net.parameters())
    assert not list(rule.buffers()) and torch.equal(state, torch.random.get_rng_state())


def test_a_pair_that_does_not_fit_says_why():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Conv1d(1, 1, 3, padding=1), nn.ReLU())])
            self.out_head = nn.Linear(12, 5)

        def forward(self, x):
            return self.out_head(self.blocks[0](x.unsqueeze(1)).flatten(1))

    batch = torch.randn(6, 12), torch.arange(6) % 5
    (found,) = check_rule("dfa(form=layer)", Conv(), *batch)
    assert found.status == "not applicable" and "cannot replace the transpose" in found.sentence


@pytest.mark.parametrize("form", [str(form) for name in rules for form in forms_of(name)])
def test_every_form_of_every_rule_passes_or_says_why_not(form):
    checked = check_all(form)
    for net, found in checked.items():
        assert found, net
        for check in found:
            assert check.status in ("pass", "not applicable"), f"{form} on {net}: {check.sentence}"
    states = {check.name: check.status for check in checked["resmlp"]}
    if "solver=gd" in form:
        assert states.pop("settles") == "not applicable"  # a few steps, which is what it is for
    assert set(states.values()) == {"pass"}


def test_forms_are_every_combination_that_a_rule_takes_and_equal_ones_once():
    assert [str(form) for form in forms_of("fa")] == ["fa(form=layer)", "fa(form=block)"]
    assert len(forms_of("dfa")) == 4
    solved = [form.params for form in forms_of("ep")]
    assert {(p["form"], p["solver"]) for p in solved} == {
        ("energy", "sweeps"),
        ("energy", "gd"),
        ("aep", "sweeps"),
    }
    assert sum(p["solver"] == "gd" for p in solved) == 2  # its symmetric nudge is the random one


def test_an_equilibrium_that_is_not_reached_is_said():
    few = [c for c in check_rule("ep(solver=gd,steps=3)", model()) if c.name == "settles"]
    assert few[0].status == "not applicable" and "unconverged" in few[0].sentence
    assert few[0].detail["residual"] > 0.05
    solved = [c for c in check_rule("ep", model()) if c.name == "settles"]
    assert solved[0].status == "pass" and solved[0].detail["residual"] < 0.01


def test_the_command_gives_the_documented_rows(capsys, monkeypatch):
    kept = {name: rules._entries[name] for name in ("bp", "dfa")}
    monkeypatch.setattr(rules, "_entries", kept)
    assert run(["ls", "rules", "--check", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rules"]
    forms = ["dfa", "dfa(skip=sum)", "dfa(form=layer)", "dfa(form=layer,skip=sum)"]
    assert [row["name"] for row in rows] == ["bp", *forms]
    assert set(rows[1]) == {"name", "written", "citation", "forms", "nets", "ours", "check"}
    assert rows[1]["forms"] == {"form": ["block", "layer"], "skip": ["cut", "sum"]}
    assert rows[1]["check"]["resmlp"]["status"] == "pass"
    monkeypatch.setitem(rules._entries, "sham", UnusedFeedback)
    assert run(["ls", "rules", "--check", "--json"]) == 1
