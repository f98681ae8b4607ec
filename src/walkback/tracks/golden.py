"""Track 22: the fast EP kernel gives the numbers of a plain NumPy reference — states, output, gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from walkback.core.numerals import number
from walkback.nets.ep_kernel import EPKernel, EPStep, HopfieldKernel, LoopedKernel
from walkback.nets.hopfield import HopfieldMLP
from walkback.nets.looped import LoopedMLP
from walkback.tracks import reference
from walkback.tracks.equilibrium import draw_biases, worst
from walkback.tracks.lab import Lab
from walkback.tracks.track import Control, Decision, Gate, IdentityGate, Track

FREE, NUDGED = 30, 10
BETA, SMALL_BETA = 0.1, 1e-3  # for the comparison with the reference; for that with backprop, as β → 0
FEATURES, CLASSES = 784, 10

track = Track(
    id=22,
    name="Golden reference",
    claim=f"The torch kernel of equilibrium propagation gives the {FREE} hidden states, the output and the "
    "gradients of a plain NumPy reference, and these gradients are backprop's.",
    purpose="A fast kernel is easily wrong in its backward pass, where nothing looks amiss: a test that "
    "compares states and outputs alone still passes when every gradient is multiplied by −7.",
    limits=f"Two nets at their initialisation, on random inputs. K nudged steps are held against backprop "
    f"through the last K steps, here {NUDGED}; the free phase must be at rest for that.",
    improve="Trained weights; a GPU, where nothing but the device differs; other widths and step sizes.",
    arms={
        "kernel": "walkback.nets.ep_kernel, no autograd, buffers used again, float32 and float64",
        "reference": "walkback.tracks.reference, NumPy, float64: EP, and backprop through time by hand",
        "autograd": "backprop through time by torch, through the nets' own forward pass",
    },
    gates=(
        IdentityGate("saved", "Tensors that a step of the kernel saves for a backward pass", at_most=0),
        Gate("at rest", "Largest change in the last step of the free phase", at_most=1e-5),
    ),
    decisions=(
        Decision("states", f"Largest difference of the {FREE} states, float32", at_most=1e-5),
        Decision("output", "Largest difference of the logits, float32", at_most=1e-5),
        Decision("gradients", "Largest difference of a gradient, relative to it, float32", at_most=1e-5),
        Decision("float64", "The largest of the same differences, float64", at_most=1e-12),
        Decision(
            "backprop",
            f"Relative difference from backprop through the last {NUDGED} steps, β = {SMALL_BETA:g}",
            at_most=1e-5,
        ),
        Decision("autograd", "Relative difference of the reference's backprop from torch's", at_most=1e-10),
    ),
    controls=(
        Control("backward × −7", "every gradient of the kernel is multiplied by −7"),
        Control("no bias gradient", "the gradient of the first bias is dropped"),
        Control("noise for Wᵀ", "the loop's way back is random noise in place of Wᵀ"),
        Control("no 1/β", "the difference of the two phases is not divided by β"),
        Control("one phase twice", "both nudged phases have the same sign"),
        Control("W transposed", "the kernel is given the loop's weights transposed"),
        Control("no output bias", "the kernel leaves out the loop's output bias"),
        Control("not at rest", "the free phase takes 5 steps"),
        Control("steps forgotten", f"the reference's backprop goes through its last {NUDGED} steps only"),
        Control("autograd inside", "the gradients come from autograd, not from the kernel"),
    ),
    level={"quick": "conclusive", "full": "conclusive"},
    quick={"width": 256, "batch": 32, "draws": 1},
    full={"width": 256, "batch": 128, "draws": 5},
)


@dataclass(frozen=True)
class Case:
    """One net with a batch: the kernel's class, and how the reference is asked for its numbers."""

    net: nn.Module
    x: Tensor
    y: Tensor
    kernel: type[EPKernel]
    free: int = FREE

    def reference_step(self, beta: float) -> reference.Step:
        work = reference.looped_step if self.kernel is LoopedKernel else reference.hopfield_step
        return work(*self._arrays, steps=self.free, nudged=NUDGED, beta=beta)

    def reference_bptt(self, last: int | None = None) -> reference.Step:
        work = reference.looped_bptt if self.kernel is LoopedKernel else reference.hopfield_bptt
        return work(*self._arrays, steps=self.free, last=last)

    @property
    def _arrays(self) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64], NDArray[np.int64]]:
        weights = {name: parameter.detach().numpy() for name, parameter in self.net.named_parameters()}
        return weights, self.x.numpy(), self.y.numpy()


@track.experiment
def compare(lab: Lab) -> None:
    """One EP step of a LoopedMLP and of a HopfieldMLP, 784-256-10, 30 free and 10 nudged steps at ±β, by
    the kernel and by the reference, on the same weights and the same random batch. All 30 states, the
    logits and the gradient of every parameter, biases included, are compared; then the gradients with
    backprop through time, written out in NumPy and checked against autograd.
    """
    cases = [case for draw in range(lab.settings["draws"]) for case in draw_cases(lab, draw)]
    lab.report("saved", sum(tensors_saved(lab, case) for case in cases))
    exact = [case.reference_step(BETA) for case in cases]
    lab.report("at rest", worst(np.abs(step.states[-1] - step.states[-2]).max() for step in exact))

    single = [differences(run(lab, c, torch.float32), gold) for c, gold in zip(cases, exact, strict=True)]
    lab.report("states", worst(largest(found, "state") for found in single))
    lab.report("output", worst(found["output"] for found in single))
    lab.report("gradients", gradients := worst(largest(found, "∂") for found in single))
    double = [differences(run(lab, c, torch.float64), gold) for c, gold in zip(cases, exact, strict=True)]
    lab.report("float64", everything := worst(worst(found.values()) for found in double))
    lab.report("backprop", worst(apart_from_backprop(lab, case) for case in cases))
    lab.report("autograd", worst(apart_from_autograd(lab, case) for case in cases))
    looped, hopfield = single[:2]
    for quantity in {**looped, **hopfield}:
        lab.row(quantity=quantity, LoopedMLP=looped.get(quantity), HopfieldMLP=hopfield.get(quantity))
    lab.tell(
        difference=f"Between kernel and reference: {number(gradients)} in the gradients in float32, and "
        f"{number(everything)} in anything in float64.",
        interpretation="Two programs that share no line, one written for speed and one to be read, take "
        "the same steps and give the same gradients; and a third way, backprop, gives them too.",
    )


