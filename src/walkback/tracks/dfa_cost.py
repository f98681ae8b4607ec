"""Track "dfa-cost": a DFA step costs less than a backprop step, and is still DFA."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from walkback.nets import Adapter
from walkback.nets.mlp import MLP
from walkback.rules import Rule, make_rule
from walkback.tracks import Control, Decision, IdentityGate, Lab, Track
from walkback.tracks.equilibrium import relative, worst
from walkback.train.kernel import depositor

track = Track(
    id="dfa-cost",
    name="DFA costs less than backprop",
    claim="A training step of layer-form DFA takes at most .95 of a backprop step of plain torch.",
    purpose="DFA needs no product with Wᵀ; implementations that keep autograd's graph pay for it anyway.",
    limits="One MLP, CPU, one thread; time of this thread, as medians of interleaved steps.",
    improve="Residual and convolutional nets, and a GPU.",
    arms={"dfa": "walkback's step", "bp": "autograd and the same optimizer"},
    gates=(
        IdentityGate("gradients", "Largest relative difference to DFA's formula", at_most=1e-4),
        IdentityGate("trained", "Share of parameters with a gradient", at_least=1.0),
    ),
    decisions=(Decision("ratio", "DFA step / backprop step, CPU time", at_most=0.95),),
    controls=(
        Control("backprop instead", "the cheap step is walkback's backprop, which computes more"),
        Control("backprop as well", "backprop is computed too, and thrown away"),
        Control("blocks skipped", "the cheap step leaves half of the blocks out"),
    ),
    level={"quick": "directional", "full": "directional"},
    quick={"rounds": 12, "width": 512, "depth": 7, "batch": 128},
    full={"rounds": 40, "width": 512, "depth": 15, "batch": 128},
)


@track.experiment
def time_steps(lab: Lab) -> None:
    """An MLP on random inputs. DFA's gradients are first compared with its formula, written out here; then
    DFA and backprop steps take turns, and the ratio of their median CPU times is taken.
    """
    width, depth = lab.settings["width"], lab.settings["depth"]
    x = torch.randn(lab.settings["batch"], 256, generator=lab.generator("x"))
    y = torch.randint(10, (len(x),), generator=lab.generator("y"))
    nets = []
    for _ in range(2):
        torch.manual_seed(lab.stream("init"))
        nets.append(MLP(256, 10, depth=depth, width=width))
    rule = make_rule("bp" if lab.under("backprop instead") else "dfa(form=layer)")
    step = _step(lab, nets[0], rule, x, y)
    step(False)
    lab.report("gradients", _off(nets[0], rule, x, y))
    given = [p.grad is not None and bool(p.grad.abs().sum() > 0) for p in nets[0].parameters()]
    lab.report("trained", sum(given) / len(given))
    ratio, mine, theirs = _ratio(lambda: step(True), _plain(nets[1], x, y), lab.settings["rounds"])
    lab.row(step="dfa", milliseconds=1e3 * mine, ratio=ratio)
    lab.row(step="bp", milliseconds=1e3 * theirs, ratio=1.0)
    lab.report("ratio", ratio)
    lab.tell(
        difference=f"A DFA step takes {ratio:.2f} of a backprop step.",
        interpretation="What the rule does not need is not computed.",
    )


def _step(lab: Lab, model: nn.Module, rule: Rule, x: Tensor, y: Tensor) -> Callable[[bool], None]:
    adapter = Adapter(model)
    rule.setup(adapter.probe(x[:2], y[:2]), lab.generator("feedback"))
    deposit = depositor(adapter, rule, len(x))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    idle = list(adapter.blocks)[: adapter.depth // 2] if lab.under("blocks skipped") else []

    def run(update: bool) -> None:
        if lab.under("backprop as well"):
            cross_entropy(model(x), y).backward()
        deposit(x, y)
        for parameter in (p for block in idle for p in block.parameters()):
            parameter.grad = torch.zeros_like(parameter)
        if update:
            optimizer.step()

    return run


def _plain(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def _off(model: MLP, rule: Rule, x: Tensor, y: Tensor) -> float:
    """Against `dW_l = (B_lᵀe ∘ φ'(z_l))ᵀ h_{l−1}/N`, from the credits and one forward pass."""
    adapter = Adapter(model)
    with adapter.evaluating():
        trace = adapter.probe(x, y)
        credits = rule.credits(trace)
    found = []
    for layer, block in enumerate(adapter.blocks, start=1):
        below = trace.states[layer - 1].detach()
        params = list(block.parameters())
        with torch.enable_grad():
            out = block(below)
            wanted = torch.autograd.grad((out * credits[layer].detach()).sum() / len(x), params)
        for parameter, target in zip(params, wanted, strict=True):
            given = torch.zeros_like(target) if parameter.grad is None else parameter.grad
            found.append(relative(given, target))
    return worst(found)


def _ratio(ours: Callable[[], None], peer: Callable[[], None], rounds: int) -> tuple[float, float, float]:
    for _ in range(3):
        ours()
        peer()
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(_seconds(ours))
        theirs.append(_seconds(peer))
    first, second = statistics.median(mine), statistics.median(theirs)
    return first / second, first, second


def _seconds(task: Callable[[], None]) -> float:
    """Of this thread, so that what else the machine does is not counted."""
    started = time.thread_time()
    task()
    return time.thread_time() - started
