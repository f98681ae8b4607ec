"""Track 9: the gradient of equilibrium propagation is backprop's, step by step and as β goes to zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.numerals import number
from walkback.core.spec import Call
from walkback.nets import Adapter, hopfield, looped
from walkback.nets.hopfield import Gradients
from walkback.nets.resmlp import ResMLP
from walkback.nets.trace import Trace
from walkback.rules.ep import EP, Link
from walkback.tracks import ep_identity
from walkback.tracks.equilibrium import (
    Settling,
    Spoil,
    draw_settling,
    equilibrium_error,
    farthest,
    free_residual,
    least,
    noise_for_transposes,
    order_in_beta,
    replaced,
    step_state_error,
    step_weight_error,
    worst,
)
from walkback.tracks.lab import Lab
from walkback.tracks.track import Control, Decision, Gate, IdentityGate, Track

Chain = tuple[Adapter, Tensor, Tensor]
NETS = ("HopfieldMLP", "LoopedMLP")
ORDERS = {"one-sided": ("positive", 1, (0.02, 0.005)), "symmetric": ("symmetric", 2, (0.1, 0.025))}
STEP_BETA, SMALL_BETA = 1e-4, 1e-3
FORMS: dict[str, dict[str, Any]] = {"energy form": {}, "aep form": {"form": "aep", "steps": 5}}
BETAS = {"energy form": (0.1, 0.01), "aep form": (0.1,)}  # of the residual net

track = Track(
    id=9,
    name="EP gradient = backprop",
    claim="Nudged differences are backprop's gradients: step by step through time, at equilibrium to first "
    "(one-sided) and second (symmetric) order in β, and on a residual net in both of its sound forms.",
    purpose="Much code called equilibrium propagation is backprop under another name, or a vector field "
    "with no gradient in it. Here the two are computed apart and must agree, to the order in β that theory "
    "gives.",
    limits="Small nets at initialisation in float64, and a cost that is gently curved at the states: EP's "
    "error is O((β × curvature)²), so a trained net with steep blocks needs a smaller β.",
    improve="The same along a training run, with β chosen from the curvature; convolutional nets.",
    arms={
        "EP": "free and nudged phases, no graph over more than one block",
        "BPTT": "autograd through every step of a net that settles",
        "BP": "autograd through the blocks of a residual net",
    },
    gates=(
        IdentityGate("graph", "Most blocks in one autograd graph of an EP step", at_most=1),
        IdentityGate("nudge", "Relative change of the nudge as the states move", at_least=1e-6),
        Gate("at rest", "Relative change by one more free step", at_most=1e-12),
    ),
    decisions=(
        Decision("step states", "Nudged steps against BPTT's, states, relative", at_most=1e-6),
        Decision("step weights", "Nudged steps against BPTT's, weights, relative", at_most=1e-6),
        Decision("equilibrium", f"Relative error at β = {SMALL_BETA:g}, symmetric", at_most=1e-5),
        *(
            Decision(f"{word}, {net}", f"Order in β, {word}", at_least=order - 0.1, at_most=order + 0.1)
            for word, (_, order, _) in ORDERS.items()
            for net in NETS
        ),
        Decision("energy form, β = 0.1", "ResMLP against BP, relative", at_most=1e-3),
        Decision("energy form, β = 0.01", "ResMLP against BP, relative", at_most=1e-4),
        Decision("aep form, β = 0.1", "ResMLP against BP in 5 steps, relative", at_most=1e-4),
        *(Decision(f"{form}, order", "Order in β, symmetric", at_least=1.9, at_most=2.1) for form in FORMS),
    ),
    controls=(
        Control("sign flip", "the credit has the wrong sign"),
        Control("no 1/β", "the difference is not divided by β"),
        Control("restart", "the nudged phase starts from zero and takes 20 steps"),
        Control("not at rest", "the free phase stops after 10 steps"),
        Control("noise for Wᵀ", "the way back is random noise in place of Wᵀ"),
        Control("no bias gradient", "biases are given no gradient"),
        Control("state difference", "the energy form takes the difference of states for its credit"),
        Control("frozen nudge", "the nudge stays what it was at the free state"),
        Control("backprop in disguise", "what is called EP is backprop through all blocks"),
        Control("backprop block by block", "what is called EP is backprop, by a graph for each block"),
    ),
    level={"quick": "conclusive", "full": "conclusive"},
    quick={"draws": 1, "steps": 5},
    full={"draws": 5, "steps": 6},
)


@track.experiment
def compare(lab: Lab) -> None:
    """Credits and gradients of a residual net of four blocks by both forms of EP are held against
    backprop's, and the difference must fall as β²: backprop under another name has no β. Then a
    HopfieldMLP and a LoopedMLP settle: every nudged step is held against the step of backprop through time
    that it mirrors, and the gradients at equilibrium against backprop through all steps, at two β.
    """
    draws = range(lab.settings["draws"])
    chains = [draw_chain(lab.generator("chain", draw)) for draw in draws]
    lab.report("graph", max(ep_identity.blocks_in_one_graph(make_ep(lab), *chain) for chain in chains))
    lab.report("nudge", least(ep_identity.nudge_change(make_ep(lab), *chain) for chain in chains))
    for form in FORMS:
        report_form(lab, form, chains)
    cases = [case for draw in draws for case in draw_settling(lab.generator("nets", draw))]
    with broken_phases(lab):
        report_settling(lab, cases)
    shown = ", ".join(number(row["error"]) for row in lab.rows)
    lab.tell(
        difference=f"Relative differences from backprop, in the order of the table: {shown}.",
        interpretation="A nudge and a difference of states, with no graph over more than one block, carry "
        "backprop's gradient; what is missing falls with β as theory says.",
    )


def draw_chain(generator: torch.Generator) -> Chain:
    """A residual net of four blocks and a batch, with still larger states: β = 0.1 is a large nudge."""
    net, x, y = ep_identity.identity_net(generator)
    assert isinstance(net.model, ResMLP)
    net.model.stem.weight.data.mul_(4)
    return net, x, y


def report_form(lab: Lab, form: str, chains: Sequence[Chain]) -> None:
    """One form of EP on the residual net: its errors, then their order in β."""

    def make(beta: float) -> ArmEP:
        return make_ep(lab, beta=beta, **FORMS[form])

    order = farthest([ep_identity.order_in_beta(make, *chain) for chain in chains], 2)
    for beta in BETAS[form]:
        error = worst(ep_identity.gradient_error(make(beta), *chain) for chain in chains)
        lab.row(net="ResMLP", comparison=f"{form}, β = {beta:g}", error=error, order=order)
        lab.report(f"{form}, β = {beta:g}", error)
    lab.report(f"{form}, order", order)


def report_settling(lab: Lab, cases: list[Settling]) -> None:
    """The nets that settle by themselves: each nudged step, then the equilibrium and its order in β."""
    spoil, steps = spoiler(lab), lab.settings["steps"]
    lab.report("at rest", worst(free_residual(case) for case in cases))
    lab.report("step states", worst(step_state_error(case, STEP_BETA, steps) for case in cases))
    lab.report("step weights", worst(step_weight_error(case, STEP_BETA, steps, spoil) for case in cases))
    lab.report(
        "equilibrium", worst(equilibrium_error(case, "symmetric", spoil, SMALL_BETA) for case in cases)
    )
    for word, (nudge, target, betas) in ORDERS.items():
        for net in NETS:
            own = [case for case in cases if case.name == net]
            found = [order_in_beta(partial(equilibrium_error, case, nudge, spoil), betas) for case in own]
            order = farthest([slope for slope, _ in found], target)
            error = worst(error for _, error in found)
            lab.row(net=net, comparison=f"{word}, β = {betas[-1]:g}", error=error, order=order)
            lab.report(f"{word}, {net}", order)


def spoiler(lab: Lab) -> Spoil:
    """What the lab has broken in gradients that were found at a β."""

    def spoil(found: Gradients, beta: float) -> Gradients:
        factor = (-1 if lab.under("sign flip") else 1) * (beta if lab.under("no 1/β") else 1)
        dropped = "bias" if lab.under("no bias gradient") else "nothing"
        return {name: factor * g * (not name.endswith(dropped)) for name, g in found.items()}

    return spoil


@contextmanager
def broken_phases(lab: Lab) -> Iterator[None]:
    """Within, what the lab has broken in the phases of the nets that settle."""
    with ExitStack() as stack:
        if lab.under("noise for Wᵀ"):
            stack.enter_context(noise_for_transposes(lab.generator("noise")))
        for module in (hopfield, looped):
            if lab.under("restart"):
                stack.enter_context(replaced(module, "settle_nudged", from_zero(module.settle_nudged)))
            if lab.under("not at rest"):
                stack.enter_context(replaced(module, "settle_free", cut_short(module.settle_free)))
        yield


def from_zero(settle: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    def restarted(net: nn.Module, x: Tensor, y: Tensor, start: Tensor, *given: Any) -> list[Tensor]:
        beta, steps = given
        return settle(net, x, y, torch.zeros_like(start), beta, min(steps, 20))

    return restarted


def cut_short(settle: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda net, x, steps: settle(net, x, min(steps, 10))


class ArmEP(EP):
    """EP on the residual net, but for the one thing that the lab has broken."""

    def __init__(self, lab: Lab, **params: Any) -> None:
        super().__init__(**params)
        self.lab = lab

    def nudges(self, *given: Any) -> list[tuple[float, float]]:
        sign, whole = -1 if self.lab.under("sign flip") else 1, self.lab.under("no 1/β")
        found = super().nudges(*given)
        return [(beta, sign * weight * (abs(beta) if whole else 1)) for beta, weight in found]

    def link(self, trace: Trace, layer: int, below: Tensor) -> Link:
        link: Any = super().link(trace, layer, below)
        if self.lab.under("noise for Wᵀ"):
            width = below.shape[1]
            noise = torch.randn(width, width, generator=self.lab.generator("noise", layer)).to(below)
            link.pull = lambda v: v + v @ noise / width**0.5
        return link

    def settle(self, trace: Trace, free: Any, beta: float) -> tuple[list[Tensor], float]:
        errors, residual = super().settle(trace, free, beta)
        if not self.lab.under("state difference") or self.params["form"] != "energy":
            return errors, residual
        states = [trace.states[0].detach() + errors[0]]
        for layer in range(1, trace.depth + 1):
            states.append(trace.block(layer, states[-1]).detach() + errors[layer])
        return [s - h.detach() for s, h in zip(states, trace.states, strict=True)], residual

    def cost_gradient(self, trace: Trace, top: Tensor) -> Tensor:
        return super().cost_gradient(trace, trace.states[-1] if self.lab.under("frozen nudge") else top)

    def training_credits(self, trace: Trace) -> list[Tensor]:
        if self.lab.under("backprop in disguise"):
            return ep_identity.through_all_blocks(trace)
        if self.lab.under("backprop block by block"):
            return list(self.start(trace).slopes)
        return super().training_credits(trace)

    def deposit_gradients(self, net: Adapter, x: Tensor | Mapping[str, Tensor], y: Tensor) -> Trace:
        trace = super().deposit_gradients(net, x, y)
        if self.lab.under("no bias gradient"):
            for name, parameter in net.model.named_parameters():
                if name.endswith("bias") and parameter.grad is not None:
                    parameter.grad.zero_()
        return trace


def make_ep(lab: Lab, **params: Any) -> ArmEP:
    return ArmEP(lab, **ep_params(**params))


def ep_params(**params: Any) -> Mapping[str, Any]:
    """The rule's parameters with these ones set, and β as it is given: its error is what is bounded."""
    return EP.normalise(Call("ep", {"reach": 0.0, **params}).with_defaults(EP.defaults, "rule").params)
