"""Track 15: local rules run in memory that does not grow, with steps (EP) or with depth (DFA); measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.core.numerals import number
from walkback.nets import Adapter
from walkback.nets.ep_kernel import EPKernel, HopfieldKernel, LoopedKernel
from walkback.nets.hopfield import HopfieldMLP
from walkback.nets.looped import LoopedMLP
from walkback.nets.resmlp import ResMLP
from walkback.rules.dfa import DFA
from walkback.tracks.allocations import Allocations
from walkback.tracks.equilibrium import farthest, relative, worst
from walkback.tracks.lab import Lab
from walkback.tracks.track import Control, Decision, IdentityGate, Track
from walkback.train.kernel import Kernel

FEATURES, CLASSES, WIDTH, BATCH = 32, 10, 32, 64
KERNELS: dict[str, tuple[Callable[..., nn.Module], type[EPKernel]]] = {
    "LoopedMLP": (LoopedMLP, LoopedKernel),
    "HopfieldMLP": (HopfieldMLP, HopfieldKernel),
}
LOW, HIGH = 0.6, 1.1  # in proportion: growth / growth, below 1 by what does not grow

track = Track(
    id=15,
    name="Kernel memory",
    claim="A step of the EP kernel takes the same memory for any number of steps, and a lean DFA step for "
    "any depth, where backprop's grows in proportion.",
    purpose="Constant memory is the selling point of local rules, and is usually computed by a formula. "
    "Here every storage is counted while it lives, so that what a program holds without need shows.",
    limits="Tensors that operations return; weights and feedback are left out, and so is what an operation "
    "takes and gives back before it returns. CPU; the allocator's own reserve is not counted.",
    improve="The allocator's own count on a GPU; convolutional nets.",
    arms={
        "EP": "walkback.nets.ep_kernel on a LoopedMLP and a HopfieldMLP",
        "BPTT": "autograd through the same free phases",
        "DFA": "walkback.train.kernel, dfa(form=block), lean: activations are computed twice",
        "BP": "autograd through the same residual nets",
    },
    gates=(
        IdentityGate("EP gradient", "Relative difference of EP's gradients from BPTT's", at_most=1e-4),
        IdentityGate(
            "DFA gradient", "Difference of lean DFA's gradients from the rule's own", at_most=1e-6
        ),
    ),
    decisions=(
        Decision("EP", "Memory of an EP step, many steps over few", at_most=1.001),
        Decision("DFA", "Memory of a lean DFA step, deep net over shallow", at_most=1.001),
        Decision("BPTT grows", "Growth of BPTT's memory over that of the steps", LOW, HIGH),
        Decision("BP grows", "Growth of backprop's memory over that of the depth", LOW, HIGH),
    ),
    controls=(
        Control("states kept", "the EP kernel keeps every state of its free phase"),
        Control("backprop in disguise", "the EP step is backprop through time"),
        Control("nothing nudged", "the EP step leaves out its work and gives no gradients"),
        Control("EP hoards", "the EP kernel takes memory for every step when it is built"),
        Control("credits at once", "all credits of DFA are made at once"),
        Control("activations kept", "DFA keeps its activations"),
        Control("DFA hoards", "the DFA kernel takes memory for every block when it is built"),
        Control("DFA idle", "the DFA step leaves out its work and gives no gradients"),
        Control("BPTT cut", "backprop through time forgets all but its last step, and cannot grow"),
        Control("BP cut", "backprop forgets all but its last block, and cannot grow"),
    ),
    level={"quick": "conclusive", "full": "conclusive"},
    quick={"steps": (10, 50), "depths": (2, 10)},
    full={"steps": (10, 300), "depths": (2, 64)},
)


@track.experiment
def measure(lab: Lab) -> None:
    """Every arm takes one training step, at two numbers of steps or two depths, while every storage is
    counted from the operation that makes it until nothing refers to it; kernels are built meanwhile. Their
    gradients are held against backprop's (EP) and against the rule's own pass (DFA), so that thrift is not
    idleness.
    """
    steps, depths = lab.settings["steps"], lab.settings["depths"]
    wrong, thrifty, greedy = [], [], []
    for name in KERNELS:
        found = [ep_step(lab, name, count) for count in steps]
        wrong.append(found[-1][1])
        thrifty.append(growth(lab, f"EP, {name}", "steps", steps, [peak for peak, _ in found]))
        peaks = [bptt_step(lab, name, count) for count in steps]
        greedy.append(growth(lab, f"BPTT, {name}", "steps", steps, peaks))
    lab.report("EP gradient", worst(wrong))
    lab.report("BPTT grows", farthest([ratio * steps[0] / steps[1] for ratio in greedy], 1))
    lab.report("EP", worst(thrifty))

    found = [dfa_step(lab, depth) for depth in depths]
    lab.report("DFA gradient", worst(wrong for _, wrong in found))
    grown = growth(lab, "BP", "blocks", depths, [bp_step(lab, depth) for depth in depths])
    lab.report("BP grows", grown * depths[0] / depths[1])
    lab.report("DFA", growth(lab, "DFA, lean", "blocks", depths, [peak for peak, _ in found]))
    told = "; ".join(f"{row['arm']}: {number(row['growth'])}" for row in lab.rows)
    lab.tell(
        difference=f"Memory at {steps[1]} steps over that at {steps[0]}, and at {depths[1]} blocks over "
        f"that at {depths[0]}: {told}.",
        interpretation="What a state or a block needs is used again for the next. DFA pays for it by "
        "computing its activations twice, EP by settling again.",
    )


def growth(lab: Lab, arm: str, what: str, sizes: Sequence[int], peaks: Sequence[int]) -> float:
    """How much more the larger takes, noted in the table; what takes nothing at all has no growth."""
    ratio = peaks[1] / peaks[0] if peaks[0] else math.nan
    shown = [f"{peak / 1e3:.1f} kB at {size} {what}" for peak, size in zip(peaks, sizes, strict=True)]
    lab.row(arm=arm, small=shown[0], large=shown[1], growth=ratio)
    return ratio


def ep_step(lab: Lab, name: str, steps: int) -> tuple[int, float]:
    """The peak of one EP step, and how far its gradients are from those of backprop through time."""
    net, (x, y) = draw_net(lab, name, steps), draw_batch(lab)
    with Allocations() as seen:
        kernel = built(KERNELS[name][1](net, nudged=steps, beta=1e-3), steps * lab.under("EP hoards"))
        if lab.under("backprop in disguise"):
            found = through_time(net, x, y)
        elif lab.under("nothing nudged"):
            found = {key: torch.zeros_like(parameter) for key, parameter in net.named_parameters()}
        else:
            found = kernel.step(x, y, keep=lab.under("states kept")).gradients
    exact = through_time(net, x, y)
    return seen.peak_bytes, worst(difference(found.get(key), exact[key]) for key in exact)


def built(kernel: Any, hoarded: int) -> Any:
    """The kernel, with so many states that it took memory for before its first step."""
    kernel.hoard = torch.empty(hoarded, BATCH, WIDTH)
    return kernel


def bptt_step(lab: Lab, name: str, steps: int) -> int:
    net, (x, y) = draw_net(lab, name, steps), draw_batch(lab)
    with Allocations() as seen:
        if lab.under("BPTT cut"):
            last_step_only(net, x, y)
        else:
            through_time(net, x, y)
    return seen.peak_bytes


def dfa_step(lab: Lab, depth: int) -> tuple[int, float]:
    """The peak of one DFA step by the kernel, and how far its gradients are from the rule's own pass."""
    net, (x, y) = draw_chain(lab, depth), draw_batch(lab)
    rule: Any = DFA(form="block", skip="cut")
    rule.setup(net.probe(x, y), lab.generator("feedback", depth))
    learned = list(rule.trained(net).values())
    rule.deposit_gradients(net, x, y)
    exact = [parameter.grad.clone() for parameter in learned]
    zero_gradients(net)
    if lab.under("credits at once"):
        rule.training_credits_upwards = lambda trace: iter(rule.training_credits(trace))
    with Allocations() as seen:
        lean = not lab.under("activations kept")
        kernel = built(Kernel(net, rule, lean=lean), depth * lab.under("DFA hoards"))
        if not lab.under("DFA idle"):
            kernel.deposit_gradients(x, y)
    pairs = zip(learned, exact, strict=True)
    return seen.peak_bytes, worst(difference(parameter.grad, gradient) for parameter, gradient in pairs)


