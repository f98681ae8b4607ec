"""What a learning rule is: a way to give every state a credit, used for training and diagnosis alike."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor, nn

from walkback.core.errors import BadInput, NotApplicable
from walkback.core.spec import Call, Value
from walkback.core.streams import stream_seed
from walkback.nets.adapter import Adapter
from walkback.nets.batch import Batch
from walkback.nets.trace import Trace, Wiring
from walkback.rules.patching import Sender, patched


class Rule(nn.Module, ABC):
    """Assigns a credit a_l to each state h_l, in descent convention: learning moves h_l along −a_l.

    Credits are per row and sum-reduced, like the reference g_l they are compared with. Feedback
    matrices and anything else the rule learns are buffers, so they are saved with each checkpoint.
    `wiring` says how the training pass is cut: with `cut` every block receives its own credit, with
    `chain` the credit given at the last state travels down through the blocks.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    about: ClassVar[str]
    ours: ClassVar[str] = ""
    role: ClassVar[str] = "rule"
    wiring: Wiring
    has_feedback: bool = False
    learns_feedback: bool = False
    exact: ClassVar[bool] = False  # claims to give backprop's gradient
    unbiased: ClassVar[bool] = False  # claims to estimate it
    backprop_by_design: bool = False  # its credit is made from backprop's, or settles to it
    reads_states: bool = True  # False where training credits need the shapes of states alone
    defaults: ClassVar[dict[str, Value]] = {}
    choices: ClassVar[dict[str, tuple[Value, ...]]] = {}

    call: Call | None = None  # as it was written, where it was made from its name

    def __init__(self, **params: Value) -> None:
        super().__init__()
        self.params = params

    @classmethod
    def normalise(cls, params: Mapping[str, Value]) -> Mapping[str, Value]:
        """Parameters in the one way they are written, for those that can be written in several."""
        return params

    @classmethod
    def build(cls, **params: Value) -> Rule:
        """The rule for these parameters; a rule with several forms may answer with a class of its own."""
        return cls(**params)

    @classmethod
    def check_choices(cls, call: Call) -> None:
        for key, allowed in cls.choices.items():
            if call.params[key] not in allowed:
                shown = ", ".join(map(str, allowed))
                raise BadInput(f"rule {cls.name!r} has no {key}={call.params[key]}.", f"Choose: {shown}.")

    @property
    def ready(self) -> bool:
        """Whether the rule has all it needs to give credits; without its feedback it has not."""
        return not self.has_feedback or any(True for _ in (*self.buffers(), *self.parameters()))

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        """Draw the rule's feedback for the shapes seen in a probe trace."""

    def draw_anew(self, trace: Trace, generator: torch.Generator) -> None:
        """Other feedback in place of the rule's own: what its cosine is held against."""
        self.setup(trace, generator)

    @abstractmethod
    def credits(self, trace: Trace) -> list[Tensor]:
        """[a_0 … a_L] for a probe trace."""

    def training_credits(self, trace: Trace) -> list[Tensor]:
        """The credits at the layers where a training pass is cut."""
        return self.credits(trace)

    def readings(self) -> Mapping[str, float]:
        """What the rule itself measured while it gave the last credits, by quantity id."""
        return {}

    def senders(self, net: Adapter) -> Mapping[str, Sender]:
        """What each Linear of the blocks sends down in place of its exact credit, by path.

        Empty by default: inside a block the chain is exact.
        """
        return {}

    def inside(self, net: Adapter) -> AbstractContextManager[None]:
        """Within this context a block's own backward pass is the rule's."""
        senders = self.senders(net)
        return patched(net, senders, self.name) if senders else contextlib.nullcontext()

    def training_credits_upwards(self, trace: Trace) -> Iterator[Tensor]:
        """The training credits, lowest first and one at a time: a rule that can, holds no other."""
        return iter(self.training_credits(trace))

    def branch_weight(self, trace: Trace) -> float:
        """w, where training also minimises `½ w Σ_l ‖h_l − h_{l−1}‖²`: a cost on what the blocks add."""
        return 0.0

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        """The parameters this rule trains: those that the model does not fix, and its own if it has any."""
        return dict(net.trainable)

    def begin_step(self, progress: float) -> None:
        """Told before each step which share of training is over."""

    def learn(self, trace: Trace) -> None:
        """What the rule itself learns in a step, after the gradients and before the weights move."""

    def idle_feedback(self) -> set[str]:
        """Feedback that this rule holds and, by what it says it is, does not use."""
        return set()

    def local_trace(self, trace: Trace) -> Trace:
        """The pass on whose activations the blocks learn; the training pass itself by default."""
        return trace

    def deposit_gradients(self, net: Adapter, x: Batch, y: Tensor) -> Trace:
        """One training pass: batch-mean gradients into `.grad`, and the trace they came from.

        Head and terminal norm always learn from the exact cross-entropy gradient.
        """
        with self.inside(net):
            trace = net.trace(x, y, self.wiring)
        arriving = (trace.error, *self.training_credits(trace))
        local = self.local_trace(trace)
        sources = [trace.logits, *(local.outputs[layer] for layer in local.cuts)]
        pairs: list[tuple[Tensor, Tensor | None]] = [
            (source, _share_of(gradient, source, trace.count))
            for source, gradient in zip(sources, arriving, strict=True)
        ]
        weight, sends = self.branch_weight(trace), bool(self.senders(net))
        if weight and not sends:
            both = zip(trace.outputs[1:], trace.states[:-1], strict=True)
            added = torch.stack([(above - below).square().sum() for above, below in both])
            pairs.append((0.5 * weight * added.sum(), None))
        # What depends on no trained parameter has nothing to receive, as the stem of a shallow net.
        pairs = [(source, gradient) for source, gradient in pairs if source.requires_grad]
        # Named, for a cut state is a leaf too, and its gradient costs a convolution that nobody reads.
        learning = [p for p in (*net.model.parameters(), *self.parameters()) if p.requires_grad]
        if learning:
            gradients = [gradient for _, gradient in pairs]
            torch.autograd.backward([source for source, _ in pairs], gradients, inputs=learning)
        if weight and sends:
            _pay_for_branches(trace, weight)
        return trace


