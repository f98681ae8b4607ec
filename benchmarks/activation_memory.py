"""Memory of a training pass at depth 64 over that at depth 4: of a lean pass, and of plain autograd.

Measured: the most that tensors hold at once, with weights, gradients and feedback left out.
"""

from harness import report
from setting import CLASSES, FEATURES, batch, ready
from torch import empty_like
from torch.nn.functional import cross_entropy

from walkback.nets.resmlp import ResMLP
from walkback.tracks.allocations import Allocations
from walkback.train.kernel import Kernel

DEPTHS = (4, 16, 64)


def by_hand(depth, *, lean):
    adapter, rule = ready("dfa", ResMLP(FEATURES, CLASSES, depth))
    kernel = Kernel(adapter, rule, lean=lean)
    return peak_of(adapter.model, lambda x, y: kernel.deposit_gradients(x, y))


def by_autograd(depth):
    model = ResMLP(FEATURES, CLASSES, depth)
    return peak_of(model, lambda x, y: cross_entropy(model(x), y).backward())


def peak_of(model, task):
    x, y = batch()
    for parameter in model.parameters():
        parameter.grad = empty_like(parameter)
    with Allocations() as seen:
        task(x, y)
    return seen.peak_bytes


if __name__ == "__main__":
    lean, kept, auto = (
        [measure(depth) / 1e6 for depth in DEPTHS]
        for measure in (lambda d: by_hand(d, lean=True), lambda d: by_hand(d, lean=False), by_autograd)
    )
    shown = "; ".join(
        f"{name} {', '.join(f'{mb:.1f}' for mb in found)} MB"
        for name, found in (("lean", lean), ("kept", kept), ("autograd", auto))
    )
    name = "activation memory of block-local dfa, lean: depth 64 / depth 4"
    report(name, lean[2] / lean[0], goal=1.0, peer=f"itself; at depth 4, 16, 64: {shown}")