def bp_step(lab: Lab, depth: int) -> int:
    net, (x, y) = draw_chain(lab, depth), draw_batch(lab)
    zero_gradients(net)
    with Allocations() as seen:
        F.cross_entropy(last_block_only(net, x) if lab.under("BP cut") else net.model(x), y).backward()
    return seen.peak_bytes


def through_time(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Gradients by autograd through the free phase."""
    names, parameters = zip(*net.named_parameters(), strict=True)
    found = torch.autograd.grad(F.cross_entropy(net(x), y), parameters)
    return dict(zip(names, found, strict=True))


def last_step_only(net: Any, x: Tensor, y: Tensor) -> None:
    drive = net.stem(x)
    h = torch.zeros_like(drive)
    with torch.no_grad():
        for block in net.blocks[:-1]:
            h = block(h, drive)
    F.cross_entropy(net.out_head(net.blocks[-1](h, drive)), y).backward()


def last_block_only(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = net.model.stem(x)
        for block in net.blocks[:-1]:
            h = block(h)
    return net.read_out(net.blocks[-1](h))


def draw_net(lab: Lab, name: str, steps: int) -> nn.Module:
    """The same weights for any number of steps."""
    torch.manual_seed(lab.stream("net", name))
    return KERNELS[name][0](FEATURES, CLASSES, width=WIDTH, steps=steps).double()


def draw_chain(lab: Lab, depth: int) -> Adapter:
    torch.manual_seed(lab.stream("chain", depth))
    return Adapter(ResMLP(FEATURES, CLASSES, depth, width=WIDTH, expansion=2).double())


def draw_batch(lab: Lab) -> tuple[Tensor, Tensor]:
    generator = lab.generator("batch")
    x = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (BATCH,), generator=generator)


def zero_gradients(net: Adapter) -> None:
    """Nothing is left of an earlier pass, and the gradients' own memory is there before it is counted."""
    for parameter in net.model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def difference(found: Tensor | None, exact: Tensor) -> float:
    """Relative; a gradient that is missing is infinitely wrong."""
    return math.inf if found is None else relative(found, exact)
