"""The light tier measured in a training step, from what the step computes anyway, against the step."""

import torch
from harness import compare
from setting import BATCH, batch, ready, resmlp

from walkback.measure import measure_light
from walkback.train.kernel import Kernel


def step(*, measured):
    (adapter, rule), (x, y) = ready("bp", resmlp()), batch(BATCH)
    kernel = Kernel(adapter, rule, watch=measured)
    optimizer = torch.optim.AdamW(adapter.model.parameters(), lr=1e-3, fused=True)

    def run():
        trace = kernel.deposit_gradients(x, y)
        if measured:
            trace.reference = [trace.arrived[layer] for layer in range(trace.depth + 1)]
            measure_light(trace, trace.reference, 0, float64=False)
        optimizer.step()

    return run


if __name__ == "__main__":
    row = {"goal": 1.1, "peer_name": "the same step, unmeasured"}
    compare("backprop step with light tier / without", step(measured=True), step(measured=False), **row)
