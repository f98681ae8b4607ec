"""Is this equilibrium propagation? The tests by which a rule is told from backprop under another name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.nets.trace import Trace, stable_error
from walkback.rules.base import Rule
from walkback.rules.bp import BP
from walkback.rules.ep import EP
from walkback.tracks.equilibrium import worst
from walkback.train.kernel import depositor

MakeEP = Callable[[float], EP]  # the rule at a given β


def identity_net(generator: torch.Generator) -> tuple[Adapter, Tensor, Tensor]:
    """Four blocks in float64, with states so large that the cost is gently curved: EP's error is O((β ×
    curvature)²), and the bounds below are for that. And a batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        model = ResMLP(6, 4, depth=4, width=64, expansion=2).double()
    model.stem.weight.data.mul_(6)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return Adapter(model), x, torch.randint(4, (8,), generator=generator)


def through_all_blocks(trace: Trace) -> list[Tensor]:
    """Backprop under another name: credits by one graph over all blocks."""
    with torch.enable_grad():
        states = [trace.states[0].detach().requires_grad_()]
        for layer in range(1, trace.depth + 1):
            states.append(trace.block(layer, states[-1]))
        logits = trace.net.read_out(states[-1])
        return list(torch.autograd.grad(logits, states, stable_error(logits.detach(), trace.labels)))


def gradient_error(rule: Rule, net: Adapter, x: Tensor, y: Tensor) -> float:
    """The largest relative difference from backprop's, over credits and over the gradients in training."""
    exact = _gradients(BP(), net, x, y)
    found = _gradients(rule, net, x, y)
    return worst((credit_error(rule, net, x, y), *(_relative(found[name], exact[name]) for name in found)))


def credit_error(rule: Rule, net: Adapter, x: Tensor, y: Tensor) -> float:
    trace = net.probe(x, y)
    return worst(_relative(a, g) for a, g in zip(rule.credits(trace), trace.reference, strict=True))


def order_in_beta(make: MakeEP, net: Adapter, x: Tensor, y: Tensor, beta: float = 0.1) -> float:
    """The slope of log error over log β: 2 for symmetric nudges, and 0 for backprop, which has no β."""
    whole, half = (credit_error(make(b), net, x, y) for b in (beta, beta / 2))
    return math.log2(whole / half) if whole > 0 and half > 0 else 0.0


def free_residual(rule: EP, net: Adapter, x: Tensor, y: Tensor) -> float:
    """How far the states move, relative to their size, when they settle without a nudge."""
    trace = net.probe(x, y)
    free = rule.start(trace)
    moved, _ = rule.settle(trace, free, 0.0)
    return worst(float(m.norm() / h.norm()) for m, h in zip(moved, free.states, strict=True))


def nudge_change(rule: EP, net: Adapter, x: Tensor, y: Tensor) -> float:
    """By how much, relatively, a later nudge differs from the first, which is made at the free state.

    A nudge frozen at the free state gives the same gradients as β → 0, so it is told by this alone.
    """
    trace = net.probe(x, y)
    tops: list[Tensor] = []
    original = rule.cost_gradient

    def noted(trace: Any, top: Tensor) -> Tensor:
        tops.append(original(trace, top))
        return tops[-1]

    rule.cost_gradient = noted  # type: ignore[method-assign]
    try:
        rule.settle(trace, rule.start(trace), 0.1)
    finally:
        del rule.cost_gradient
    return worst(_relative(top, tops[0]) for top in tops[1:]) if len(tops) > 1 else 0.0


def blocks_in_one_graph(rule: Rule, net: Adapter, x: Tensor, y: Tensor) -> int:
    """The most blocks that one graph spans, of all graphs that autograd is asked to walk in a step."""
    owner = {id(p): layer for layer, block in enumerate(net.blocks) for p in block.parameters()}
    for parameter in net.model.parameters():
        parameter.requires_grad_()
    spans = [0]
    with _autograd_watched(lambda outputs: spans.append(len(_owners(outputs, owner)))):
        depositor(net, rule, len(y))(x, y)
    return max(spans)


def _gradients(rule: Rule, net: Adapter, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What a training step deposits in the parameters that the rule trains."""
    trained = rule.trained(net)
    for name, parameter in net.model.named_parameters():
        parameter.requires_grad_(name in trained)
        parameter.grad = None
    depositor(net, rule, len(y))(x, y)
    return {name: p.grad.clone() for name, p in trained.items() if p.grad is not None}


def _relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@contextmanager
def _autograd_watched(see: Callable[[Sequence[Tensor]], None]) -> Iterator[None]:
    originals = {name: getattr(torch.autograd, name) for name in ("grad", "backward")}

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def asked(outputs: Tensor | Sequence[Tensor], *given: Any, **named: Any) -> Any:
            see([outputs] if isinstance(outputs, Tensor) else list(outputs))
            return original(outputs, *given, **named)

        return asked

    try:
        for name, original in originals.items():
            setattr(torch.autograd, name, watched(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.autograd, name, original)


def _owners(outputs: Sequence[Tensor], owner: dict[int, int]) -> set[int]:
    """The blocks whose parameters one graph reaches; the graphs of several outputs are walked apart."""
    most: set[int] = set()
    for output in outputs:
        reached, seen, ahead = set(), set(), [output.grad_fn]
        while ahead:
            node = ahead.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in owner:
                reached.add(owner[id(variable)])
            ahead += [below for below, _ in node.next_functions]
        most = max(most, reached, key=len)
    return most
