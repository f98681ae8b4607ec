"""Track 6: under feedback alignment the net comes to agree with feedback that was drawn at random."""

from __future__ import annotations

import copy
import math
from statistics import fmean

import torch
from torch import Tensor

from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.data.feed import Feed
from walkback.measure.nulls import mean_cosines
from walkback.measure.rows import correct_rows
from walkback.nets import Adapter
from walkback.nets.mlp import MLP
from walkback.nets.trace import Trace
from walkback.rules.fa import LayerFA
from walkback.rules.patching import Layer
from walkback.rules.transport import drawn_like_weight, key_of
from walkback.tracks.equilibrium import farthest, least, worst
from walkback.tracks.lab import Lab
from walkback.tracks.track import Control, Decision, Gate, IdentityGate, Track
from walkback.train import Recipe, TrainState, train

Batch = tuple[Tensor, Tensor]
DRAWS = 199  # the smallest rank p is then 1/200

track = Track(
    id=6,
    name="Feedback alignment aligns",
    claim="Trained by feedback alignment, a net comes to agree with feedback that was drawn at random: the "
    "cosine between its credits and backprop's grows, beyond what feedback drawn anew would give.",
    purpose="It is why feedback alignment works at all, and it is easily claimed of feedback that is never "
    "used.",
    limits="A plain MLP of three layers on 8×8 digits, which are easy. That the credits agree says nothing "
    "of deep nets, nor that agreement is what makes a rule learn.",
    improve="Deeper nets and harder tasks; the angle of every layer over time; other forms of the rule.",
    arms={
        "feedback alignment": "fa(form=layer): every Wᵀ of the backward pass replaced by a fixed random Bᵀ",
        "fresh B": f"the same trained net, credits through {DRAWS} new draws of B",
    },
    gates=(
        IdentityGate(
            "B is used", "Smallest relative change of a layer's gradient with B redrawn", at_least=0.1
        ),
        Gate("unaligned at first", "Largest mean cosine before training", at_least=-0.2, at_most=0.2),
        Gate("learned", "Lowest test accuracy", at_least=50, unit="%"),
    ),
    decisions=(
        Decision("grows", "Smallest growth of the mean cosine in training", at_least=0.1),
        Decision("beyond chance", "Largest rank p of that cosine among fresh draws of B", at_most=0.01),
    ),
    controls=(
        Control("B unused", "credits travel through Wᵀ, and B is only for show"),
        Control("B is W", "B is a copy of the initial weights"),
        Control("B redrawn", "another B is drawn for every step of training"),
        Control("another B", "agreement is measured with a B that the net was not trained with"),
        Control("no learning", "the learning rate is 0"),
    ),
    level={"quick": "directional", "full": "conclusive"},
    quick={"seeds": 3, "epochs": 10, "depth": 2, "width": 64, "batch": 64, "lr": 2e-3},
    full={"seeds": 10, "epochs": 40, "depth": 2, "width": 64, "batch": 64, "lr": 2e-3},
)


@track.experiment
def alignment(lab: Lab) -> None:
    """Train MLPs on 8×8 digits by layer-form feedback alignment. Before and after, take the cosine between
    the rule's credits and backprop's at every layer on the test items, averaged over layers and items; and
    after training, that of credits through newly drawn feedback."""
    feed = Feed(load_dataset(Call("digits")))
    batch = feed.test_batch(slice(None))
    pairs = [_draw(lab, seed, batch) for seed in range(lab.settings["seeds"])]
    lab.report("B is used", least(_change_with_b(lab, *pair, batch) for pair in pairs))
    before = [_agreement(lab, *pair, batch) for pair in pairs]
    lab.report("unaligned at first", farthest(before, 0))
    accuracies = [_train(lab, *pair, feed, seed) for seed, pair in enumerate(pairs)]
    lab.report("learned", least(accuracies))
    after = [_agreement(lab, *pair, batch) for pair in pairs]
    lab.report("grows", least(b - a for a, b in zip(before, after, strict=True)))
    nulls = [_null(lab, *pair, batch, seed) for seed, pair in enumerate(pairs)]
    ranks = [_rank_p(value, null) for value, null in zip(after, nulls, strict=True)]
    lab.report("beyond chance", worst(ranks), draws=DRAWS)
    for seed, null in enumerate(nulls):
        lab.row(
            seed=seed,
            cosine_before=before[seed],
            cosine_after=after[seed],
            null_mean=float(null.mean()),
            null_sd=float(null.std()),
            p=ranks[seed],
            accuracy=accuracies[seed],
        )
    lab.tell(
        difference=f"The mean cosine goes from {farthest(before, 0):+.3f} at most to {least(after):+.3f} "
        f"at least; with B drawn anew it is {float(torch.cat(nulls).mean()):+.3f}.",
        interpretation="The forward weights have turned towards the feedback they were taught through, and "
        "towards no other.",
    )


