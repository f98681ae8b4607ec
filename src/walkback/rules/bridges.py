"""State Bridge and Credit Bridge: a small net, shared by all depths, that learns where credit should point.

The FA paper's Table 1 names them without a definition. Both are **ours**: numbers produced with them must
not be read as a reproduction of its .205 and .289.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.core.errors import NotApplicable
from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace
from walkback.rules.base import Rule, draw_weights
from walkback.rules.dfa import DFA

WARM_UP = 0.2  # the share of training that is led by DFA's credit
SIGMA = LAMBDA = 0.1
SAMPLES, KEEP = 4, 0.99


class Bridge(Rule):
    """Depth is time, `t_l = l/L`; the bridge sees `[LN(h_l), time, e]`. DFA leads the first fifth."""

    wiring = "cut"
    has_feedback = True
    learns_feedback = True
    citation = "named without a definition in the FA paper, Table 1"
    progress: Tensor
    dfa: DFA
    bridge: _Bridge
    outputs: int | None  # how many numbers the bridge predicts; None: as many as the state has

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        if len({tuple(h.shape[1:]) for h in trace.states}) != 1 or trace.states[0].dim() != 2:
            raise NotApplicable(f"{self.name} needs states of one width, as vectors.")
        if not trace.sequential:
            raise NotApplicable(f"{self.name} needs logits = head(out_ln(h_L)).")
        h, width, classes = trace.states[0], trace.states[0].shape[1], trace.logits.shape[-1]
        self.dfa = DFA(form="block", skip="cut")
        self.dfa.setup(trace, generator)
        self.bridge = _Bridge(width, classes, self.outputs or width, int(self.params["width"]))
        draw_weights(self.bridge, generator)
        self.bridge.to(h.dtype).to(h.device)
        self.register_buffer("progress", torch.zeros((), dtype=h.dtype, device=h.device))

    @property
    def ready(self) -> bool:
        return any(True for _ in self.parameters())

    def idle_feedback(self) -> set[str]:
        """DFA's matrices, once it no longer leads."""
        late = float(self.progress) >= WARM_UP
        return {"progress", *(f"dfa.{name}" for name, _ in self.dfa.named_buffers() if late)}

    def begin_step(self, progress: float) -> None:
        self.progress.fill_(progress)

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        own = {f"bridge.{name}": parameter for name, parameter in self.bridge.named_parameters()}
        return {**super().trained(net), **own}

    def credits(self, trace: Trace) -> list[Tensor]:
        if float(self.progress) < WARM_UP:
            return self.dfa.credits(trace)
        return [self.credit(layer, trace) for layer in range(trace.depth + 1)]

    def learn(self, trace: Trace) -> None:
        with torch.enable_grad():
            parameters = list(self.bridge.parameters())
            gradients = torch.autograd.grad(self.loss(trace), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    @abstractmethod
    def credit(self, layer: int, trace: Trace) -> Tensor:
        """a_l, by the bridge."""

    @abstractmethod
    def loss(self, trace: Trace) -> Tensor:
        """What the bridge learns from."""


class StateBridge(Bridge):
    """G predicts the terminal state; the credit is the gradient of the loss that G's prediction has.

    G learns `‖G(h_l, t_l, e) − h_L‖² / ‖h_L‖²` at every depth. With `residual=true` G adds to h_l.
    """

    name = "state-bridge"
    about = "a learned predictor of the last state; credit through its prediction"
    ours = "the whole definition"
    defaults = {"residual": False, "width": 128}  # noqa: RUF012
    outputs = None

    def predicted(self, layer: int, h: Tensor, trace: Trace) -> Tensor:
        found = self.bridge(h, layer / trace.depth, trace.error)
        return h + found if self.params["residual"] else found

    def credit(self, layer: int, trace: Trace) -> Tensor:
        with torch.enable_grad():
            h = trace.states[layer].detach().requires_grad_()
            logits = trace.net.read_out(self.predicted(layer, h, trace))
            loss = F.cross_entropy(logits, trace.labels, reduction="sum")
            return torch.autograd.grad(loss, h)[0]

    def loss(self, trace: Trace) -> Tensor:
        top = trace.states[-1].detach()
        size = top.square().sum().clamp_min(torch.finfo(top.dtype).tiny)
        found = [
            (self.predicted(layer, h.detach(), trace) - top).square().sum() / size
            for layer, h in enumerate(trace.states)
        ]
        return torch.stack(found).mean()


class CreditBridge(Bridge):
    """V predicts the loss to come; the credit is its gradient, `a_l = ∇_h V(h_l, t_l, e)`.

    At the last state V learns the loss and its exact gradient; below, a soft minimum of a slowly moving
    copy of V one depth up, over noisy states: `−λ log E exp(−V̄(h_{l+1} + σξ)/λ)`.
    """

    name = "credit-bridge"
    about = "a learned value of every state; credit is its gradient"
    ours = "the whole definition"
    defaults = {"width": 128}  # noqa: RUF012
    outputs = 1

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        super().setup(trace, generator)
        for name, parameter in self.bridge.named_parameters():
            self.register_buffer(_slow(name), parameter.detach().clone())

    def idle_feedback(self) -> set[str]:
        """The slow copy leads the bridge's learning, not the credit; a constant has no gradient."""
        slow = {_slow(name) for name, _ in self.bridge.named_parameters()}
        return super().idle_feedback() | slow | {"bridge.last.bias"}

    def value(self, layer: int, h: Tensor, trace: Trace) -> Tensor:
        return self.bridge(h, layer / trace.depth, trace.error).squeeze(-1)

    def credit(self, layer: int, trace: Trace) -> Tensor:
        with torch.enable_grad():
            h = trace.states[layer].detach().requires_grad_()
            return torch.autograd.grad(self.value(layer, h, trace).sum(), h)[0]

    def loss(self, trace: Trace) -> Tensor:
        depth, top = trace.depth, trace.states[-1].detach().requires_grad_()
        value = self.value(depth, top, trace)
        (slope,) = torch.autograd.grad(value.sum(), top, create_graph=True)
        exact = _top_gradient(trace)
        size = exact.square().sum().clamp_min(torch.finfo(exact.dtype).tiny)
        terms = [(value - trace.losses).square().mean(), (slope - exact).square().sum() / size]
        for layer in range(depth):
            wanted = self._soft_minimum(layer + 1, trace)
            terms.append((self.value(layer, trace.states[layer].detach(), trace) - wanted).square().mean())
        self._follow()
        return torch.stack(terms).sum()

    @torch.no_grad()
    def _soft_minimum(self, layer: int, trace: Trace) -> Tensor:
        h = trace.states[layer].detach()
        slow = {name: self.get_buffer(_slow(name)) for name, _ in self.bridge.named_parameters()}
        noisy = [h + SIGMA * torch.randn_like(h) for _ in range(SAMPLES)]
        inputs = (layer / trace.depth, trace.error)
        values = [torch.func.functional_call(self.bridge, slow, (state, *inputs)) for state in noisy]
        scaled = torch.stack(values).squeeze(-1) / -LAMBDA
        return -LAMBDA * (scaled.logsumexp(0) - math.log(SAMPLES))

    @torch.no_grad()
    def _follow(self) -> None:
        for name, parameter in self.bridge.named_parameters():
            self.get_buffer(_slow(name)).lerp_(parameter, 1 - KEEP)


def _top_gradient(trace: Trace) -> Tensor:
    """g_L once more: the pass that learned has given its graph away."""
    h = trace.states[-1].detach().requires_grad_()
    return torch.autograd.grad(trace.net.read_out(h), h, trace.error)[0]


def _slow(name: str) -> str:
    return "slow_" + name.replace(".", "_")


class _Bridge(nn.Module):
    """Two hidden layers on the normed state, the time and the error."""

    FREQUENCIES = 4

    def __init__(self, width: int, classes: int, outputs: int, inner: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width, elementwise_affine=False)
        self.first = nn.Linear(width + 2 * self.FREQUENCIES + classes, inner)
        self.second = nn.Linear(inner, inner)
        self.last = nn.Linear(inner, outputs)

    def forward(self, h: Tensor, time: float, error: Tensor) -> Tensor:
        angles = [math.pi * time * 2**k for k in range(self.FREQUENCIES)]
        clock = h.new_tensor([f(a) for a in angles for f in (math.sin, math.cos)]).expand(len(h), -1)
        seen = torch.cat([self.ln(h), clock, error.to(h)], dim=1)
        return self.last(F.gelu(self.second(F.gelu(self.first(seen)))))
