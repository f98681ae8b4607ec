"""Memory for activations at depth 64 over that at depth 4: of a lean pass, and of plain autograd."""

from harness import report
from setting import CLASSES, FEATURES, batch, ready
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from walkback.nets.resmlp import ResMLP
from walkback.train.kernel import Kernel

DEPTHS = (4, 16, 64)


def by_hand(depth, *, lean):
    adapter, rule = ready("dfa", ResMLP(FEATURES, CLASSES, depth))
    kernel = Kernel(adapter, rule, lean=lean)
    kernel.deposit_gradients(*batch())
    return kernel.buffer_bytes


def by_autograd(depth):
    """What autograd saves for backward, weights left out."""
    model, saved = ResMLP(FEATURES, CLASSES, depth), {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    x, y = batch()
    with saved_tensors_hooks(note, lambda tensor: tensor):
        loss = cross_entropy(model(x), y)
    loss.backward()
    return sum(saved.values())


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
