"""Track "reference": D2 does not move with the batch size or the fit, and sees a swallowed reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from walkback.core.spec import Call
from walkback.data import Dataset, load_dataset
from walkback.measure import measure_light
from walkback.nets import Adapter, build_net
from walkback.tracks import Control, Decision, Gate, Lab, Track
from walkback.tracks.equilibrium import least, worst

SIZES = (32, 128, 400)
BLOWN_UP = 1e9  # of the last block's output: what DFA reaches by itself on CIFAR-10

track = Track(
    id="reference",
    name="Reference validity",
    claim="D2 calls a fitted backprop net sound and an exploded one not, whatever the batch and the fit.",
    purpose="The published number is mean-reduced: it falls with the batch, and as a healthy net fits.",
    limits="One small residual net on digits; it is exploded by hand, not by a learning rule.",
    improve="Explode it by DFA itself, and add nets without a terminal norm.",
    arms={"fitted": "backprop until the data is fitted", "exploded": "the same net, its last block × 1e9"},
    gates=(Gate("fit", "Median ‖e‖ of the fitted net", at_most=0.02),),
    decisions=(
        Decision("sound", "Smallest r/128 of the fitted net over batch sizes", at_least=1e-7),
        Decision("swallowed", "Largest r/128 of the exploded net over batch sizes", at_most=1e-7),
        Decision("moves", "Largest over smallest r/128 of a net over batch sizes", at_most=3.0),
        Decision("fitting", "Factor between r/128 before and after fitting", at_most=50.0),
    ),
    controls=(
        Control("mean-reduced", "the gradient is mean-reduced, as in the paper"),
        Control("error kept", "the size of the error is not divided out"),
        Control("never exploded", "the exploded net is not exploded"),
        Control("both exploded", "the fitted net is exploded as well"),
        Control("not fitted", "the net is not trained"),
    ),
    level={"quick": "directional", "full": "directional"},
    quick={"steps": 400, "width": 32},
    full={"steps": 2000, "width": 128},
)


@track.experiment
def measure_both(lab: Lab) -> None:
    """A residual MLP with a terminal norm is fitted to digits by backprop, then exploded by multiplying its
    last block's output weights. D2's value is read on batches of 32, 128 and 400 training rows.
    """
    data = load_dataset(Call("digits"))
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    net = _fitted(lab, data, 0 if lab.under("not fitted") else lab.settings["steps"])
    before = _value(lab, _fitted(lab, data, 0), x[:128], y[:128])
    lab.report("fit", _read(net, x, y, "error_norm"))
    read = {}
    for name, times in _blown_up(lab).items():
        with torch.no_grad():
            net.blocks[-1].fc2.weight.mul_(times)  # type: ignore[operator, union-attr]
        read[name] = [_value(lab, net, x[:n], y[:n]) for n in SIZES]
    for name, values in read.items():
        for size, value in zip(SIZES, values, strict=True):
            lab.row(net=name, batch=size, value=value)
    lab.report("sound", smallest := least(read["fitted"]))
    lab.report("swallowed", largest := worst(read["exploded"]))
    lab.report("moves", moves := worst(_factor(values) for values in read.values()))
    lab.report("fitting", _factor([before, read["fitted"][1]]))
    lab.tell(
        difference=f"{smallest:.1e} against {largest:.1e}; the batch moves "
        f"either by a factor of {moves:.2f} at most.",
        interpretation="D2 tells scale from fit, and does not depend on how many rows were measured.",
    )


def _blown_up(lab: Lab) -> dict[str, float]:
    """How many times larger the last block's output is made before each of the two readings."""
    if lab.under("both exploded"):
        return {"fitted": BLOWN_UP, "exploded": 1.0}
    return {"fitted": 1.0, "exploded": 1.0 if lab.under("never exploded") else BLOWN_UP}


def _factor(values: Sequence[float]) -> float:
    """Largest over smallest; infinite if one is 0, NaN if one is NaN."""
    smallest = least(values)
    return worst(values) / smallest if smallest else math.inf


def _fitted(lab: Lab, data: Dataset, steps: int) -> Adapter:
    torch.manual_seed(lab.stream("init"))
    width = lab.settings["width"]
    model = build_net(Call.parse(f"resmlp(width={width})"), data.x_train[0].size, data.classes)
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = torch.randint(len(y), (128,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return Adapter(model)


def _value(lab: Lab, net: Adapter, x: Tensor, y: Tensor) -> float:
    """D2's `r/128`, or what a careless reading would put in its place."""
    if lab.under("mean-reduced"):
        return _read(net, x, y, "compat")
    value = _read(net, x, y, "validity")
    return value * _read(net, x, y, "error_norm") if lab.under("error kept") else value


def _read(net: Adapter, x: Tensor, y: Tensor, name: str) -> float:
    with net.evaluating():
        found = measure_light(net.probe(x, y), None, 0, float64=False).number(f"reference.{name}@1", 0)
    return math.nan if found is None else found
