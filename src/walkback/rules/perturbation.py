"""Estimators of the gradient that need no backward pass: calibration for the metrics, and slow learners."""

from __future__ import annotations

import warnings
from abc import abstractmethod

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from walkback.core.errors import BadInput, NotApplicable
from walkback.core.spec import Call
from walkback.nets.trace import Trace
from walkback.nets.wrappers import plain_attention, statistics_kept
from walkback.rules.base import Rule, repeatable


class Estimator(Rule):
    """Every state of every sample is pushed along a random direction at once; the credit of a layer is the
    direction times how much the sample's loss rose. `draws` such estimates are averaged."""

    wiring = "cut"
    unbiased = True
    defaults = {"draws": 1}  # noqa: RUF012

    @classmethod
    def check_choices(cls, call: Call) -> None:
        super().check_choices(call)
        if int(call.params["draws"]) < 1:
            raise BadInput(f"{cls.name} needs at least one draw, not {call.params['draws']}.")

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        if not trace.sequential:
            raise NotApplicable(f"{self.name} needs a net that is its blocks and then head(out_ln(h_L)).")

    def credits(self, trace: Trace) -> list[Tensor]:
        self.setup(trace, torch.Generator())  # nothing is drawn
        with repeatable(self.name):
            return self._estimate(trace)

    def training_credits(self, trace: Trace) -> list[Tensor]:
        return self._estimate(trace)

    @torch.no_grad()
    def _estimate(self, trace: Trace) -> list[Tensor]:
        states = [h.detach() for h in trace.states]
        total = [torch.zeros_like(h) for h in states]
        draws = int(self.params["draws"])
        for _ in range(draws):
            directions = [torch.randn(h.shape, dtype=h.dtype).to(h.device) for h in states]
            with statistics_kept(trace.net.model):
                rise = self.rise(trace, states, directions)
            for sum_, direction in zip(total, directions, strict=True):
                sum_ += rise.view(-1, *[1] * (direction.dim() - 1)) * direction / draws
        return total

    @abstractmethod
    def rise(self, trace: Trace, states: list[Tensor], directions: list[Tensor]) -> Tensor:
        """How fast each sample's loss rises when all states move along their directions."""


class ForwardGradient(Estimator):
    """The rise is exact, by forward-mode differentiation: unbiased, `E[a_l] = g_l`."""

    name = "forward-gradient"
    citation = "Baydin et al. 2022, arXiv:2202.08587; on activities: Ren et al. 2022, arXiv:2210.03310"
    about = "a random direction times the loss's exact slope along it"
    ours = "all layers are perturbed at once"

    def rise(self, trace: Trace, states: list[Tensor], directions: list[Tensor]) -> Tensor:
        # Fused attention has no forward mode.
        with warnings.catch_warnings(), plain_attention(), forward_ad.dual_level():
            # torch loads its forward-mode formulas through torch.jit, which it warns about itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            h = forward_ad.make_dual(states[0], directions[0])
            for layer in range(1, trace.depth + 1):
                value, slope = forward_ad.unpack_dual(trace.block(layer, h))
                h = forward_ad.make_dual(value, directions[layer] + (0 if slope is None else slope))
            slope = forward_ad.unpack_dual(trace.net.read_out(h)).tangent
        return (trace.error * slope).flatten(1).sum(1)


class NodePerturbation(Estimator):
    """The rise is a difference of two losses, at ± `sigma` times the RMS of all states: bias O(σ²)."""

    name = "node-perturbation"
    citation = "Williams 1992, Machine Learning 8; Werfel, Xie & Seung 2005, Neural Computation 17"
    about = "a random direction times how the loss changes along it"
    ours = "antithetic, all layers at once, with one step for all, relative to the RMS of all states"
    defaults = {"draws": 1, "sigma": 1e-3}  # noqa: RUF012

    @classmethod
    def check_choices(cls, call: Call) -> None:
        super().check_choices(call)
        if not float(call.params["sigma"]) > 0:
            raise BadInput(f"node-perturbation needs a positive sigma, not {call.params['sigma']}.")

    def rise(self, trace: Trace, states: list[Tensor], directions: list[Tensor]) -> Tensor:
        sigma = float(self.params["sigma"]) * torch.stack([h.square().mean() for h in states]).mean().sqrt()
        up, down = (self._losses(trace, states[0], directions, step) for step in (sigma, -sigma))
        return ((up - down) / (2 * sigma)).to(states[0])

    def _losses(self, trace: Trace, first: Tensor, directions: list[Tensor], step: Tensor) -> Tensor:
        h = first + step * directions[0]
        for layer in range(1, trace.depth + 1):
            h = trace.block(layer, h) + step * directions[layer]
        logits = trace.net.read_out(h).flatten(0, -2)
        losses = F.cross_entropy(logits, trace.labels.flatten(), reduction="none")
        return losses.view(len(first), -1).sum(1)
