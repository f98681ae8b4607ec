"""A training step by equilibrium propagation against exactly its own matrix products, run alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import compare
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from walkback.nets.ep_kernel import EPKernel, HopfieldKernel, LoopedKernel
from walkback.nets.hopfield import HopfieldMLP
from walkback.nets.looped import LoopedMLP

BATCH, FEATURES, WIDTH, CLASSES = 128, 784, 256, 10
FREE, NUDGED = 30, 10
torch.set_num_threads(1)


def main() -> None:
    sizes = {"features": FEATURES, "classes": CLASSES, "width": WIDTH, "steps": FREE}
    kernels = {
        "looped 784-256-10": (LoopedKernel, LoopedMLP(**sizes), 1.8),
        "hopfield 784-256-256-10": (HopfieldKernel, HopfieldMLP(**sizes, depth=2), 1.8),
        "hopfield 784-256-10": (HopfieldKernel, HopfieldMLP(**sizes), 1.8),
    }
    for name, (kind, net, goal) in kernels.items():
        step = training_step(kind(net, nudged=NUDGED), net)
        compare(
            f"EP step / its GEMMs, {name}, {FREE} free + {NUDGED} nudged (±β)",
            step,
            gemms_of(step),
            goal=goal,
            peer_name="torch.mm with out=",
        )


def training_step(kernel: EPKernel, net: nn.Module) -> Callable[[], None]:
    x, y = torch.randn(BATCH, FEATURES), torch.randint(CLASSES, (BATCH,))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        kernel.deposit_gradients(x, y)
        optimizer.step()

    return run


def gemms_of(task: Callable[[], object]) -> Callable[[], None]:
    """Every matrix product that a task was seen to make, on the same memory, into one buffer per shape."""
    with Recorder() as recorder:
        task()
    outs = {(len(a), b.shape[1]): torch.empty(len(a), b.shape[1]) for a, b in recorder.products}

    def run() -> None:
        for a, b in recorder.products:
            torch.mm(a, b, out=outs[len(a), b.shape[1]])

    return run


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.mm:
            self.products.append((args[0].detach(), args[1].detach()))
        elif func.overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.products.append((args[1].detach(), args[2].detach()))
        return func(*args, **(kwargs or {}))


if __name__ == "__main__":
    main()
