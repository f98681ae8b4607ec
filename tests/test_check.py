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
from walkback.rules import make_rule, rules
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


class NaNInTheBlocks(BP):
    """Backprop, but for the first block, where it leaves what is no number."""

    def deposit_gradients(self, net, x, y):
        trace = super().deposit_gradients(net, x, y)
        for parameter in net.blocks[0].parameters():
            parameter.grad.fill_(float("nan"))
        return trace


class Whispers(UnusedFeedback):
    """Backprop that adds so little feedback that no gradient is exactly as it was."""

    def credits(self, trace):
        feedback = (self.get_buffer(f"feedback_{layer}") for layer in range(trace.depth + 1))
        pairs = zip(super().credits(trace), feedback, strict=True)
        return [g + 1e-12 * (trace.error @ matrix) for g, matrix in pairs]

    def training_credits(self, trace):
        return self.credits(trace.net.probe(trace.inputs, trace.labels))


class Renamed(BP):
    exact = False


class RenamedAndHidden(Renamed):
    """Shows something else than what it trains by, and draws a number so that nobody compares."""

    def credits(self, trace):
        return [-g for g in trace.reference]

    def training_credits(self, trace):
        torch.rand(())
        return super().training_credits(trace)


class HeldOutOfSight(DFA):
    """Keeps its matrix where no checkpoint saves it, and never uses it."""

    def setup(self, trace, generator):
        self.matrix = [torch.randn(5, 8, generator=generator)]

    def credits(self, trace):
        return [torch.ones_like(h) for h in trace.states]

    def training_credits_upwards(self, trace):
        return iter(self.training_credits(trace))


class GivesNothing(DFA):
    def credits(self, trace):
        return None


class Steady(BP):
    """An 'estimator' that draws nothing: exactly backprop, times a factor."""

    wiring, unbiased, factor = "cut", True, 1.0

    def credits(self, trace):
        own = trace if trace.wiring == "probe" else trace.net.probe(trace.inputs, trace.labels)
        return [self.factor * g for g in own.reference]

    def training_credits(self, trace):
        return self.credits(trace)


class SteadilyOff(Steady):
    factor = 1.001


class Drowned(Steady):
    """A third of the gradient, under so much noise that no mean of a few hundred draws shows it."""

    exact, factor = False, 0.3

    def training_credits(self, trace):
        return [a + 50 * a.norm() * torch.randn_like(a) for a in super().training_credits(trace)]


class OwnPass(DFA):
    def deposit_gradients(self, net, x, y):
        return super().deposit_gradients(net, x, y)


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


@pytest.mark.parametrize(
    ("rule", "why"), [(Tossed, "draws random numbers"), (OwnPass, "a training pass of its own")]
)
def test_what_is_diagnosed_and_cannot_be_compared_is_said_to_be_so(rule, why):
    (found,) = [c for c in check_rule(rule(**rule.defaults), model()) if c.name == "diagnosed"]
    assert found.status == "not applicable" and why in found.sentence


def test_what_is_diagnosed_is_compared_for_every_rule_that_draws_nothing():
    forms = [str(form) for name in rules for form in forms_of(name) if rules[name].role == "rule"]
    found = {form: status(make_rule(form), "diagnosed") for form in forms}
    assert found == {form: "not applicable" if draws(form) else "pass" for form in forms}


def draws(form: str) -> bool:
    parts = ("noise=fresh", "forward-gradient", "node-perturbation", "form=brsf", "nudge=random")
    return any(part in form for part in parts)


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
        (NaNInTheBlocks, "moves"),
        (NaNInTheBlocks, "exact"),
        (Whispers, "feedback"),
        (Whispers, "own"),
        (Renamed, "own"),
        (RenamedAndHidden, "own"),
        (HeldOutOfSight, "feedback"),
        (GivesNothing, "credits"),
        (SteadilyOff, "unbiased"),
    ],
)
def test_a_sham_fails_the_check_that_is_made_for_it(sham, check):
    assert status(sham(**sham.defaults), check) == "fail"


def test_credits_that_are_no_list_are_named_in_one_sentence():
    (found,) = check_rule(GivesNothing(**GivesNothing.defaults), model())
    assert found.sentence == "credits(trace) returns NoneType, not a list of one tensor per state."


def test_an_estimator_that_draws_nothing_has_a_mean_all_the_same():
    assert status(Steady(), "unbiased") == "pass"


def test_a_bias_that_noise_hides_is_not_called_absent():
    (found,) = [c for c in check_rule(Drowned(), model()) if c.name == "unbiased"]
    assert found.status == "not applicable" and "standard error" in found.sentence
    assert found.detail["standard_error"] > 0.2
    (told,) = [c for c in check_rule("forward-gradient", model()) if c.name == "unbiased"]
    assert told.status == "pass" and told.detail["standard_error"] < 0.2


@pytest.mark.parametrize("rule", ["ep", "dose(cosine=1)", "bp+penalty(0.01)", "mixed(blocks=bp)"])
def test_a_rule_that_is_backprop_by_design_says_how_near_it_is(rule):
    (found,) = [c for c in check_rule(rule, model()) if c.name == "own"]
    assert found.status == "pass" and found.detail["shown"] < 1e-3
    assert "made from backprop's or settling to them" in found.sentence


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
    if draws(form):
        assert states.pop("diagnosed") == "not applicable"
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
