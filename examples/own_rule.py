"""A learning rule of one's own, checked and audited: one short file, nothing registered but its name."""

import tempfile

import torch

from walkback import Rule, check_rule
from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.judge.assemble import judge_bundles
from walkback.nets.resmlp import ResMLP
from walkback.rules import rules
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.store import Store


@rules.register("binary-dfa")
class BinaryDFA(Rule):
    """`a_l = S_lᵀ e` with entries ±1: DFA with a matrix that a single bit per synapse can hold."""

    name = "binary-dfa"
    citation = "an example"
    about = "the error sent to every block by a fixed matrix of signs"
    wiring = "cut"
    has_feedback = True

    def setup(self, trace, generator):
        for layer, h in enumerate(trace.states):
            shape = trace.logits.shape[-1], h.shape[-1]
            signs = torch.randint(2, shape, generator=generator) * 2 - 1
            self.register_buffer(f"signs_{layer}", signs.to(h) / shape[0] ** 0.5)

    def credits(self, trace):
        signs = (self.get_buffer(f"signs_{layer}") for layer in range(trace.depth + 1))
        return [trace.error.to(matrix) @ matrix for matrix in signs]


def main():
    for check in check_rule("binary-dfa", ResMLP(12, 5, depth=3, width=16)):
        print(f"{check.status}: {check.sentence}")
    digits = load_dataset(Call("digits"))
    specs = plan_runs(
        net="resmlp(width=32,depth=3,expansion=2)",
        rules=["binary-dfa", "frozen"],
        seeds=[42, 123, 456],
        data="digits",
        dataset=digits,
        epochs=5,
    )
    with tempfile.TemporaryDirectory() as store:
        for judged in judge_bundles([run_one(spec, digits, Store(store)) for spec in specs]):
            print(judged.verdict)


if __name__ == "__main__":
    main()