def _share_of(gradient: Tensor, source: Tensor, count: int) -> Tensor:
    """A row's share of the batch mean, in memory as the source is: a map of mixed order is slow to read."""
    return torch.div(gradient.detach(), count, out=torch.empty_like(source))


def _pay_for_branches(trace: Trace, weight: float) -> None:
    """The branch cost of each block on a pass of its own: feedback is for credit, and a cost is none."""
    for layer, below in enumerate(trace.states[:-1], start=1):
        with torch.enable_grad():
            cost = 0.5 * weight * trace.branch(layer, below.detach()).square().sum()
        if cost.requires_grad:
            cost.backward()


@contextlib.contextmanager
def repeatable(name: str) -> Iterator[None]:
    """Draws within are the same every time: a rule that draws can be measured twice alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(0, name, "diagnosis"))
        yield


class ChainRule(Rule):
    """A rule whose credit enters at the last state and is transported down block by block."""

    wiring = "chain"

    @abstractmethod
    def top_credit(self, trace: Trace) -> Tensor:
        """a_L."""

    def check_contiguous(self, trace: Trace) -> None:
        if not trace.contiguous:
            raise NotApplicable(
                f"{self.name} cannot be transported: something lies between the blocks of this model.",
                "Each block must receive exactly what the one before it returned.",
            )

    def training_credits(self, trace: Trace) -> list[Tensor]:
        return [self.top_credit(trace)]

    def credits(self, trace: Trace) -> list[Tensor]:
        """The same transport as in training, block by block on the trace's own states."""
        self.check_contiguous(trace)
        credits = [self.top_credit(trace)]
        with torch.enable_grad(), self.inside(trace.net):
            for layer in range(trace.depth, 0, -1):
                below = trace.states[layer - 1].detach().requires_grad_()
                (credit,) = torch.autograd.grad(trace.block(layer, below), below, credits[0])
                credits.insert(0, credit)
        return credits


