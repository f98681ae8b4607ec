"""Training steps without autograd for the MLP family: the same gradients as a rule's own pass, sooner.

The rule is asked for the same things as in its autograd pass (credits where the graph would be cut, what
each Linear sends down, the weight of a branch cost), so there is one definition of every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from walkback.nets.adapter import Adapter
from walkback.nets.by_hand import Workspace, grad_of, hand_parts, norm_backward
from walkback.nets.trace import Trace
from walkback.rules.base import Modifier, Rule

Deposit = Callable[[Tensor, Tensor], Trace]
KEPT_BYTES = 2**29  # beyond this, rules that give every block its own credit compute activations twice


def depositor(net: Adapter, rule: Rule, items: int) -> Deposit:
    """How to make gradients for batches of up to `items` rows: by hand where that is possible."""
    if fits(net, rule):
        return Kernel(net, rule, lean=activation_bytes(net, items) > KEPT_BYTES).deposit_gradients

    def by_autograd(x: Tensor, y: Tensor) -> Trace:
        for parameter in net.model.parameters():
            parameter.grad = None
        return rule.deposit_gradients(net, x, y)

    return by_autograd


def fits(net: Adapter, rule: Rule) -> bool:
    """Whether the hand-written pass computes what the model and the rule say."""
    return hand_parts(net) is not None and _plain(rule) and not (_pays(rule) and rule.senders(net))


def _plain(rule: Rule) -> bool:
    """Whether a rule leaves the training pass as it is; one that brings its own keeps it."""
    own = ("deposit_gradients", "inside", "local_trace")
    usual = [(getattr(Rule, name), getattr(Modifier, name)) for name in own]
    if any(getattr(type(rule), name) not in same for name, same in zip(own, usual, strict=True)):
        return False
    return _plain(rule.inner) if isinstance(rule, Modifier) else True


def _pays(rule: Rule) -> bool:
    """Whether a rule has a branch cost, which a pass with senders cannot carry."""
    if type(rule).branch_weight not in (Rule.branch_weight, Modifier.branch_weight):
        return True
    return _pays(rule.inner) if isinstance(rule, Modifier) else False


def activation_bytes(net: Adapter, items: int) -> int:
    """What all blocks keep for their backward pass: states, normed states, two of each inner layer."""
    per_row = sum(
        2 * module.in_features + 2 * module.out_features
        for block in net.blocks
        for module in block.modules()
        if isinstance(module, nn.Linear)
    )
    return items * per_row * (8 if net.dtype == torch.float64 else 4)


@dataclass
class HandTrace(Trace):
    """A trace whose last reference was computed by hand; it has no graph.

    `arrived[l]` is the credit that came to layer l in a watched training pass, sum-reduced.
    """

    top: Tensor | None = None
    arrived: dict[int, Tensor] = field(default_factory=dict)

    def top_reference(self) -> Tensor:
        assert self.top is not None
        return self.top

    def block(self, layer: int, h: Tensor) -> Tensor:
        return self.net.blocks[layer - 1](h)


@dataclass
class Kernel:
    """One net and one rule. `lean` keeps the activations of one block only, and computes them twice.

    Twice, because the output error, from which every credit is made, is known only after the last block.
    The numbers are the same to the bit; a chain of credits needs all states, and is never lean. `watch`
    notes the credit that arrives at each layer in the trace: for backprop, the reference itself.
    """

    net: Adapter
    rule: Rule
    lean: bool = False
    watch: bool = False

    def __post_init__(self) -> None:
        parts = hand_parts(self.net, self.rule.senders(self.net))
        assert parts is not None, "this model has no hand-written pass"
        self.parts = parts
        self.lean = self.lean and self.rule.wiring == "cut" and not self.rule.reads_states
        turns = (Workspace(), Workspace())  # a lean pass keeps one part's memory and its input's
        self.spaces = [turns[i % 2] if self.lean else Workspace() for i in range(len(self.parts))]
        self.norm = self.net.out_ln if isinstance(self.net.out_ln, nn.LayerNorm) else None
        assert isinstance(self.net.head, nn.Linear)
        self.head = self.net.head

    @property
    def buffer_bytes(self) -> int:
        """Memory held for activations and credits between steps, the parts' shared scratch included."""
        held = {id(space): space for space in (*self.spaces, self.parts[0].scratch)}
        return sum(space.bytes for space in held.values())

    @torch.no_grad()
    def deposit_gradients(self, x: Tensor, y: Tensor) -> Trace:
        """Batch-mean gradients into `.grad` of everything trained, and the trace they came from."""
        flat = x.flatten(1)
        states = self._forward(flat)
        trace = self._read_out(x, y, states)
        weight = self.rule.branch_weight(trace)
        with torch.enable_grad():
            ask = self.rule.training_credits_upwards if self.lean else self.rule.training_credits
            arriving = (a.detach() / trace.count for a in ask(trace))
        if self.lean:
            self._backward_again(flat, arriving, weight)
            return trace
        credits = dict(zip(trace.cuts, arriving, strict=True))
        arrived = self._backward(flat, states, credits, weight)
        if self.watch:
            trace.arrived = {layer: delta * trace.count for layer, delta in arrived.items()}
        return trace

    def _forward(self, x: Tensor) -> list[Tensor]:
        """Every state; in a lean pass the tensors share memory, and only their shapes can be used."""
        states, h = [], x
        for part, space in zip(self.parts, self.spaces, strict=True):
            h = part.forward(h, space)
            states.append(h)
        return [h] * len(states) if self.lean else states

    def _read_out(self, x: Tensor, y: Tensor, states: list[Tensor]) -> HandTrace:
        """Logits, error, the gradients of head and terminal norm, and the reference at the last state."""
        top, head, norm = states[-1], self.head, self.norm
        if norm is None:
            read = top
        else:
            read, *moments = torch.native_layer_norm(top, [top.shape[1]], norm.weight, norm.bias, norm.eps)
        logits = torch.addmm(head.bias, read, head.weight.T)
        trace = HandTrace(self.net, states, states, logits, y, self.rule.wiring, inputs=x, top=None)
        share = 1 / trace.count
        if head.weight.requires_grad:
            out = grad_of(head.weight)
            torch.addmm(out, trace.error.T, read, beta=0, alpha=share, out=out)
        if head.bias.requires_grad:
            torch.mul(trace.error.sum(0), share, out=grad_of(head.bias))
        below: Tensor | None = trace.error @ head.weight
        if norm is not None:
            wanted = [True, norm.weight.requires_grad, norm.bias.requires_grad]
            below = norm_backward(
                trace.error @ head.weight,
                top,
                (moments[0], moments[1]),
                norm.weight,
                norm.bias,
                wanted,
                share,
            )
        trace.top = below
        return trace

    def _backward(
        self, x: Tensor, states: list[Tensor], credits: dict[int, Tensor], weight: float
    ) -> dict[int, Tensor]:
        """From the last block down to the lowest part that learns; credits replace what arrives.

        What arrived at each layer, where a part keeps it apart.
        """
        arrived: dict[int, Tensor] = {}
        trained = [index for index, part in enumerate(self.parts) if part.trained]
        lowest = min(trained, default=len(self.parts))
        delta: Tensor | None = None
        for index in range(len(self.parts) - 1, lowest - 1, -1):
            delta = credits.get(index, delta)
            assert delta is not None
            arrived[index] = delta
            down = index > lowest and index - 1 not in credits
            if self.parts[index].trained or down:
                below = x if index == 0 else states[index - 1]
                delta = self._through(index, below, states[index], delta, weight, down)
        return arrived

    def _backward_again(self, x: Tensor, credits: Iterator[Tensor], weight: float) -> None:
        """Upwards: each block once more, and its gradients at once, so that its memory is free again."""
        h = x
        for index, (part, space, credit) in enumerate(zip(self.parts, self.spaces, credits, strict=True)):
            above = part.forward(h, space)
            if part.trained:
                self._through(index, h, above, credit, weight, False)
            h = above

    def _through(
        self, index: int, below: Tensor, above: Tensor, delta: Tensor, weight: float, down: bool
    ) -> Tensor | None:
        """One part; a branch cost adds its own credit above, and takes it back below."""
        part, space = self.parts[index], self.spaces[index]
        if not weight or index == 0:
            return part.backward(below, delta, space, down=down)
        cost = weight * (above - below)
        found = part.backward(below, delta + cost, space, down=down)
        return None if found is None else found - cost
