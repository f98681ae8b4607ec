"""Track 2: equilibrium propagation trains a net as well as backprop, by gates and an equivalence test."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from walkback.core.spec import Call
from walkback.core.stats import Interval, seed_item_interval
from walkback.data import Dataset, load_dataset
from walkback.data.feed import Feed
from walkback.measure.rows import correct_rows
from walkback.nets import Adapter
from walkback.nets.resmlp import ResMLP
from walkback.nets.trace import Trace
from walkback.rules.base import Rule
from walkback.rules.bp import BP
from walkback.rules.ep import EP, Free
from walkback.rules.frozen import Frozen
from walkback.tracks import ep_identity
from walkback.tracks.equilibrium import worst
from walkback.tracks.lab import Lab
from walkback.tracks.track import Control, Decision, Gate, IdentityGate, PositiveControl, Track
from walkback.train import Recipe, TrainState, train

MARGIN = 1.5  # pp, fixed before any run
ALPHA = 0.05  # at each end: two one-sided tests
BETA = 0.01
MOVED = 0.1  # so that the two backprop arms of the positive control are not one run

track = Track(
    id=2,
    name="EP–BP parity",
    claim=f"Equilibrium propagation reaches backprop's test accuracy within ±{MARGIN} percentage points.",
    purpose="EP is sold as a local rule that gives up nothing. If that is so, it must show on data where "
    "something could be lost.",
    limits="One small residual net, one task, few epochs and one learning rate, which was not tuned for "
    "either. Parity here says nothing about large nets, nor about hardware that settles by itself.",
    improve="More nets and tasks; rates chosen on a grid for each rule; longer training, where a wider "
    "spread over seeds asks for more of them.",
    arms={
        "BP": "backprop",
        "EP": f"ep, energy form, symmetric nudges of β = {BETA}, block sweeps",
        "frozen": "the same net, its blocks left as they were drawn",
    },
    gates=(
        IdentityGate("graph", "Most blocks in one autograd graph of an EP step", at_most=1),
        IdentityGate("gradients", "Largest relative difference of EP's gradients from BP's", at_most=1e-4),
        IdentityGate("order", "Order in β of that difference", at_least=1.9, at_most=2.1),
        IdentityGate("free state", "Relative movement without a nudge", at_most=1e-12),
        IdentityGate("nudge", "Relative change of the nudge as the states move", at_least=1e-6),
        Gate("held out", "Test items", at_least=1000),
        Gate("not saturated", "Test accuracy of BP", at_most=99, unit="%"),
        Gate("room", "BP − frozen", at_least=MARGIN, unit="pp"),
        IdentityGate("settled", "Largest residual of EP's nudged states in training", at_most=0.05),
        Gate("above chance", "Test accuracy of EP − chance", at_least=10, unit="pp"),
        # Equal is not above: half an item of 5,000.
        Gate("above frozen", "EP − frozen", at_least=0.01, unit="pp"),
    ),
    decisions=(Decision("parity", "EP − BP", at_least=-MARGIN, at_most=MARGIN, unit="pp"),),
    controls=(
        Control("no nudge", "β is 0, so that nothing is sent back"),
        Control("sign flip", "the credit has the wrong sign"),
        Control("no nudged steps", "the nudged phase takes no step"),
        Control("frozen nudge", "the nudge stays what it was at the free state"),
        Control("drift", "the nudged phases start a millionth beside the free state"),
        Control("few small steps", "EP is tested as it should be, and trained by 3 steps of descent"),
        Control("backprop in disguise", "what is called EP is backprop through all blocks"),
        Control("shuffled labels", "the training labels are shuffled, so that both arms stay at chance"),
        Control("no learning", "the learning rate is 0, so that both arms agree perfectly"),
        Control("other centres", "training and test items come from different class centres"),
        Control("answer shown", "the label is painted into every image, and nothing is left to be lost"),
        Control("few test items", "only 500 items are held out"),
        Control("frozen blocks", "the blocks of the EP arm never learn"),
        Control("fewer steps", "the EP arm is trained three quarters as long"),
    ),
    positive=(
        PositiveControl(
            "BP against BP",
            f"the EP arm is backprop from weights that were moved by {100 * MOVED:.0f} % of their size",
            without=("graph", "gradients", "order", "free state", "nudge", "settled"),
        ),
    ),
    level={"quick": "directional", "full": "conclusive"},
    quick={"seeds": 5, "items": 50_000, "epochs": 1, "width": 64, "depth": 2, "lr": 5e-3, "batch": 256},
    full={"seeds": 10, "items": 50_000, "epochs": 3, "width": 64, "depth": 2, "lr": 5e-3, "batch": 256},
)


@track.experiment
def parity(lab: Lab) -> None:
    """Train a residual MLP on digit sums by backprop, by EP and with frozen blocks, from the same weights
    and on the same batches for every seed. First EP must be EP, then the data must be able to tell, then EP
    must have learned; only then are the accuracies compared, by two one-sided tests at 5 % on intervals
    over seeds and test items."""
    report_identity(lab)
    data = _data(lab)
    lab.report("held out", len(data.y_test))
    bp, frozen = _train_all(lab, data, "bp"), _train_all(lab, data, "frozen")
    report_room(lab, bp, frozen)
    ep = _train_all(lab, data, "ep")
    report_parity(lab, bp, frozen, ep)


@dataclass(frozen=True)
class Trained:
    """Which test items each seed got right, and how far EP was from rest, at most, in any step."""

    correct: NDArray[np.float64]  # [seeds, items]
    labels: NDArray[Any]
    sources: NDArray[Any] | None
    residual: float = math.nan

    @property
    def accuracy(self) -> float:
        return 100 * float(self.correct.mean())

    def minus(self, other: Trained | float) -> Interval:
        """The difference in percentage points, paired by seed and item."""
        taken = other.correct if isinstance(other, Trained) else other
        return seed_item_interval(100 * (self.correct - taken), ALPHA, self.sources)


def report_identity(lab: Lab) -> None:
    """One by one, what an EP arm must be; a backprop that merely bears the name is not."""
    batch = ep_identity.identity_net(lab.generator("identity"))
    rule = _ep(lab)
    lab.report("graph", ep_identity.blocks_in_one_graph(rule, *batch))
    lab.report("gradients", ep_identity.gradient_error(rule, *batch))
    lab.report("order", ep_identity.order_in_beta(lambda beta: _ep(lab, beta, reach=0.0), *batch))
    lab.report("free state", ep_identity.free_residual(rule, *batch))
    lab.report("nudge", ep_identity.nudge_change(rule, *batch))


def report_room(lab: Lab, bp: Trained, frozen: Trained) -> None:
    """Whether the data could show a difference: there is something to learn, and something to lose."""
    lab.report("not saturated", bp.accuracy)
    _report(lab, "room", bp.minus(frozen))


def report_parity(lab: Lab, bp: Trained, frozen: Trained, ep: Trained) -> None:
    lab.report("settled", ep.residual)
    chance = np.bincount(ep.labels).max() / len(ep.labels)
    _report(lab, "above chance", ep.minus(chance))
    _report(lab, "above frozen", ep.minus(frozen))
    difference = ep.minus(bp)
    _report(lab, "parity", difference, seeds=len(ep.correct))
    for seed, accuracies in enumerate(zip(bp.correct, ep.correct, frozen.correct, strict=True)):
        b, e, f = (100 * float(row.mean()) for row in accuracies)
        lab.row(seed=seed, BP=round(b, 2), EP=round(e, 2), frozen=round(f, 2), difference=round(e - b, 2))
    lab.tell(
        difference=f"EP {ep.accuracy:.2f} %, BP {bp.accuracy:.2f} %, frozen {frozen.accuracy:.2f} %: "
        f"EP − BP = {difference.estimate:+.2f} pp [{difference.low:+.2f}, {difference.high:+.2f}].",
        interpretation=f"The interval is compared with ±{MARGIN} pp, on data where leaving the blocks "
        f"untrained costs {bp.accuracy - frozen.accuracy:.1f} pp.",
    )


def _report(lab: Lab, check: str, found: Interval, **detail: Any) -> None:
    lab.report(check, found.estimate, (found.low, found.high), se=found.se, df=found.df, **detail)


class ArmEP(EP):
    """EP, but for the one thing that the lab has broken."""

    def __init__(self, lab: Lab, **params: Any) -> None:
        super().__init__(**params)
        self.lab = lab
        self.residuals: list[float] = []  # of every use: the rule itself keeps the last

    def nudges(self, beta: float) -> list[tuple[float, float]]:
        scale, sign = float(not self.lab.under("no nudge")), -1 if self.lab.under("sign flip") else 1
        return [(scale * near, sign * weight) for near, weight in super().nudges(beta)]

    def settle(self, trace: Trace, free: Free, beta: float) -> tuple[list[Tensor], float]:
        if self.lab.under("no nudged steps"):
            return [torch.zeros_like(h) for h in free.states], 0.0
        moved, residual = super().settle(trace, free, beta)
        if self.lab.under("drift"):
            moved = [m + 1e-6 * h for m, h in zip(moved, free.states, strict=True)]
        return moved, residual

    def cost_gradient(self, trace: Trace, top: Tensor) -> Tensor:
        return super().cost_gradient(trace, trace.states[-1] if self.lab.under("frozen nudge") else top)

    def training_credits(self, trace: Trace) -> list[Tensor]:
        if not self.lab.under("backprop in disguise"):
            credits = super().training_credits(trace)
            self.residuals.append(self.residual)
            return credits
        self.residuals.append(0.0)
        return ep_identity.through_all_blocks(trace)


def _ep(lab: Lab, beta: float = BETA, **params: Any) -> ArmEP:
    return ArmEP(lab, **{**EP.defaults, "beta": beta, **params})


def _rule(lab: Lab, arm: str) -> Rule:
    if arm == "frozen":
        return Frozen(BP(), stem="bp")
    if arm == "bp" or lab.under("BP against BP"):
        return BP()
    rule = _ep(lab, solver="gd", steps=3) if lab.under("few small steps") else _ep(lab)
    return Frozen(rule, stem="ep") if lab.under("frozen blocks") else rule


def _train_all(lab: Lab, data: Dataset, arm: str) -> Trained:
    done = []
    for seed in range(lab.settings["seeds"]):
        done.append(_train(lab, data, arm, seed))
        lab.progress(seed + 1, lab.settings["seeds"])
    correct = np.stack([row for row, _ in done])
    return Trained(correct, data.y_test, data.test_sources, worst(left for _, left in done))


def _train(lab: Lab, data: Dataset, arm: str, seed: int) -> tuple[NDArray[np.float64], float]:
    """Which test items are right after training, and the largest residual of all steps."""
    setting = lab.settings
    torch.manual_seed(lab.stream("init", seed))
    model = ResMLP(
        data.x_train.shape[1], data.classes, depth=setting["depth"], width=setting["width"], expansion=2
    )
    rule = _rule(lab, arm)
    if arm == "ep" and lab.under("BP against BP"):
        for parameter in model.parameters():
            parameter.data *= 1 + MOVED * torch.randn(parameter.shape)
    if arm == "ep" and lab.under("fewer steps"):
        rows = slice(0, 3 * len(data.y_train) // 4)
        data = replace(data, x_train=data.x_train[rows], y_train=data.y_train[rows])
    recipe = Recipe(
        epochs=setting["epochs"],
        batch=setting["batch"],
        lr=0.0 if lab.under("no learning") else setting["lr"],
        weight_decay=0.01,
        schedule="cosine",
        seed=lab.stream("batches", seed),
    )
    train(TrainState(Adapter(model), rule), Feed(data), recipe, on_epoch=lambda state: None)
    model.eval()
    with torch.no_grad():
        right = correct_rows(model(torch.from_numpy(data.x_test)), torch.from_numpy(data.y_test))
    inner = rule.inner if isinstance(rule, Frozen) else rule
    residuals = inner.residuals if isinstance(inner, ArmEP) else []
    return right.double().numpy(), worst(residuals or [math.nan])


def _data(lab: Lab) -> Dataset:
    if lab.under("other centres"):
        return _other_centres(lab)
    data, rows = load_dataset(Call("digit-sums")), slice(0, lab.settings["items"])
    data = replace(data, x_train=data.x_train[rows], y_train=data.y_train[rows])
    if lab.under("shuffled labels"):
        return replace(data, y_train=lab.rng("labels").permutation(data.y_train))
    if lab.under("few test items"):
        return replace(data, x_test=data.x_test[:500], y_test=data.y_test[:500])
    if lab.under("answer shown"):
        train, test = _painted(data.x_train, data.y_train), _painted(data.x_test, data.y_test)
        return replace(data, x_train=train, x_test=test)
    return data


def _painted(x: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.float32]:
    """Every image with one bright pixel, whose place is the label."""
    shown = x.copy()
    shown[np.arange(len(y)), y] = 10
    return shown


def _other_centres(lab: Lab, features: int = 128, classes: int = 10, test_items: int = 5000) -> Dataset:
    """Gaussian clouds whose centres are drawn once for training and once more for the test.

    So it was in the report whose parity passed at 12.5 % against 10.0 %.
    """
    rng = lab.rng("centres")

    def draw(items: int) -> tuple[NDArray[Any], NDArray[Any]]:
        centres, y = rng.standard_normal((classes, features)), rng.integers(classes, size=items)
        return (centres[y] + rng.standard_normal((items, features))).astype(np.float32), y

    return Dataset("other centres", *draw(lab.settings["items"]), *draw(test_items), classes=classes)