def feedback_stream(seed: int) -> torch.Generator:
    """What the feedback of a run of this seed is drawn from."""
    return torch.Generator().manual_seed(stream_seed(seed, "feedback"))


class Modifier(Rule):
    """A rule made from another one: it does what the inner rule does, except where it says otherwise.

    `on_backprop` says whether backprop can have the same addition, which is then its control.
    """

    on_backprop = True

    def __init__(self, inner: Rule, **params: Value) -> None:
        super().__init__(**params)
        if not isinstance(inner, Modifier) and type(inner).deposit_gradients is not Rule.deposit_gradients:
            raise NotApplicable(
                f"{inner.name} has a training pass of its own, which {self.name} would leave out."
            )
        self.inner = inner
        self.wiring, self.has_feedback = inner.wiring, inner.has_feedback
        self.learns_feedback, self.reads_states = inner.learns_feedback, inner.reads_states
        self.backprop_by_design = inner.exact or inner.backprop_by_design

    @property
    def ready(self) -> bool:
        return self.inner.ready

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        self.inner.setup(trace, generator)

    def draw_anew(self, trace: Trace, generator: torch.Generator) -> None:
        if type(self).setup is Modifier.setup:
            self.inner.draw_anew(trace, generator)
        else:  # it draws something of its own
            self.setup(trace, generator)

    def credits(self, trace: Trace) -> list[Tensor]:
        return self.inner.credits(trace)

    def training_credits(self, trace: Trace) -> list[Tensor]:
        return self.inner.training_credits(trace)

    def readings(self) -> Mapping[str, float]:
        return self.inner.readings()

    def senders(self, net: Adapter) -> Mapping[str, Sender]:
        return self.inner.senders(net)

    def inside(self, net: Adapter) -> AbstractContextManager[None]:
        return self.inner.inside(net)

    def idle_feedback(self) -> set[str]:
        return {f"inner.{name}" for name in self.inner.idle_feedback()}

    def training_credits_upwards(self, trace: Trace) -> Iterator[Tensor]:
        if type(self).training_credits is Modifier.training_credits:
            return self.inner.training_credits_upwards(trace)
        return super().training_credits_upwards(trace)

    def branch_weight(self, trace: Trace) -> float:
        return self.inner.branch_weight(trace)

    def trained(self, net: Adapter) -> dict[str, nn.Parameter]:
        return self.inner.trained(net)

    def begin_step(self, progress: float) -> None:
        self.inner.begin_step(progress)

    def learn(self, trace: Trace) -> None:
        self.inner.learn(trace)

    def local_trace(self, trace: Trace) -> Trace:
        return self.inner.local_trace(trace)


def draw_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Matrices uniform in ±1/√fan_in from the rule's own stream, biases zero: the same in every process."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            drawn = torch.rand(part.weight.shape, generator=generator, dtype=torch.float64)
            part.weight.data = ((2 * drawn - 1) * part.in_features**-0.5).to(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def with_labels(params: Mapping[str, Value], keys: Sequence[str]) -> dict[str, Value]:
    """Rules that are parameters, each by its short label: `dfa` and `dfa(form=block)` are one."""
    from walkback.rules import describe_rule, resolve_rule

    labels = {key: describe_rule(resolve_rule(str(params[key])))["label"] for key in keys}
    return {**params, **labels}


def check_credits(credits: Sequence[Tensor], trace: Trace) -> list[Tensor]:
    """One credit for each state, of its shape."""
    given = list(credits)
    if len(given) != trace.depth + 1:
        raise BadInput(
            f"{len(given)} credits for {trace.depth + 1} states.",
            "Give one for h_0 (stem output) and one for each block's output.",
        )
    for layer, (a, h) in enumerate(zip(given, trace.states, strict=True)):
        if a.shape != h.shape:
            raise BadInput(
                f"The credit of layer {layer} has shape {tuple(a.shape)}, its state {tuple(h.shape)}."
            )
    return given
