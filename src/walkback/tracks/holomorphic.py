"""Track 10: with N nudges the error of the equilibrium gradient falls as β to the power N."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from walkback.core.numerals import number
from walkback.nets import hopfield, looped
from walkback.nets.hopfield import Beta, Gradients, slope_at_zero
from walkback.rules.ep import EP
from walkback.tracks import ep_identity
from walkback.tracks.ep_gradient import ep_params
from walkback.tracks.equilibrium import (
    Settling,
    draw_settling,
    equilibrium_error,
    farthest,
    least,
    noise_for_transposes,
    order_in_beta,
    replaced,
    worst,
)
from walkback.tracks.lab import Lab
from walkback.tracks.track import Control, Decision, Gate, Track

POINTS = 4
BETAS = {"HopfieldMLP": (0.1, 0.025), "LoopedMLP": (0.2, 0.05), "ResMLP": (0.4, 0.2)}
TINY = 20  # a nudge so many times smaller has a bias of 1e-13
SWEEPS = 25  # of the residual net, so that what is left unsettled is below what is measured
RULE_NUDGES: dict[str, dict[str, Any]] = {
    "holomorphic": {"holomorphic": POINTS},
    "symmetric": {},
    "positive": {"nudge": "positive"},
}
ErrorAt = Callable[[str, float], float]

track = Track(
    id=10,
    name="Holomorphic order",
    claim=f"With N = {POINTS} nudges the error of the equilibrium gradient is O(β⁴), where two give O(β²).",
    purpose="A finite nudge biases the gradient. Nudges on a circle in the complex plane remove the bias "
    "to any order, if the net is holomorphic and really settles: the slope shows whether it does.",
    limits="Small nets at initialisation in float64. The residual net takes its four nudges on the real "
    "axis (ours), since the functions in its blocks need not be defined for complex states.",
    improve="N = 6 and 8, for which float64 leaves two decades of β; noise in the states.",
    arms={
        "complex": f"HopfieldMLP and LoopedMLP, {POINTS} complex nudges and Cauchy's formula",
        "real": f"a ResMLP by the rule ep(holomorphic={POINTS}): {POINTS} real nudges, central difference",
        "reference": "backprop, through time where the net settles",
    },
    gates=(Gate("above rounding", "Smallest error that enters a slope", at_least=1e-12),),
    decisions=(
        *(
            Decision(net, f"Order in β, {net}", at_least=POINTS - 0.5, at_most=POINTS + 0.5)
            for net in BETAS
        ),
        Decision("gain", "Error of two nudges over that of four, at the smaller β", at_least=10),
    ),
    controls=(
        Control("two points", "two nudges are taken for four"),
        Control("one-sided", "the nudge has one sign only"),
        Control("real part", "complex nudges lose their imaginary part"),
        Control("noise for Wᵀ", "the way back is random noise in place of Wᵀ"),
        Control("unsettled", "the nudged phases stop after 6 steps"),
        Control("lost in rounding", f"every nudge is {TINY:g} times smaller, where rounding is left"),
    ),
    level={"quick": "conclusive", "full": "conclusive"},
    quick={"draws": 1},
    full={"draws": 5},
)


@track.experiment
def measure(lab: Lab) -> None:
    """The gradients of three nets by four nudges are held against backprop's at two β; the order is the
    slope of log error over log β. Beside it, at the smaller β, the error of two nudges.
    """
    drawn = [draw_nets(lab, draw) for draw in range(lab.settings["draws"])]
    orders: dict[str, list[float]] = {net: [] for net in BETAS}
    errors, gains = [], []
    for net, usual in BETAS.items():
        betas = [beta / TINY if lab.under("lost in rounding") else beta for beta in usual]
        for nets in drawn:
            with broken(lab):
                order, error = order_in_beta(partial(nets[net], nudge_of(lab)), betas)
            two = nets[net]("symmetric", betas[-1])
            lab.row(net=net, β=betas[-1], order=order, error=error, error_of_two=two)
            orders[net].append(order)
            errors.append(error)
            gains.append(two / error)
    lab.report("above rounding", least(errors))
    for net, found in orders.items():
        lab.report(net, farthest(found, POINTS))
    lab.report("gain", least(gains))
    lab.tell(
        difference=f"Four nudges leave {number(least(errors))} to {number(worst(errors))}, which is at "
        f"least {number(least(gains))} times less than two.",
        interpretation="The error falls by the power of β that the number of nudges gives: what is left of "
        "it is the nudge's own bias, and not a net that has not settled.",
    )


def draw_nets(lab: Lab, draw: int) -> dict[str, ErrorAt]:
    """Three fresh nets: the error of each for a kind of nudge and a β."""
    chain = ep_identity.identity_net(lab.generator("chain", draw))

    def chain_error(nudge: str, beta: float) -> float:
        rule = EP(**ep_params(beta=beta, steps=SWEEPS, **RULE_NUDGES[nudge]))
        return ep_identity.credit_error(rule, *chain)

    def settling_error(case: Settling) -> ErrorAt:
        return lambda nudge, beta: equilibrium_error(case, nudge, lambda found, beta: found, beta)

    cases = draw_settling(lab.generator("nets", draw))
    return {**{case.name: settling_error(case) for case in cases}, "ResMLP": chain_error}


def nudge_of(lab: Lab) -> str:
    if lab.under("one-sided"):
        return "positive"
    return "symmetric" if lab.under("two points") else "holomorphic"


@contextmanager
def broken(lab: Lab) -> Iterator[None]:
    """Within, what the lab has broken in the nets that settle."""
    with ExitStack() as stack:
        if lab.under("noise for Wᵀ"):
            stack.enter_context(noise_for_transposes(lab.generator("noise")))
        for module in (hopfield, looped):
            if lab.under("real part"):
                stack.enter_context(replaced(module, "slope_at_zero", real_slope))
            if lab.under("unsettled"):
                stack.enter_context(replaced(module, "settle_nudged", cut_short(module.settle_nudged)))
        yield


def real_slope(f: Callable[[Beta], Gradients], beta: float, nudge: str) -> Gradients:
    return slope_at_zero(lambda at: f(complex(at.real)), beta, nudge, POINTS)


def cut_short(settle: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    return lambda net, x, y, start, beta, steps: settle(net, x, y, start, beta, min(steps, 6))
