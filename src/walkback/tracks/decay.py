"""Track 3: in a spectrally normalised loop a perturbation of the hidden state decays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from walkback.nets.looped import LoopedMLP
from walkback.tracks.equilibrium import least, worst
from walkback.tracks.lab import Lab
from walkback.tracks.loops import LOOP, draw_loop, held_out, train_loop
from walkback.tracks.track import Control, Decision, Gate, Track

SIZE = 0.1  # of a perturbation, relative to the state
STEPS = 10
TO_REST = 200

track = Track(
    id=3,
    name="Perturbations decay",
    claim="In a trained, spectrally normalised loop no small perturbation of the hidden state grows in any "
    f"step, and after {STEPS} steps at most half of it is left.",
    purpose="A state of rest is only worth the name if the loop returns to it.",
    limits=f"Perturbations of {100 * SIZE:.0f} % of the state, at the state of rest, in random directions "
    "and in the one that the loop stretches most. Random directions alone cannot tell: tanh saturates "
    "in the unconstrained loop too, and most of them decay there as well.",
    improve="Larger perturbations, perturbations on the way to rest, noise at every step.",
    arms={
        "random": "perturbations in random directions",
        "steepest": "in the direction of the largest singular value of the loop's Jacobian at that state",
    },
    gates=(
        Gate("learned", "Lowest test accuracy of a net", at_least=50, unit="%"),
        Gate("applied", "Smallest relative size of a perturbation", at_least=0.9 * SIZE),
        Gate("alive", "Median slope of tanh at the state of rest", at_least=0.05),
        Gate("felt", "Share of a steepest perturbation that is left after one step, median", at_least=0.1),
    ),
    decisions=(
        Decision("never grows", "Largest growth of a perturbation in one step", at_most=1 + 1e-4),
        Decision("decays", f"Largest share left after {STEPS} steps", at_most=0.5),
    ),
    controls=(
        Control("no learning", "the learning rate is 0"),
        Control("saturated", "the input is 50 times as strong, so that tanh lets nothing through"),
        Control("never applied", "the perturbation is never applied"),
        Control("loop cut", "the state is not fed back, so that nothing could last"),
        Control("norm left out", "the loop is trained without the norm"),
        Control("weights scaled", "W_rec is twice as large as it was trained"),
        Control("renewed", "the perturbation is applied anew at every step"),
    ),
    level={"quick": "directional", "full": "conclusive"},
    quick={**LOOP, "seeds": 3, "epochs": 5},
    full={**LOOP, "seeds": 10, "epochs": 20},
)


@track.experiment
def decay(lab: Lab) -> None:
    """Train spectrally normalised loops on 8×8 digits and let each come to rest on the test items. Move
    every state of rest by a tenth of its length, run the moved and the unmoved state on side by side, and
    follow the distance between them."""
    seeds = range(lab.settings["seeds"])
    nets = [draw_loop(lab, seed, spectral_norm=not lab.under("norm left out")) for seed in seeds]
    lr = 0.0 if lab.under("no learning") else lab.settings["lr"]
    accuracies = [train_loop(lab, net, seed, lr=lr) for seed, net in enumerate(nets)]
    lab.report("learned", least(accuracies))
    followed = [
        _follow(lab, net, seed, arm) for seed, net in enumerate(nets) for arm in ("random", "steepest")
    ]
    lab.report("applied", least(float(each.sizes.min()) for each in followed))
    lab.report("alive", least(each.slope for each in followed))
    steep = [each for each in followed if each.arm == "steepest"]
    lab.report("felt", least(float((each.distances[1] / each.distances[0]).median()) for each in steep))
    growth, left = worst(each.growth for each in followed), worst(each.left for each in followed)
    for each in followed:
        lab.row(seed=each.seed, arm=each.arm, growth=each.growth, left=each.left, slope=each.slope)
    lab.report("never grows", growth)
    lab.report("decays", left)
    lab.tell(
        difference=f"In one step a perturbation grows by at most {growth:.3f}; after {STEPS} steps at most "
        f"{left:.3f} of it is left.",
        interpretation="With L ≤ 1 and a slope of tanh below 1 nothing can grow. How fast it decays is for "
        "the data to say, and was measured.",
    )


@dataclass(frozen=True)
class Followed:
    """Distances between moved and unmoved states, [steps + 1, items], from the perturbation on."""

    seed: int
    arm: str
    distances: Tensor
    sizes: Tensor
    slope: float

    @property
    def growth(self) -> float:
        """The largest ratio of two distances that follow each other; NaN if nothing was moved."""
        return float((self.distances[1:] / self.distances[:-1]).max())

    @property
    def left(self) -> float:
        return float((self.distances[-1] / self.distances[0]).max())


@torch.no_grad()
def _follow(lab: Lab, net: LoopedMLP, seed: int, arm: str) -> Followed:
    x, net = held_out()[0].double(), net.double()
    drive, weight = net.stem(x) * (50 if lab.under("saturated") else 1), net.recurrent.weight
    weight = weight * (2 if lab.under("weights scaled") else 0 if lab.under("loop cut") else 1)
    rest = drive.tanh()
    for _ in range(TO_REST):
        rest = (drive + rest @ weight.T).tanh()
    slopes = 1 - rest.square()
    pushed = SIZE * rest.norm(dim=1, keepdim=True) * _directions(lab, weight, slopes, arm, seed)
    if lab.under("never applied"):
        pushed = torch.zeros_like(pushed)
    still, moved = rest, rest + pushed
    distances = [(moved - still).norm(dim=1)]
    for _ in range(STEPS):
        still, moved = (drive + still @ weight.T).tanh(), (drive + moved @ weight.T).tanh()
        moved = moved + pushed if lab.under("renewed") else moved
        distances.append((moved - still).norm(dim=1))
    sizes = distances[0] / rest.norm(dim=1)
    return Followed(seed, arm, torch.stack(distances), sizes, float(slopes.median()))


def _directions(lab: Lab, weight: Tensor, slopes: Tensor, arm: str, seed: int) -> Tensor:
    """Unit vectors, one per item."""
    if arm == "steepest":
        jacobian = slopes.unsqueeze(2) * weight  # d tanh(W h + …)/dh at each state of rest
        return torch.linalg.svd(jacobian)[2][:, 0]
    drawn = torch.randn(slopes.shape, generator=lab.generator("directions", seed), dtype=slopes.dtype)
    return drawn / drawn.norm(dim=1, keepdim=True)
