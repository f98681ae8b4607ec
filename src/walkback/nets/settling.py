"""What a net is that settles: its forward pass takes equal steps towards a rest, which a nudge can move."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class SettlingNet(nn.Module, ABC):
    """Each block is one step, and all share one set of weights, so that h_0 … h_L are states over time.

    Backprop on such a net is backprop through time, and equilibrium propagation is the classical rule.
    `step_size` is the share of a force that one step carries out.
    """

    step_size: float

    @abstractmethod
    def nudged(self, x: Tensor, y: Tensor, rest: Tensor, beta: float, steps: int) -> list[Tensor]:
        """Every state on the way from `rest` when the cost Σ CE pulls with strength `beta`."""
