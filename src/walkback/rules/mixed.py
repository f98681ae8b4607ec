"""Stem and blocks by two rules: the fourth cell of D3's stem × blocks table."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from walkback.core.errors import NotApplicable
from walkback.core.spec import Value
from walkback.nets.trace import Trace
from walkback.nets.wrappers import statistics_kept
from walkback.rules.base import Modifier, Rule, with_labels


class Mixed(Modifier):
    """`mixed(stem=bp,blocks=dfa)`: the blocks learn by one rule, the stem by the credit of another."""

    name = "mixed"
    citation = "stem × blocks factorial, walkback"
    about = "the stem by one rule, the blocks by another"
    ours = "a control that tells a good stem from good blocks"
    defaults = {"blocks": "dfa", "stem": "bp"}  # noqa: RUF012

    def __init__(self, inner: Rule, stem_rule: Rule, **params: Value) -> None:
        super().__init__(inner, **params)
        self.stem_rule = stem_rule
        # A chain is cut below its first block, so that the stem can be given a credit of its own.
        self.wiring = "cut" if inner.wiring == "cut" else "probe"
        self.has_feedback = inner.has_feedback or stem_rule.has_feedback

    @property
    def ready(self) -> bool:
        return self.inner.ready and self.stem_rule.ready

    @classmethod
    def normalise(cls, params: Mapping[str, Value]) -> Mapping[str, Value]:
        return with_labels(params, ("blocks", "stem"))

    @classmethod
    def build(cls, **params: Value) -> Rule:
        from walkback.rules import make_rule

        blocks, stem = make_rule(str(params["blocks"])), make_rule(str(params["stem"]))
        if stem.learns_feedback:
            raise NotApplicable(
                f"{cls.name} cannot train a stem by {stem.name}, which learns its feedback as it goes.",
                "Such a rule can train the blocks.",
            )
        return cls(blocks, stem, **params)

    def setup(self, trace: Trace, generator: torch.Generator) -> None:
        if _stem_passes_its_output(trace):
            raise NotApplicable(
                f"{self.name} cannot tell stem and blocks apart: the stem reaches them past h_0 as well.",
                "The blocks would train the stem too.",
            )
        self.inner.setup(trace, generator)
        self.stem_rule.setup(trace, generator)

    def draw_anew(self, trace: Trace, generator: torch.Generator) -> None:
        self.inner.draw_anew(trace, generator)
        self.stem_rule.draw_anew(trace, generator)

    def idle_feedback(self) -> set[str]:
        """The blocks' rule gives the stem no credit, and the stem's rule gives the blocks none.

        What belongs to h_0 ends in `_0`, in walkback's rules and in those of others.
        """
        blocks = {name for name, _ in self.inner.named_buffers() if name.endswith("_0")}
        stem = {name for name, _ in self.stem_rule.named_buffers() if not name.endswith("_0")}
        idle = {f"inner.{name}" for name in blocks} | {f"stem_rule.{name}" for name in stem}
        return idle | super().idle_feedback()

    def credits(self, trace: Trace) -> list[Tensor]:
        return [self.stem_rule.credits(trace)[0], *self.inner.credits(trace)[1:]]

    def begin_step(self, progress: float) -> None:
        self.inner.begin_step(progress)
        self.stem_rule.begin_step(progress)

    def readings(self) -> Mapping[str, float]:
        return {**self.stem_rule.readings(), **self.inner.readings()}

    def training_credits(self, trace: Trace) -> list[Tensor]:
        chained = self.stem_rule.wiring == "chain"  # whose training credits end at the last state
        give = self.stem_rule.credits if chained else self.stem_rule.training_credits
        with statistics_kept(trace.net.model):
            own = trace.net.trace(trace.inputs, trace.labels, "probe" if chained else self.stem_rule.wiring)
            stem = give(own)[0]
        rest = self.inner.training_credits(trace)
        return [stem, *(rest[1:] if self.wiring == "cut" else rest)]


def _stem_passes_its_output(trace: Trace) -> bool:
    """Whether a weight outside blocks and head still moves h_L where h_0 is held, as a probe does."""
    net = trace.net
    parts = [*net.blocks, *(part for part in (net.out_ln, net.head) if part is not None)]
    elsewhere = {id(p) for part in parts for p in part.parameters()}
    stem = [p for p in net.model.parameters() if p.requires_grad and id(p) not in elsewhere]
    if not stem:
        return False
    top = trace.outputs[-1]
    found = torch.autograd.grad(top, stem, torch.ones_like(top), retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in found)