def draw_cases(lab: Lab, draw: int) -> list[Case]:
    """Both nets with fresh weights, no bias at zero, and a batch of random inputs."""
    torch.manual_seed(lab.stream("nets", draw))
    width, rows = lab.settings["width"], lab.settings["batch"]
    free = 5 if lab.under("not at rest") else FREE
    nets: list[tuple[nn.Module, type[EPKernel]]] = [
        (LoopedMLP(FEATURES, CLASSES, width=width, steps=free), LoopedKernel),
        (HopfieldMLP(FEATURES, CLASSES, width=width, steps=free), HopfieldKernel),
    ]
    cases = []
    for net, kernel in nets:
        draw_biases(net)
        x, y = torch.randn(rows, FEATURES, dtype=torch.float64), torch.randint(CLASSES, (rows,))
        cases.append(Case(net.double(), x, y, kernel, free))
    return cases


def run(lab: Lab, case: Case, dtype: torch.dtype, beta: float = BETA) -> EPStep:
    """One step of the kernel, as it is or broken in one place."""
    net, x = deepcopy(case.net).to(dtype), case.x.to(dtype)
    kernel: Any = case.kernel(net, nudged=NUDGED, beta=beta)
    if isinstance(net, LoopedMLP):
        break_loop(lab, net, kernel)
    if lab.under("one phase twice"):
        kernel.signed_beta = lambda error: torch.full_like(error[:, :1], -beta)
    done = kernel.step(x, case.y, keep=True)
    return EPStep(done.logits, broken_gradients(lab, done.gradients, net, x, case.y, beta), done.states)


def break_loop(lab: Lab, net: LoopedMLP, kernel: Any) -> None:
    if lab.under("W transposed"):
        net.recurrent.weight.data = net.recurrent.weight.data.T.contiguous()
    if lab.under("no output bias"):
        net.out_head.bias.data.zero_()
    if lab.under("noise for Wᵀ"):
        weight = net.recurrent.weight.data
        noise = torch.randn(weight.shape, generator=lab.generator("noise")).to(weight) * weight.std()
        kernel.feed_back = lambda above, weight, onto: onto.addmm_(above, noise)


def broken_gradients(
    lab: Lab, gradients: Mapping[str, Tensor], net: nn.Module, x: Tensor, y: Tensor, beta: float
) -> dict[str, Tensor]:
    if lab.under("backward × −7"):
        return {name: -7 * gradient for name, gradient in gradients.items()}
    if lab.under("no 1/β"):
        return {name: beta * gradient for name, gradient in gradients.items()}
    if lab.under("no bias gradient"):
        first = next(name for name in gradients if name.endswith("bias"))
        return {**gradients, first: torch.zeros_like(gradients[first])}
    if lab.under("autograd inside"):
        return through_time(net, x, y)
    return dict(gradients)


def through_time(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Backprop through time, by autograd through the net's own forward pass."""
    with torch.enable_grad():
        loss = F.cross_entropy(net(x), y)
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def tensors_saved(lab: Lab, case: Case) -> int:
    """How many tensors autograd is asked to keep in a step of the kernel; without a graph, none."""
    saved = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.shape)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        run(lab, case, torch.float32)
    return len(saved)


def differences(found: EPStep, exact: reference.Step) -> dict[str, float]:
    """Of every state, of the output, and of every gradient, relative to its largest entry."""
    states = () if found.states is None else found.states
    gaps = {
        f"state {index}": apart(h, golden)
        for index, (h, golden) in enumerate(zip(states, exact.states, strict=True), start=1)
    }
    gaps["output"] = apart(found.logits, exact.logits)
    return gaps | {f"∂ {name}": error for name, error in gradient_errors(found.gradients, exact).items()}


def gradient_errors(found: Mapping[str, Tensor], exact: reference.Step) -> dict[str, float]:
    """Per parameter; a gradient that is missing is infinitely wrong."""
    return {
        name: apart(found[name], golden) / np.abs(golden).max() if name in found else math.inf
        for name, golden in exact.gradients.items()
    }


def apart(found: Tensor, exact: NDArray[np.float64]) -> float:
    return float(np.abs(found.detach().double().numpy() - exact).max())


def largest(found: Mapping[str, float], kind: str) -> float:
    return worst(value for quantity, value in found.items() if quantity.startswith(kind))


def apart_from_backprop(lab: Lab, case: Case) -> float:
    """K nudged steps from rest against backprop through the last K steps; the limit of a small β."""
    found = run(lab, case, torch.float64, SMALL_BETA).gradients
    return worst(gradient_errors(found, case.reference_bptt(last=NUDGED)).values())


def apart_from_autograd(lab: Lab, case: Case) -> float:
    """The reference's backprop through all steps against torch's."""
    exact = case.reference_bptt(last=NUDGED if lab.under("steps forgotten") else None)
    return worst(gradient_errors(through_time(case.net, case.x, case.y), exact).values())
