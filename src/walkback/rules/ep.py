"""Equilibrium propagation: credit is how the settled net gives way when its output is nudged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import factorial

import torch
from torch import Tensor

from walkback.core.errors import BadInput, NotApplicable
from walkback.core.quantities import SETTLED_BELOW
from walkback.core.spec import Call, Value
from walkback.nets.settling import SettlingNet
from walkback.nets.trace import Trace, stable_error
from walkback.nets.wrappers import plain_attention, statistics_kept
from walkback.rules.base import Rule, repeatable


class EP(Rule):
    """Every state is free to move, and settles with and without a nudge β of the cost C = Σ_i CE_i.

    `form=energy`: `E = ½ Σ ‖ε_l‖²`, `ε_l = s_l − F_l(s_{l−1})`; its free minimum is the forward pass. The
    nudged minimum of `E + βC` is found by `steps` block sweeps: `ε_L = −β ∂C/∂s_L` at the current state,
    `ε_l = J_{l+1}ᵀ ε_{l+1}` top-down, `s_l = F_l(s_{l−1}) + ε_l` bottom-up. The credit is
    `a_l = (ε_l^{−β} − ε_l^{+β}) / 2β`; the difference of the states themselves is *not* one, for it piles
    up from block to block, `δ_l = ε_l + J_l δ_{l−1}`.
    `form=aep`: `ds = v(s) − (J − Jᵀ)|_{s0} (s − s0) − β ∂C/∂s` with `v_l = F_l(s_{l−1}) − s_l`, in unit
    steps, one block further down in each; the credit is `a_l = (s_l^{−β} − s_l^{+β}) / 2β`.

    A net that settles by itself (`SettlingNet`) is nudged in its own dynamics, whatever the form: the
    classical rule. Its nudged step t gives the credit of its state t steps before rest.

    `solver=gd` is the few-step version, kept because it is what is often run: `steps` small steps of
    `rate` down E from zero for the free phase, as many down `E + βC` for the nudged one, and
    `a_l = (ε_l^0 − ε_l^β) / β`. The free phase has not come to rest, and its drift, divided by β, is most
    of that difference: the cosines to backprop are near zero. It is taken with `nudge=random`; with
    `nudge=positive` the drift pushes the same way at every step, and the states grow without bound.

    `steps=0` takes as many as are needed: 3 sweeps, L + 1 steps of `aep` or of a net's own; gd takes 10.
    `nudge=symmetric` has an error of O(β²), `nudge=positive` (one-sided) of O(β), as has `nudge=random`,
    one-sided with the sign of β drawn at every use. `holomorphic=N` has O(β^N): N real nudges up to ±β in
    the central difference of order N, for the functions inside a block need not be defined on complex
    states.
    `reach`: β is lowered until no row's states move by more than this share of their size, all layers
    together; 0 leaves β as it is. What counts as a small nudge depends on how steep the blocks and the
    head are, and so changes in training.

    Every nudged phase starts from the free state, the nudge is taken anew at every step, and gradients
    are taken block by block on detached states. After each use `residual` says how far the nudged states
    are from rest: what another step would change, relative to the nudge and all it set off. It is 0 at
    rest and 1 or more where nothing has settled; above `SETTLED_BELOW` the rule is `ep (unconverged)`.
    """

    name = "ep"
    citation = (
        "Scellier & Bengio 2017, Front. Comput. Neurosci. 11:24 (nudge=random too); symmetric: "
        "Laborieux et al. 2021, arXiv:2006.03824; aep: Scurria et al. 2026, arXiv:2602.03670; credit of "
        "each step: Ernoult et al. 2019, arXiv:1905.13633"
    )
    about = "how the settled states give way to a nudge of the output"
    ours = (
        "the energy of a residual chain and its block sweeps; reach; holomorphic=N by N real nudges; gd's "
        "steps cut to size; several times the cost of bp, for every nudge settles the whole net"
    )
    wiring = "cut"
    backprop_by_design = True  # what an ever smaller nudge settles to
    defaults = {  # noqa: RUF012
        "form": "energy",
        "solver": "sweeps",
        "beta": 0.01,
        "reach": 0.001,
        "steps": 0,
        "rate": 0.1,
        "nudge": "symmetric",
        "holomorphic": 0,
    }
    choices = {  # noqa: RUF012
        "form": ("energy", "aep"),
        "solver": ("sweeps", "gd"),
        "nudge": ("symmetric", "positive", "random"),
    }
    residual: float = float("nan")

    @classmethod
    def check_choices(cls, call: Call) -> None:
        super().check_choices(call)
        params = call.params
        order = int(params["holomorphic"])
        if not float(params["beta"]) > 0 or not float(params["rate"]) > 0:
            raise BadInput("ep needs a beta and a rate above 0.", "Smaller is more exact: beta=0.01.")
        if not float(params["reach"]) >= 0:
            raise BadInput(f"ep has no reach={params['reach']}.", "0 leaves beta as it is.")
        if int(params["steps"]) < 0:
            raise BadInput(f"ep cannot take {params['steps']} steps.", "0 stands for as many as needed.")
        if order < 0 or order % 2:
            raise BadInput(f"ep has no holomorphic={order}.", "Choose 0, or an even number of nudges.")
        if order and (params["nudge"] != "symmetric" or params["solver"] == "gd"):
            raise BadInput("ep(holomorphic=…) is symmetric.", "Leave out nudge=… and solver=gd.")
        if params["form"] == "aep" and params["solver"] == "gd":
            raise BadInput("ep(form=aep) has no energy to descend.", "Choose solver=sweeps.")

    @classmethod
    def normalise(cls, params: Mapping[str, Value]) -> Mapping[str, Value]:
        few = params["solver"] == "gd" and params["nudge"] == "symmetric"
        return {**params, "nudge": "random"} if few else params

    @property
    def converged(self) -> bool:
        """Whether the nudged states of the last use were at rest; never before a first use."""
        return self.residual <= SETTLED_BELOW

    def readings(self) -> Mapping[str, float]:
        return {"settling.residual@1": self.residual}

    def credits(self, trace: Trace) -> list[Tensor]:
        with repeatable(self.name):
            return self.training_credits(trace)

    def training_credits(self, trace: Trace) -> list[Tensor]:
        if not trace.contiguous:
            raise NotApplicable(
                "ep has no states to settle: something lies between the blocks of this model.",
                "Each block must receive exactly what the one before it returned.",
            )
        credits = [torch.zeros_like(h) for h in trace.states]
        residuals = []
        with torch.enable_grad(), statistics_kept(trace.net.model), plain_attention():
            free = self.start(trace)
            for beta, weight in self.nudges(self.largest_nudge(free)):
                moved, residual = self.settle(trace, free, beta)
                credits = [a + weight * m for a, m in zip(credits, moved, strict=True)]
                residuals.append(residual)
        self.residual = _largest(residuals)
        return credits

    def nudges(self, beta: float) -> list[tuple[float, float]]:
        """(β, w) such that Σ w·m(β) is −dm/dβ at 0, for an m that is zero without a nudge."""
        if self.params["nudge"] != "symmetric":
            one = -beta if self.params["nudge"] == "random" and bool(torch.randint(2, ())) else beta
            return [(one, -1 / one)]
        half = int(self.params["holomorphic"]) // 2 or 1
        found = []
        for j in range(1, half + 1):
            share = (-1) ** (j + 1) * 2 * factorial(half) ** 2 / (factorial(half - j) * factorial(half + j))
            near = beta * j / half
            found += [(near, -share / (2 * near)), (-near, share / (2 * near))]
        return found

    def largest_nudge(self, free: Free) -> float:
        """β, or what is left of it once `max_i Σ_l ‖β ∂C/∂s_l‖ / ‖s_l‖` is held to `reach`."""
        beta, reach = float(self.params["beta"]), float(self.params["reach"])
        if not reach or not free.slopes:
            return beta
        pairs = zip(free.slopes, free.states, strict=True)
        farthest = beta * float(torch.stack([_relative_size(a, h) for a, h in pairs]).sum(0).max())
        return beta * reach / farthest if reach < farthest < math.inf else beta

    def start(self, trace: Trace) -> Free:
        """The free state: the forward pass, where every ε is zero; for gd, as near as it comes."""
        passed = [h.detach() for h in trace.states]
        if isinstance(trace.net.model, SettlingNet):
            return Free(passed, [], [])
        if self.params["solver"] == "gd":
            from_zero = [passed[0], *(torch.zeros_like(h) for h in passed[1:])]
            return Free(self._descend(trace, from_zero, 0.0, self._steps(10)), [], [])
        links = self._links(trace, passed)
        return Free(passed, links, self._pull_down(links, self.cost_gradient(trace, passed[-1])))

    def settle(self, trace: Trace, free: Free, beta: float) -> tuple[list[Tensor], float]:
        """How ε (of aep: s) differs from the free state's in the nudged one, and the residual there."""
        if isinstance(trace.net.model, SettlingNet):
            return self._settle_own(trace, trace.net.model, beta, self._steps(trace.depth + 1))
        if self.params["form"] == "aep":
            return self._settle_aep(trace, free, beta, self._steps(trace.depth + 1))
        if self.params["solver"] == "sweeps":
            return self._sweep(trace, free, beta, self._steps(3))
        return self._settle_by_descent(trace, free, beta, self._steps(10))

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

    def _pull_down(self, links: Sequence[Link], top: Tensor) -> list[Tensor]:
        """`v_l = J_{l+1}ᵀ v_{l+1}` from the last state to the first."""
        pulled = [top]
        for link in reversed(links):
            pulled.insert(0, link.pull(pulled[0]))
        return pulled

    def _sweep(self, trace: Trace, free: Free, beta: float, steps: int) -> tuple[list[Tensor], float]:
        """From the forward pass the first way down is the chain rule itself; the sweeps add O(β²)."""
        errors, before = [-beta * slope for slope in free.slopes], free.slopes
        nudge = errors[-1]
        for _ in range(steps):
            top, links = trace.states[0].detach() + errors[0], []
            for layer in range(1, trace.depth + 1):
                links.append(self.link(trace, layer, top))
                top = links[-1].output + errors[layer]
            nudge = -beta * self.cost_gradient(trace, top)
            before, errors = errors, self._pull_down(links, nudge)
        gaps = [after - e for after, e in zip(errors, before, strict=True)]
        return errors, _residual(errors, gaps, nudge)

    def _settle_by_descent(
        self, trace: Trace, free: Free, beta: float, steps: int
    ) -> tuple[list[Tensor], float]:
        before, _, _ = self._slopes(trace, free.states, 0.0)
        states = self._descend(trace, free.states, beta, steps)
        errors, slopes, nudge = self._slopes(trace, states, beta)
        moved = [after - e for after, e in zip(errors, before, strict=True)]
        return moved, _residual(errors, slopes, nudge)

    def _descend(self, trace: Trace, states: list[Tensor], beta: float, steps: int) -> list[Tensor]:
        """`s ← s − rate ∂(E + βC)/∂s`, all layers at once.

        E is curved like (1 + ‖J‖)²: J grows in training, and is huge where a norm meets a state near zero.
        So a step is cut to `rate` times the state of the forward pass, and no rate makes it run away.
        """
        rate = float(self.params["rate"])
        for _ in range(steps):
            _, slopes, _ = self._slopes(trace, states, beta)
            cut = [_cut_to_size(slope, h.detach()) for slope, h in zip(slopes, trace.states, strict=True)]
            states = [s - rate * slope for s, slope in zip(states, cut, strict=True)]
        return states

    def _slopes(
        self, trace: Trace, states: Sequence[Tensor], beta: float
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """ε_l and ∂(E + βC)/∂s_l for every layer, and the nudge in the last of them."""
        links = self._links(trace, states)
        predicted = [trace.states[0].detach(), *(link.output for link in links)]
        errors = [s - p for s, p in zip(states, predicted, strict=True)]
        nudge = beta * self.cost_gradient(trace, states[-1])
        pulled = [link.pull(above) for link, above in zip(links, errors[1:], strict=True)]
        below = [error - pull for error, pull in zip(errors[:-1], pulled, strict=True)]
        return errors, [*below, errors[-1] + nudge], nudge

    def _settle_aep(self, trace: Trace, free: Free, beta: float, steps: int) -> tuple[list[Tensor], float]:
        moved = [torch.zeros_like(h) for h in free.states]
        for _ in range(steps):
            change, _ = self._aep_change(trace, beta, free, moved)
            moved = [m + c for m, c in zip(moved, change, strict=True)]
        return moved, _residual(moved, *self._aep_change(trace, beta, free, moved))

    def _aep_change(
        self, trace: Trace, beta: float, free: Free, moved: list[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """ds of every layer, and the nudge in it; `moved` is s − s0."""
        states = [h + m for h, m in zip(free.states, moved, strict=True)]
        nudge = beta * self.cost_gradient(trace, states[-1])
        change = [-m for m in moved]
        for layer, link in enumerate(free.links, start=1):
            with torch.no_grad():
                predicted = trace.block(layer, states[layer - 1])
            bent = predicted - link.output - link.push(moved[layer - 1])
            change[layer] += _above_rounding(bent, link.output)
            change[layer - 1] += link.pull(moved[layer])
        change[-1] -= nudge
        return change, nudge

    def _settle_own(
        self, trace: Trace, net: SettlingNet, beta: float, steps: int
    ) -> tuple[list[Tensor], float]:
        """Step t of the nudged phase moves by `−step_size β ∂C/∂s` of the state t steps before rest.

        In float64, for a late step is a small difference of large states.
        """
        if self.params["solver"] == "gd":
            raise NotApplicable("This net settles in steps of its own.", "Leave out solver=gd.")
        rest, last = trace.states[-1].detach(), trace.states[-2].detach()
        start = rest if rest.device.type == "mps" else rest.double()  # MPS has no float64
        path = net.nudged(trace.inputs, trace.labels, start, beta, min(steps, trace.depth + 1))
        moves = [after - before for before, after in pairwise(path)]
        credits = [(move / net.step_size).to(rest) for move in reversed(moves)]
        unreached = [torch.zeros_like(rest)] * (trace.depth + 1 - len(moves))
        free = _residual([rest], [rest - last], rest)
        nudged = _residual([path[-1] - start], [moves[-1]], moves[0])
        return [*unreached, *credits], _largest([free, nudged])


@dataclass(frozen=True)
class Free:
    """The states before the nudge; where they rest, also the blocks there and ∂C/∂s_l at every one."""

    states: list[Tensor]
    links: list[Link]
    slopes: list[Tensor]


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


def _relative_size(a: Tensor, h: Tensor) -> Tensor:
    """‖a‖/‖h‖ per row, of tokens the largest: a norm acts on each alone. A state of zero has no size."""
    over = -1 if h.dim() == 3 else tuple(range(1, h.dim()))
    sizes = torch.linalg.vector_norm(h, dim=over)
    ratios = torch.where(sizes > 0, torch.linalg.vector_norm(a, dim=over) / sizes, 0)
    return ratios.flatten(1).amax(1) if ratios.dim() > 1 else ratios


def _above_rounding(difference: Tensor, of: Tensor) -> Tensor:
    """A difference of states like `of`; a row that is no larger than their rounding is nothing."""
    size, whole = (part.flatten(1).norm(dim=1) for part in (difference, of))
    real = size > 32 * torch.finfo(of.dtype).eps * whole
    return torch.where(real.view(-1, *[1] * (of.dim() - 1)), difference, 0)


def _cut_to_size(slope: Tensor, state: Tensor) -> Tensor:
    """The slope, where it is longer than the state shortened to its length, row by row."""
    length, limit = (part.flatten(1).norm(dim=1) for part in (slope, state))
    share = torch.where(length > limit, limit / length, 1)
    return slope * share.view(-1, *[1] * (slope.dim() - 1))


def _residual(moved: Sequence[Tensor], gaps: Sequence[Tensor], nudge: Tensor) -> float:
    """What is left to settle, relative to what has moved; at rest without a nudge is 0, not 0/0."""
    gap, size = _norm(gaps), torch.maximum(_norm(moved), _norm([nudge]))
    return float(gap / size) if size != 0 else float(gap)


def _largest(residuals: Sequence[float]) -> float:
    """max() would drop a NaN, and a net that blew up has not converged."""
    return float(torch.tensor(residuals, dtype=torch.float64).max())


def _norm(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(part.detach().double()) for part in parts]).norm()
