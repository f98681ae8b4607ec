"""A training step of every rule, with what it learns itself, against walkback's own backprop step.

Rules without a goal are slower for a reason that their documentation states: they settle, decode, predict,
make extra passes, or are calibrations.
"""

import torch
from harness import compare
from setting import BATCH, batch, ready, resmlp

from walkback.rules import rules
from walkback.train.kernel import depositor

FREE = ("ep", "dtp", "state-bridge", "credit-bridge", "node-perturbation", "forward-gradient")
FREE += ("pepita", "dose", "mixed")


def whole_step(name):
    adapter, rule = ready(name, resmlp())
    x, y = batch()
    trained = rule.trained(adapter)
    for key, parameter in adapter.model.named_parameters():
        parameter.requires_grad_(key in trained)
    deposit = depositor(adapter, rule, BATCH)
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, fused=True)

    def run():
        rule.begin_step(0.5)
        rule.learn(deposit(x, y))
        optimizer.step()

    return run


if __name__ == "__main__":
    bp = whole_step("bp")
    for name in rules:
        if name != "bp":
            goal = None if name in FREE else 1.3
            compare(
                f"step of {name} / bp", whole_step(name), bp, goal=goal, peer_name="walkback bp", rounds=15
            )
