"""Track 1: spectral normalisation keeps the recurrent weights at L = 1, where the free twin outgrows it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import parametrize

from walkback.nets.looped import LoopedMLP
from walkback.tracks.equilibrium import least, worst
from walkback.tracks.lab import Lab
from walkback.tracks.loops import LOOP, draw_loop, lipschitz, train_loop
from walkback.tracks.track import Control, Decision, Gate, IdentityGate, Track

TOLERANCE = 1e-4  # of L: weights are float32

track = Track(
    id=1,
    name="Spectral normalisation",
    claim="Spectral normalisation keeps the Lipschitz constant L = σ_max(W_rec) of a loop at 1 from epoch "
    "to epoch, while an unconstrained twin with the same initial weights grows beyond it.",
    purpose="A loop that contracts has one state of rest, which equilibrium propagation relies on. "
    "Training must not take that away unnoticed.",
    limits=f"One recurrent layer on 8×8 digits; “at 1” means up to {TOLERANCE:g}, before training and at "
    "the end of every epoch; in between L is not looked at. L ≤ 1 is enough for a contraction under tanh, "
    "but not needed for one. The norm is taken exactly, not by power iteration.",
    improve="Deeper loops; power iteration, whose estimate lags behind the weights; longer training.",
    arms={
        "normalised": "W_rec divided by its largest singular value, at every step",
        "twin": "the same initial weights, unconstrained",
    },
    gates=(
        IdentityGate("same start", "Largest difference of the initial weights in use", at_most=1e-6),
        Gate("both learn", "Test accuracy of the arm that learned less", at_least=50, unit="%"),
    ),
    decisions=(
        Decision("bounded", "Largest L of the normalised loop at any epoch", at_most=1 + TOLERANCE),
        Decision("kept", "Smallest L of the normalised loop at any epoch", at_least=1 - TOLERANCE),
        Decision("twin grows", "Smallest L of a twin after training", at_least=1.5),
    ),
    controls=(
        Control("norm left out", "the normalised loop is not normalised"),
        Control("norm dropped", "the norm is applied to the initial weights and then no more"),
        Control("loop vanishes", "the normalised loop is zero from the first step of training on"),
        Control("twin normalised", "the twin is normalised too"),
        Control("no learning", "the learning rate is 0, so that no weight moves"),
        Control("other weights", "the twin starts from weights of its own"),
        Control("looked away", "L is only taken before training"),
    ),
    level={"quick": "directional", "full": "conclusive"},
    quick={**LOOP, "seeds": 3, "epochs": 5},
    full={**LOOP, "seeds": 10, "epochs": 20},
)


@track.experiment
def spectral_norm(lab: Lab) -> None:
    """Draw a looped net twice from the same seed, with and without spectral normalisation, at L = 1. Train
    both on 8×8 digits by backprop through 30 steps, on the same batches, and take L of the weights in use
    by SVD before training and after every epoch."""
    seeds = range(lab.settings["seeds"])
    pairs = [(_normalised(lab, seed), _twin(lab, seed)) for seed in seeds]
    lab.report("same start", worst(_apart(*pair) for pair in pairs))
    curves: dict[str, list[list[float]]] = {"normalised": [], "twin": []}
    accuracies = []
    for seed, pair in zip(seeds, pairs, strict=True):
        for arm, net in zip(curves, pair, strict=True):
            if arm == "normalised" and lab.under("loop vanishes"):
                parametrize.register_parametrization(net.recurrent, "weight", Vanishing())
            curve, accuracy = _trained(lab, net, seed)
            curves[arm].append(curve)
            accuracies.append(accuracy)
            lab.row(
                seed=seed,
                arm=arm,
                L_before=curve[0],
                L_after=curve[-1],
                L_most=worst(curve),
                accuracy=accuracy,
            )
    lab.report("both learn", least(accuracies))
    most, grown = worst(map(worst, curves["normalised"])), least(curve[-1] for curve in curves["twin"])
    lab.report("bounded", most)
    lab.report("kept", fewest := least(map(least, curves["normalised"])))
    lab.report("twin grows", grown)
    lab.tell(
        difference=f"With the norm L stays between {fewest:.6f} and {most:.6f}; without it L goes from "
        f"{curves['twin'][0][0]:.3f} to {grown:.3f} or more.",
        interpretation="Training pushes L above 1 where it is free to: the bound is the work of the norm, "
        "not of the task.",
    )


class Vanishing(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 0 * weight


def _normalised(lab: Lab, seed: int) -> LoopedMLP:
    net = draw_loop(lab, seed, spectral_norm=not lab.under("norm left out"))
    if lab.under("norm dropped"):
        parametrize.remove_parametrizations(net.recurrent, "weight")
    return net


def _twin(lab: Lab, seed: int) -> LoopedMLP:
    net = draw_loop(lab, seed, spectral_norm=lab.under("twin normalised"))
    if lab.under("other weights"):
        nn.init.normal_(net.recurrent.weight, std=0.5 * net.recurrent.in_features**-0.5)
    return net


def _apart(one: LoopedMLP, other: LoopedMLP) -> float:
    """Over all weights as they are used."""
    pairs = zip(_in_use(one), _in_use(other), strict=True)
    return worst(float((a - b).detach().abs().max()) for a, b in pairs)


def _in_use(net: LoopedMLP) -> list[Tensor]:
    return [net.recurrent.weight, *net.stem.parameters(), *net.out_head.parameters()]


def _trained(lab: Lab, net: LoopedMLP, seed: int) -> tuple[list[float], float]:
    """L before training and after each epoch, and the test accuracy in per cent."""
    curve = [lipschitz(net)]
    lr = 0.0 if lab.under("no learning") else lab.settings["lr"]
    accuracy = train_loop(lab, net, seed, lr=lr, on_epoch=lambda: curve.append(lipschitz(net)))
    return (curve[:1] if lab.under("looked away") else curve), accuracy
