"""Direct feedback alignment: the output error reaches every block through its own random matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from walkback.core.errors import NotApplicable
from walkback.core.spec import Value
from walkback.nets.adapter import Adapter
from walkback.nets.trace import Trace
from walkback.rules.base import Rule
from walkback.rules.broadcast import feature_width, to_features, to_state
from walkback.rules.patching import Layer, Sender, has_parameters_below, layers_in_blocks


class DFA(Rule):
    """`a_l = B_lᵀ e` with `B_l` of shape [classes, width], N(0, 1)/√classes.

    `form=block`: the credit arrives at a block's output and takes the exact chain inside the block.
    `form=layer`: every Linear inside the block, too, passes down a projection of e in place of what it
    received, so that each activation has a matrix of its own (Nøkland's form).
    `skip=cut`: no block sees another's credit. `skip=sum`: the skip connection carries the credit of the
    block above down to the one below, `a_l = B_lᵀ e + a_{l+1}`.
    Tokens with one label per sample, and all positions of a map, receive the same credit (broadcast).
    """

    name = "dfa"
    citation = "Nøkland 2016, arXiv:1609.01596"
    about = "e broadcast to every block by a fixed random matrix"
    ours = "the literature does not name its variants; form=block, skip=cut is the FA paper's"
    wiring = "cut"
    has_feedback = True
    reads_states = False
    defaults = {"form": "block", "skip": "cut"}  # noqa: RUF012
    choices = {"form": ("block", "layer"), "skip": ("cut", "sum")}  # noqa: RUF012

    def __init__(self, **params: Value) -> None:
        super().__init__(**params)
        self._seen: set[str] = set()  # paths of Linears whose place in a block is known
        self._lowest: set[str] = set()  # the feedback of those that are the lowest

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        shapes = {tuple(h.shape) for h in trace.states}
        if self.params["skip"] == "sum" and len(shapes) > 1:
            raise NotApplicable(
                f"{self.name}(skip=sum) needs states of one shape, and this net has {len(shapes)}.",
                "A skip that changes the shape cannot carry a credit down unchanged: use skip=cut.",
            )
        for layer, h in enumerate(trace.states):
            width = feature_width(h, trace, self.name)
            self._draw(f"feedback_{layer}", width, h, trace, generator)
        if self.params["form"] == "layer":
            for path, linear in self._linears(trace.net).items():
                self._draw(_key(path), linear.weight.shape[1], linear.weight, trace, generator)

    def _draw(self, key: str, width: int, like: Tensor, trace: Trace, generator: torch.Generator) -> None:
        classes = trace.logits.shape[-1]
        drawn = torch.randn(classes, width, generator=generator, dtype=torch.float64)
        self.register_buffer(key, (drawn / classes**0.5).to(like))

    def credits(self, trace: Trace) -> list[Tensor]:
        credits = [self._credit(layer, trace) for layer in range(trace.depth + 1)]
        if self.params["skip"] == "sum":
            for layer in range(trace.depth - 1, -1, -1):
                credits[layer] = credits[layer] + credits[layer + 1]
        return credits

    def _credit(self, layer: int, trace: Trace) -> Tensor:
        feedback = self.get_buffer(f"feedback_{layer}")
        return to_state(trace.error.to(feedback) @ feedback, trace.states[layer])

    def training_credits(self, trace: Trace) -> list[Tensor]:
        self._note_error(trace)
        return self.credits(trace)

    def training_credits_upwards(self, trace: Trace) -> Iterator[Tensor]:
        if self.params["skip"] == "sum":
            return iter(self.training_credits(trace))
        self._note_error(trace)
        return (self._credit(layer, trace) for layer in range(trace.depth + 1))

    def _note_error(self, trace: Trace) -> None:
        if self.params["form"] == "layer":
            self._error_of_step = trace.error / trace.count

    def senders(self, net: Adapter) -> Mapping[str, Sender]:
        """In layer form each Linear of the blocks sends down its own projection of the step's error."""
        if self.params["form"] == "block":
            return {}

        def sender(path: str, linear: Layer) -> Sender:
            feedback = self.get_buffer(_key(path)).to(linear.weight)

            def send(delta: Tensor, x: Tensor) -> Tensor:
                if x.requires_grad and path not in self._seen:
                    self._seen.add(path)
                    if not has_parameters_below(x):
                        self._lowest.add(_key(path))
                return to_features(self._error_of_step.to(feedback) @ feedback, x)

            return send

        return {path: sender(path, linear) for path, linear in self._linears(net).items()}

    def idle_feedback(self) -> set[str]:
        """Of Linears with nothing below them in their block: what they send arrives nowhere."""
        return set(self._lowest)

    def _linears(self, net: Adapter) -> dict[str, Layer]:
        return layers_in_blocks(net, "dfa(form=layer)", (nn.Linear,))


def _key(path: str) -> str:
    return "direct_" + path.replace(".", "_")
