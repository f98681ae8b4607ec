"""Equilibrium propagation: credit is how the settled net gives way when its output is nudged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from math import factorial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from walkback.core.errors import BadInput, NotApplicable
from walkback.core.spec import Call, Value
from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace, stable_error
from walkback.rules.base import Rule


class EP(Rule):
    """Every state is free to move, and settles with and without a nudge β of the cost C = Σ_i CE_i.

    `form=energy`: `E = ½ Σ ‖ε_l‖²`, `ε_l = s_l − F_l(s_{l−1})`; its free minimum is the forward pass. The
    nudged minimum of `E + βC` is found by `steps` block sweeps: `ε_L = −β ∂C/∂s_L` at the current state,
    `ε_l = J_{l+1}ᵀ ε_{l+1}` top-down, `s_l = F_l(s_{l−1}) + ε_l` bottom-up. The credit is
    `a_l = (ε_l^{−β} − ε_l^{+β}) / 2β`; the difference of the states themselves is *not* one, for it piles
    up from block to block, `δ_l = ε_l + J_l δ_{l−1}`.
    `form=aep`: `ds = v(s) − (J − Jᵀ)|_{s0} (s − s0) − β ∂C/∂s` with `v_l = F_l(s_{l−1}) − s_l`, in unit
    steps, one block further down in each; the credit is `a_l = (s_l^{−β} − s_l^{+β}) / 2β`.

    `solver=gd` is the few-step version, kept because it is what is often run: `steps` small steps of
    `rate` down E from zero for the free phase, as many down `E + βC` for the nudged one, and
    `a_l = (ε_l^0 − ε_l^{+β}) / β`. The free phase has not come to rest, and its drift, divided by β, is
    most of that difference: the cosines to backprop are near zero and the states grow.

    `steps=0` takes as many as the form needs: 4 sweeps, or L + 1 steps of `aep`; gd takes 10.
    `nudge=symmetric` has an error of O(β²), `nudge=positive` (one-sided) of O(β). `holomorphic=N` has
    O(β^N): N real nudges up to ±β in the central difference of order N, for the functions inside a block
    need not be defined on complex states.

    Every nudged phase starts from the free state, the nudge is taken anew at every step, and gradients
    are taken block by block on detached states. The first sweep from the forward pass is the chain rule
    itself; what the others add is O(β²), and grows with what the nudge moves, so that a trained net with
    steep blocks needs a smaller β than a fresh one. After each use `residual` says how far the nudged
    states are from rest: the slope that is left, relative to the nudge and all it set off. It is 1 where
    nothing has settled and 0 at rest; above `settled_below` the rule's `label` is `ep (unconverged)`.
    """

    name = "ep"
    citation = (
        "Scellier & Bengio 2017, Front. Comput. Neurosci. 11:24; symmetric: Laborieux et al. 2021, "
        "arXiv:2006.03824; aep: Scurria et al. 2026, arXiv:2602.03670"
    )
    about = "how the settled states give way to a nudge of the output"
    ours = (
        "the energy of a residual chain and its block sweeps; holomorphic=N by N real nudges; "
        "several times the cost of bp, for every nudge settles the whole net"
    )
    wiring = "cut"
    defaults = {  # noqa: RUF012
        "form": "energy",
        "solver": "sweeps",
        "beta": 0.01,
        "steps": 0,
        "rate": 0.1,
        "nudge": "symmetric",
        "holomorphic": 0,
    }
    choices = {  # noqa: RUF012
        "form": ("energy", "aep"),
        "solver": ("sweeps", "gd"),
        "nudge": ("symmetric", "positive"),
    }
    # aep's L + 1 steps leave O(β), 0.02 on a fresh ResMLP of width 128; few-step gd leaves above 0.3.
    settled_below: ClassVar[float] = 0.05
    residual: float = float("nan")

    @classmethod
    def check_choices(cls, call: Call) -> None:
        super().check_choices(call)
        params = call.params
        order = int(params["holomorphic"])
        if not float(params["beta"]) > 0 or not float(params["rate"]) > 0:
            raise BadInput("ep needs a beta and a rate above 0.", "Smaller is more exact: beta=0.01.")
        if int(params["steps"]) < 0:
            raise BadInput(f"ep cannot take {params['steps']} steps.", "0 stands for as many as needed.")
        if order < 0 or order % 2:
            raise BadInput(f"ep has no holomorphic={order}.", "Choose 0, or an even number of nudges.")
        if order and (params["nudge"] == "positive" or params["solver"] == "gd"):
            raise BadInput("ep(holomorphic=…) is symmetric.", "Leave out nudge=positive and solver=gd.")
        if params["form"] == "aep" and params["solver"] == "gd":
            raise BadInput("ep(form=aep) has no energy to descend.", "Choose solver=sweeps.")

    @classmethod
    def normalise(cls, params: Mapping[str, Value]) -> Mapping[str, Value]:
        return {**params, "nudge": "positive"} if params["solver"] == "gd" else params

    @property
    def converged(self) -> bool:
        """Whether the nudged states of the last use were at rest; never before a first use."""
        return self.residual <= self.settled_below

    @property
    def label(self) -> str:
        return self.name if self.converged else f"{self.name} (unconverged)"

    def credits(self, trace: Trace) -> list[Tensor]:
        if not trace.contiguous:
            raise NotApplicable(
                "ep has no states to settle: something lies between the blocks of this model.",
                "Each block must receive exactly what the one before it returned.",
            )
        credits = [torch.zeros_like(h) for h in trace.states]
        residuals = []
        with torch.enable_grad(), _statistics_kept(trace.net), sdpa_kernel(SDPBackend.MATH):
            free = self.start(trace)
            for beta, weight in self.nudges():
                moved, residual = self.settle(trace, free, beta)
                credits = [a + weight * m for a, m in zip(credits, moved, strict=True)]
                residuals.append(residual)
        # max() would drop a NaN, and a net that blew up has not converged.
        self.residual = float(torch.tensor(residuals).max())
        return credits

    def nudges(self) -> list[tuple[float, float]]:
        """(β, w) such that Σ w·m(β) is −dm/dβ at 0, for an m that is zero without a nudge."""
        beta = float(self.params["beta"])
        if self.params["nudge"] == "positive" or self.params["solver"] == "gd":
            return [(beta, -1 / beta)]
        half = int(self.params["holomorphic"]) // 2 or 1
        found = []
        for j in range(1, half + 1):
            share = (-1) ** (j + 1) * 2 * factorial(half) ** 2 / (factorial(half - j) * factorial(half + j))
            near = beta * j / half
            found += [(near, -share / (2 * near)), (-near, share / (2 * near))]
        return found

    def start(self, trace: Trace) -> list[Tensor]:
        """The free state: the forward pass, where every ε is zero; for gd, what it makes of zero."""
        passed = [h.detach() for h in trace.states]
        if self.params["solver"] == "sweeps":
            return passed
        from_zero = [passed[0], *(torch.zeros_like(h) for h in passed[1:])]
        return self._descend(trace, from_zero, 0.0, self._steps(10))

    def settle(self, trace: Trace, free: list[Tensor], beta: float) -> tuple[list[Tensor], float]:
        """How ε (of aep: s) differs from the free state's in the nudged one, and the residual there."""
        if self.params["form"] == "aep":
            return self._settle_aep(trace, free, beta, self._steps(trace.depth + 1))
        if self.params["solver"] == "sweeps":
            return self._sweep(trace, free, beta, self._steps(4))
        before, _ = self._energy(trace, free, 0.0)
        states = self._descend(trace, free, beta, self._steps(10))
        errors, slopes_and_nudge = self._energy(trace, states, beta)
        moved = [after - e for after, e in zip(errors, before, strict=True)]
        return moved, _residual(errors, *slopes_and_nudge)

    def _steps(self, needed: int) -> int:
        return int(self.params["steps"]) or needed

    def cost_gradient(self, trace: Trace, top: Tensor) -> Tensor:
        """∂C/∂s_L where s_L now is, through the head and the terminal norm."""
        top = top.detach().requires_grad_()
        logits = trace.tail(trace.depth, top)
        (gradient,) = torch.autograd.grad(logits, top, stable_error(logits.detach(), trace.labels))
        return gradient

    def link(self, trace: Trace, layer: int, below: Tensor) -> Link:
        return Link(trace, layer, below)

    def _links(self, trace: Trace, states: Sequence[Tensor]) -> list[Link]:
        return [self.link(trace, layer, states[layer - 1]) for layer in range(1, trace.depth + 1)]

    def _sweep(
        self, trace: Trace, free: list[Tensor], beta: float, steps: int
    ) -> tuple[list[Tensor], float]:
        bottom, top, links = trace.states[0].detach(), free[-1], self._links(trace, free)
        errors: list[Tensor] = []
        for _ in range(steps):
            errors = [-beta * self.cost_gradient(trace, top)]
            for link in reversed(links):
                errors.insert(0, link.pull(errors[0]))
            top, links = bottom + errors[0], []
            for layer in range(1, trace.depth + 1):
                links.append(self.link(trace, layer, top))
                top = links[-1].output + errors[layer]
        return errors, _residual(errors, *self._slopes(trace, beta, links, errors, top))

    def _slopes(
        self, trace: Trace, beta: float, links: Sequence[Link], errors: Sequence[Tensor], top: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """∂(E + βC)/∂s_l for every layer, and the nudge in it."""
        nudge = beta * self.cost_gradient(trace, top)
        pulled = [link.pull(above) for link, above in zip(links, errors[1:], strict=True)]
        below = [error - pull for error, pull in zip(errors[:-1], pulled, strict=True)]
        return [*below, errors[-1] + nudge], nudge

    def _descend(self, trace: Trace, states: list[Tensor], beta: float, steps: int) -> list[Tensor]:
        """`s ← s − rate ∂(E + βC)/∂s`, all layers at once."""
        for _ in range(steps):
            slopes, _ = self._energy(trace, states, beta)[1]
            rate = float(self.params["rate"])
            states = [s - rate * slope for s, slope in zip(states, slopes, strict=True)]
        return states

    def _energy(
        self, trace: Trace, states: Sequence[Tensor], beta: float
    ) -> tuple[list[Tensor], tuple[list[Tensor], Tensor]]:
        links = self._links(trace, states)
        predicted = [trace.states[0].detach(), *(link.output for link in links)]
        errors = [s - p for s, p in zip(states, predicted, strict=True)]
        return errors, self._slopes(trace, beta, links, errors, states[-1])

    def _settle_aep(
        self, trace: Trace, free: list[Tensor], beta: float, steps: int
    ) -> tuple[list[Tensor], float]:
        at_rest = self._links(trace, free)
        moved = [torch.zeros_like(h) for h in free]
        for _ in range(steps):
            change, _ = self._aep_change(trace, beta, free, at_rest, moved)
            moved = [m + c for m, c in zip(moved, change, strict=True)]
        return moved, _residual(moved, *self._aep_change(trace, beta, free, at_rest, moved))

    def _aep_change(
        self, trace: Trace, beta: float, free: list[Tensor], at_rest: list[Link], moved: list[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """ds of every layer, and the nudge in it; `moved` is s − s0."""
        states = [h + m for h, m in zip(free, moved, strict=True)]
        nudge = beta * self.cost_gradient(trace, states[-1])
        change = [-m for m in moved]
        for layer, link in enumerate(at_rest, start=1):
            with torch.no_grad():
                predicted = trace.block(layer, states[layer - 1])
            change[layer] += predicted - link.output - link.push(moved[layer - 1])
            change[layer - 1] += link.pull(moved[layer])
        change[-1] -= nudge
        return change, nudge


class Link:
    """Block l at one state below it: its output, and its Jacobian J_l in both directions."""

    def __init__(self, trace: Trace, layer: int, below: Tensor) -> None:
        self._below = below.detach().requires_grad_()
        self._above = trace.block(layer, self._below)
        self.output = self._above.detach()

    def pull(self, v: Tensor) -> Tensor:
        """J_lᵀ v."""
        (pulled,) = torch.autograd.grad(self._above, self._below, v, retain_graph=True)
        return pulled

    def push(self, v: Tensor) -> Tensor:
        """J_l v: J_lᵀ u is linear in u, and its own transpose is J_l."""
        u = torch.zeros_like(self.output, requires_grad=True)
        (pulled,) = torch.autograd.grad(self._above, self._below, u, create_graph=True)
        (pushed,) = torch.autograd.grad(pulled, u, v)
        return pushed


def _residual(moved: Sequence[Tensor], gaps: Sequence[Tensor], nudge: Tensor) -> float:
    """What is left to settle, relative to what has moved; at rest without a nudge is 0, not 0/0."""
    gap, size = _norm(gaps), torch.maximum(_norm(moved), _norm([nudge]))
    return float(gap / size) if size != 0 else float(gap)


def _norm(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(part.detach().double()) for part in parts]).norm()


@contextlib.contextmanager
def _statistics_kept(net: Adapter) -> Iterator[None]:
    """Settling runs a block many times; BatchNorm's running statistics count its forward pass once."""
    kept = [m for m in net.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    tracked = [m.track_running_stats for m in kept]
    try:
        for module in kept:
            module.track_running_stats = False
        yield
    finally:
        for module, value in zip(kept, tracked, strict=True):
            module.track_running_stats = value
