"""Trace: one forward pass on a fixed batch, from which everything is measured and every rule learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from walkback.core.errors import BadInput, NotApplicable

if TYPE_CHECKING:
    from walkback.nets.adapter import Adapter

Wiring = Literal["probe", "chain", "cut"]


NO_WAY_BACK = (
    "No gradient comes back from the logits to the last block.",
    "Is the head run under no_grad, or does it not depend on the blocks?",
)


@dataclass
class Trace:
    """States h_0 … h_L (0 = stem output, L = deepest), logits and labels of one forward pass.

    `outputs[l]` is h_l as it was computed, `states[l]` is h_l as it was passed on. They are the same
    tensor except at the layers in `cuts`, where the graph is cut and `states[l]` is a fresh leaf:

    - `probe` cuts at 0 and L: gradients of the blocks alone, for measuring;
    - `chain` cuts at L: the head's gradient and the blocks' credit can differ, for training;
    - `cut` cuts everywhere: each block learns from its own credit only.

    `contiguous` says that every block received exactly what the one before it returned; `replayable`,
    that no block was given an object, such as a cache, that may remember the pass. `received` is what
    each block was given, and `read` what the terminal norm was, or the head where there is none.
    `random` says that the model draws numbers, so that another pass gives other logits.
    """

    net: Adapter
    outputs: list[Tensor]
    states: list[Tensor]
    logits: Float[Tensor, "*rows classes"]
    labels: Int[Tensor, "*rows"]
    wiring: Wiring
    inputs: Any = None
    calls: Sequence[Any] = ()
    contiguous: bool = True
    replayable: bool = True
    received: Sequence[Tensor] = ()
    read: Tensor | None = None
    random: bool = False

    @property
    def depth(self) -> int:
        return len(self.states) - 1

    @property
    def cuts(self) -> list[int]:
        return cut_layers(self.wiring, self.depth)

    @property
    def per_token(self) -> bool:
        """Whether every token has a label of its own; the unit is then the token, else the sample."""
        return self.labels.dim() > 1

    @cached_property
    def stream(self) -> Sequence[Tensor] | None:
        """What flows from block to block; None where what leaves the last block cannot be told.

        The states, where every block receives what the one before it returned. Where it does not, as in
        `h = h + block(h)`, a state is a branch, and the stream is what the blocks and the head receive.
        """
        if self.contiguous:
            return self.states
        if self.read is None or self.read.numel() != self.states[-1].numel():
            return None  # as after pooling, or where no head is named
        stream, lead = [*self.received, self.read], self.labels.shape
        return stream if all(h.shape[: len(lead)] == lead for h in stream) else None

    @property
    def count(self) -> int:
        """How many rows (samples, or tokens with their own label) the batch has: N of a mean loss."""
        return self.labels.numel()

    @cached_property
    def error(self) -> Float[Tensor, "*rows classes"]:
        """e = softmax(logits) − onehot(y) per row, never divided by N."""
        return stable_error(self.logits.detach(), self.labels)

    @cached_property
    def losses(self) -> Float[Tensor, " rows"]:
        logits = self.logits.detach().flatten(0, -2)
        return F.cross_entropy(logits, self.labels.flatten(), reduction="none")

    @cached_property
    def reference(self) -> list[Tensor]:
        """g_l = ∂(Σ CE)/∂h_l for every layer, sum-reduced, started from `error`."""
        assert self.wiring == "probe", "the reference is measured on a probe trace"
        top = self.top_reference()
        # The logits are a source too: a net may read h_l past the last block, as multi-scale heads do.
        sources, arriving = [self.logits, self.outputs[-1]], [self.error, top]
        below = _gradients(sources, self.states[:-1], arriving)
        filled = [
            torch.zeros_like(h) if g is None else g for g, h in zip(below, self.states[:-1], strict=True)
        ]
        return [*filled, top]

    def top_reference(self) -> Tensor:
        """g_L, the exact gradient at the last state: through the head and the terminal norm only."""
        (top,) = _gradients([self.logits], [self.states[-1]], [self.error])
        if top is None:
            raise NotApplicable(*NO_WAY_BACK)
        return top

    def block(self, layer: int, h: Tensor) -> Tensor:
        """What block `layer` (1 … L) makes of another input, in the context of this pass."""
        if not self.replayable:
            raise NotApplicable(
                "The blocks of this model are given an object that may remember an earlier pass.",
                "They cannot be run again on another state: switch its cache off.",
            )
        return self.net.replay_block(self.calls[layer - 1], layer, h)

    def branch(self, layer: int, h: Tensor) -> Tensor:
        """f_l: what block `layer` adds to its input."""
        return self.block(layer, h) - h

    def tail(self, layer: int, h: Tensor) -> Tensor:
        """Logits from layer `layer` on, with h_layer replaced by `h`."""
        if not self.sequential:
            return self.net.forward_from(self.inputs, layer, h)
        for above in range(layer + 1, self.depth + 1):
            h = self.block(above, h)
        return self.net.read_out(h)

    @cached_property
    def sequential(self) -> bool:
        """Whether the net is its blocks one after the other and then `head(out_ln(h_L))`, nothing else."""
        return self.contiguous and self.replayable and self._read_again is True

    @property
    def reads_more(self) -> bool:
        """Whether `head(out_ln(h_L))` is something else than the logits; not if it cannot be computed."""
        return self._read_again is False

    @cached_property
    def _read_again(self) -> bool | None:
        """Whether head and terminal norm alone give the logits; None where they cannot be run alone."""
        if self.net.head is None:
            return None
        try:
            with torch.no_grad():
                again = self.net.read_out(self.states[-1].detach())
        except Exception:  # a head that takes more than a state, or works in another precision
            return None
        same = again.shape == self.logits.shape
        return same and torch.allclose(again, self.logits, rtol=1e-4, atol=1e-5, equal_nan=True)

    def rows(self, tensor: Tensor) -> Float[Tensor, "rows features"]:
        """One row per unit: a sample with tokens and maps flattened, or a token with its own label."""
        return tensor.detach().reshape(self.count, -1)


def _gradients(
    sources: list[Tensor], states: list[Tensor], arriving: list[Tensor]
) -> tuple[Tensor | None, ...]:
    """Of the states, None for one that is not used; a model that cannot be gone back through is named."""
    try:
        return torch.autograd.grad(sources, states, arriving, retain_graph=True, allow_unused=True)
    except Exception as error:  # a model's own backward pass may raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise BadInput(f"The model's backward pass failed: {type(error).__name__}: {reason}") from error


def feature_axis(h: Tensor, per_token: bool = False) -> int:
    """Where a state's features are: a map is [batch, channels, height, width], all else ends with them."""
    return 1 if h.dim() == 4 and not per_token else -1


def cut_layers(wiring: Wiring, depth: int) -> list[int]:
    return {"probe": sorted({0, depth}), "chain": [depth], "cut": list(range(depth + 1))}[wiring]


def stable_error(
    logits: Float[Tensor, "*rows classes"], labels: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows classes"]:
    """softmax − onehot without cancellation: `e_y = −exp(lse_{c≠y} − lse)`, never `p_y − 1`.

    The naive form loses a fitted sample's whole error to rounding once 1 − p_y nears float32's eps.
    """
    index = labels.unsqueeze(-1)
    others = logits.scatter(-1, index, float("-inf")).logsumexp(-1, keepdim=True)
    own = -(others - logits.logsumexp(-1, keepdim=True)).exp()
    return logits.softmax(-1).scatter(-1, index, own)
