"""A full audit (20 nudging directions, 32 perturbations, 20 null draws) against forward and backward."""

import torch
from harness import compare
from setting import batch, plain_pass, ready, resmlp

from walkback.measure.full import measure_full


def full():
    (adapter, rule), (x, y) = ready("dfa", resmlp()), batch(128)

    def run():
        with adapter.evaluating():
            trace = adapter.probe(x, y)
            measure_full(trace, rule, 0, torch.Generator().manual_seed(0), draws=20)

    return run


if __name__ == "__main__":
    peer = "forward + backward, N=128"
    compare("full audit / forward+backward", full(), plain_pass(128), goal=60, peer_name=peer, rounds=8)