class ArmFA(LayerFA):
    """Layer-form feedback alignment, but for the one thing that the lab has broken."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(form="layer")
        self.lab = lab

    def feedback(self, path: str, layer: Layer) -> Tensor:
        if self.lab.under("B unused"):
            return layer.weight.detach()
        if self.lab.under("B redrawn") and self.training:
            return drawn_like_weight(layer, torch.default_generator)
        return super().feedback(path, layer)

    def copy_weights(self, net: Adapter) -> None:
        for path, layer in self.layers(net).items():
            self.get_buffer(key_of(path)).copy_(layer.weight.detach())


def _draw(lab: Lab, seed: int, batch: Batch) -> tuple[Adapter, ArmFA]:
    torch.manual_seed(lab.stream("init", seed))
    net = Adapter(MLP(64, 10, depth=lab.settings["depth"], width=lab.settings["width"]))
    rule = ArmFA(lab).eval()
    rule.setup(net.probe(*batch), lab.generator("feedback", seed))
    if lab.under("B is W"):
        rule.copy_weights(net)
    return net, rule


def _train(lab: Lab, net: Adapter, rule: ArmFA, feed: Feed, seed: int) -> float:
    """Test accuracy in per cent."""
    setting = lab.settings
    lr = 0.0 if lab.under("no learning") else setting["lr"]
    seed = lab.stream("batches", seed)
    recipe = Recipe(setting["epochs"], setting["batch"], lr, 0.0, "constant", seed)
    rule.train()
    train(TrainState(net, rule), feed, recipe, on_epoch=lambda state: None)
    rule.eval()
    x, y = feed.test_batch(slice(None))
    with torch.no_grad():
        return 100 * float(correct_rows(net.model(x), y).double().mean())


def _agreement(lab: Lab, net: Adapter, rule: ArmFA, batch: Batch) -> float:
    """The cosine between credits and reference, averaged over layers and items."""
    trace = net.probe(*batch)
    asked = _redrawn(rule, trace, lab.generator("another B")) if lab.under("another B") else rule
    return fmean(mean_cosines(asked.credits(trace), trace))


def _null(lab: Lab, net: Adapter, rule: ArmFA, batch: Batch, seed: int) -> Tensor:
    trace, generator = net.probe(*batch), lab.generator("null", seed)
    drawn = [mean_cosines(_redrawn(rule, trace, generator).credits(trace), trace) for _ in range(DRAWS)]
    return torch.tensor(drawn).mean(dim=1)


def _rank_p(observed: float, null: Tensor) -> float:
    """One-sided, counting the observed one itself; NaN has no rank, nor is there one among NaN."""
    if math.isnan(observed) or bool(null.isnan().any()):
        return math.nan
    return (1 + int((null >= observed).sum())) / (1 + len(null))


def _change_with_b(lab: Lab, net: Adapter, rule: ArmFA, batch: Batch) -> float:
    """What a new B does to the gradients of the layers that are taught through one; the head's is exact."""
    trace = net.probe(*batch)
    other = _redrawn(rule, trace, lab.generator("redrawn"))
    pairs = zip(_gradients(rule, net, batch), _gradients(other, net, batch), strict=True)
    return least(float((a - b).norm() / a.norm()) for a, b in pairs)


def _gradients(rule: ArmFA, net: Adapter, batch: Batch) -> list[Tensor]:
    for parameter in net.model.parameters():
        parameter.grad = None
    rule.deposit_gradients(net, *batch)
    assert net.head is not None
    head = {id(p) for p in net.head.parameters()}
    return [p.grad for p in net.model.parameters() if id(p) not in head and p.grad is not None]


def _redrawn(rule: ArmFA, trace: Trace, generator: torch.Generator) -> ArmFA:
    fresh = copy.copy(rule)
    fresh._buffers = {}
    fresh.setup(trace, generator)
    return fresh
