"""Light and full audits of one checkpoint against one forward and backward pass on the same batch."""

import torch
from harness import compare
from setting import batch, net
from torch.nn.functional import cross_entropy

from walkback.measure import measure_light
from walkback.measure.full import measure_full
from walkback.rules import make_rule


def pass_over(size):
    adapter, (x, y) = net(), batch(size)

    def run():
        adapter.model.zero_grad(set_to_none=True)
        cross_entropy(adapter.model(x), y).backward()

    return run


def audit(size, *, float64):
    adapter, (x, y), rule = net(), batch(size), make_rule("dfa")
    rule.setup(adapter.probe(x[:2], y[:2]), torch.Generator())

    def run():
        with adapter.evaluating():
            trace = adapter.probe(x, y)
            measure_light(trace, rule.credits(trace), 0, float64=float64)

    return run


def full():
    adapter, (x, y), rule = net(), batch(128), make_rule("dfa")
    rule.setup(adapter.probe(x[:2], y[:2]), torch.Generator())

    def run():
        with adapter.evaluating():
            trace = adapter.probe(x, y)
            measure_full(trace, rule, 0, torch.Generator().manual_seed(0), draws=20)

    return run


if __name__ == "__main__":
    peer = "forward + backward, N=512"
    compare(
        "light audit / forward+backward",
        audit(512, float64=False),
        pass_over(512),
        goal=1.0,
        peer_name=peer,
    )
    compare("light audit with float64", audit(512, float64=True), pass_over(512), goal=2.5, peer_name=peer)
    compare(
        "full audit / forward+backward",
        full(),
        pass_over(128),
        goal=60,
        peer_name="forward + backward, N=128",
        rounds=8,
    )
