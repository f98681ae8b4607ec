"""One run from its spec to its bundle: train, measure after each epoch, store, resume.

Killed at any moment and started again, it gives the same bytes as a run that was left alone: the
bundle's `resume` member holds all that the loop needs, and is replaced in the same commit as the
measurements it belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from walkback.core.canonical import content_id
from walkback.core.errors import BadInput
from walkback.core.quantities import Measurements
from walkback.core.spec import RunSpec
from walkback.core.streams import stream_seed
from walkback.data import Dataset
from walkback.data.feed import Feed
from walkback.measure import measure_light, measure_rule
from walkback.measure.rows import correct_rows
from walkback.nets import Adapter, build_net
from walkback.nets.trace import Trace
from walkback.rules import Rule, describe_rule, make_rule
from walkback.rules.base import check_credits, feedback_stream
from walkback.run.code import outside_code, refuse_other_code
from walkback.store import Bundle, Store
from walkback.store.bundle import Arrays, Member, pack_arrays, pack_items
from walkback.store.provenance import environment
from walkback.train import Progress, Recipe, TrainState, train

FIRST_CHECKPOINTS = (0, 1, 2, 5, 10, 20, 50)
TEST_BATCH = 2048


def run_one(
    spec: RunSpec,
    dataset: Dataset,
    store: Store,
    *,
    device: str = "cpu",
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Bundle:
    """Train what is not trained yet; the finished bundle."""
    if not dataset.serves(spec):
        raise BadInput(
            f"{spec.name} was planned on other data than {dataset.name} holds now.",
            "The data changed between planning and training; start again.",
        )
    with store.hold(spec.name, wait=5.0):
        bundle = store.find(spec.name)
        if bundle is not None:
            refuse_other_code(bundle, spec)
        if bundle is not None and bundle.finished:
            bundle.sweep()
            return bundle
        run = (
            _Run.resume(bundle, spec, dataset, device)
            if bundle
            else _Run.start(spec, dataset, store, device)
        )
        divergence = train(run.state, run.feed, run.recipe, on_epoch=run.end_epoch, on_progress=on_progress)
        status: dict[str, Any] = {"state": "finished", "epoch": run.state.epoch, "reason": ""}
        if divergence is not None:
            status = {"state": "diverged", "epoch": divergence.epoch, "reason": divergence.reason}
        run.finish(status)
        return run.bundle


@dataclass
class _Run:
    """A run in memory: the loop's state, and what has been measured so far."""

    spec: RunSpec
    dataset: Dataset
    bundle: Bundle
    state: TrainState
    device: torch.device
    table: Measurements = field(default_factory=Measurements)
    correct: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.validation: Feed | None = None
        data = self.dataset
        if self.spec.holdout:
            data, held = data.hold_out(self.spec.holdout)
            self.validation = Feed(held, self.device)
        self.feed = Feed(data, self.device)
        self.recipe = Recipe(
            self.spec.epochs,
            self.spec.batch,
            self.spec.lr,
            self.spec.weight_decay,
            self.spec.schedule,
            self.spec.seed,
        )
        self.kept = kept_epochs(self.spec.epochs)

    @classmethod
    def start(cls, spec: RunSpec, dataset: Dataset, store: Store, device: str) -> _Run:
        state = _fresh_state(spec, dataset, device)
        card = card_of(spec, dataset, state.net)
        bundle = Bundle.create(store.path / spec.name, id=spec.id, spec=spec.to_dict(), card=card)
        bundle.path.mkdir(parents=True, exist_ok=True)
        bundle.sweep()
        run = cls(spec, dataset, bundle, state, torch.device(device))
        x, y = dataset.eval_batch
        start = {"state": "running", "epoch": 0, "reason": ""}
        run.bundle.commit([Member("eval.safetensors", "eval", pack_arrays({"x": x, "y": y}))], status=start)
        run.end_epoch(run.state)
        return run

    @classmethod
    def resume(cls, bundle: Bundle, spec: RunSpec, dataset: Dataset, device: str) -> _Run:
        """From the last commit. A bundle killed before its first one has no resume slot: start over."""
        slot = bundle.one("resume")
        if slot is None:
            return cls.start(spec, dataset, Store(bundle.path.parent), device)
        bundle.sweep()
        state = _fresh_state(spec, dataset, device)
        _load_state(state, bundle.arrays(slot))
        return cls(
            spec, dataset, bundle, state, torch.device(device), bundle.light_tier(), bundle.correct()
        )

    def end_epoch(self, state: TrainState) -> None:
        """Measure, then commit everything that belongs to this epoch at once."""
        self._measure(state)
        epoch = state.epoch
        members = [
            Member(f"working/measurements-{epoch:04d}.csv", "measurements", self.table.to_csv().encode()),
            Member(f"working/items-{epoch:04d}.safetensors", "items", self._items()),
            Member(f"working/resume-{epoch:04d}.safetensors", "resume", pack_arrays(_save_state(state))),
        ]
        if epoch in self.kept:
            members.append(self._checkpoint())
        new = {member.name for member in members}
        old = [name for name in self._working() if name not in new]
        status = {"state": "running", "epoch": epoch, "reason": ""}
        self.bundle.commit(members, drop=old, status=status, environment=here(self.device))

    def finish(self, status: dict[str, Any]) -> None:
        """The last commit: final names, and no resume slot."""
        members = [
            Member("measurements.csv", "measurements", self.table.to_csv().encode()),
            Member("items.safetensors", "items", self._items()),
            self._checkpoint(),
        ]
        self.bundle.commit(members, drop=self._working(), status=status)
        self.bundle.sweep()

    def _working(self) -> list[str]:
        return [name for name in self.bundle.members() if name.startswith("working/")]

    def _items(self) -> bytes:
        return pack_items(self.correct, self.dataset.test_sources)

    def _checkpoint(self) -> Member:
        weights = {k: v for k, v in _save_state(self.state).items() if k.split("/")[0] in ("net", "rule")}
        name = f"checkpoints/epoch-{self.state.epoch:04d}.safetensors"
        return Member(name, "checkpoint", pack_arrays(weights), self.state.epoch)

    def _measure(self, state: TrainState) -> None:
        net, rule, epoch = state.net, state.rule, state.epoch
        with net.evaluating(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.spec.seed, "measurement", epoch))  # for rules that draw
            trace = net.probe(*self.feed.eval_batch())
            # Twice the cost of all else: in float64 only where a checkpoint lets anyone measure again.
            light = measure_light(trace, credits_for(rule, trace), epoch, float64=epoch in self.kept)
            measure_rule(rule, epoch, light)
            self.table.readings += light.readings
            correct, loss = test_items(net, self.feed)
            held = None if self.validation is None else test_items(net, self.validation)[0]
        self.table.add(epoch, "accuracy.test@1", float(correct.mean()))
        if held is not None:
            self.table.add(epoch, "accuracy.validation@1", float(held.mean()))
        self.table.add(epoch, "loss.test@1", loss)
        unmeasured = "not_applicable" if epoch == 0 else ""
        self.table.add(epoch, "loss.train@1", state.train_loss, status=unmeasured)
        self.correct[epoch] = correct


def kept_epochs(epochs: int) -> set[int]:
    """The epochs whose checkpoints stay: dense at first, where most happens, and the last."""
    return {epoch for epoch in (*FIRST_CHECKPOINTS, *range(100, epochs, 50)) if epoch < epochs} | {epochs}


def credits_for(rule: Rule, trace: Trace) -> list[Tensor] | None:
    if not rule.ready:
        return None
    credits = check_credits(rule.credits(trace), trace)
    if {credit.dtype for credit in credits} != {trace.logits.dtype}:
        told = ", ".join(sorted({str(credit.dtype) for credit in credits}))
        raise BadInput(f"The rule gives credits of {told} to states of {trace.logits.dtype}.")
    return credits


def test_items(net: Adapter, feed: Feed) -> tuple[np.ndarray, float]:
    """Which items are classified correctly, and the mean loss. Logits that are NaN are never correct."""
    correct, losses = [], []
    with torch.no_grad():
        for start in range(0, len(feed.y_test), TEST_BATCH):
            x, y = feed.test_batch(slice(start, start + TEST_BATCH))
            logits = net.logits(x)
            correct.append(correct_rows(logits, y).cpu().numpy())
            losses.append(torch.nn.functional.cross_entropy(logits, y, reduction="sum").item())
    return np.concatenate(correct), math.fsum(losses) / len(feed.y_test)


def card_of(spec: RunSpec, dataset: Dataset, net: Adapter) -> dict[str, Any]:
    """What a reader of the bundle needs to know without importing walkback's nets or rules."""
    code = outside_code(spec)
    return {
        "rule": describe_rule(spec.rule),
        "net": {
            "label": str(spec.net),
            "fingerprint": fingerprint(net),
            "layer_index": "0 = stem output, L = deepest",
        },
        "data": {
            "label": str(spec.data),
            "classes": dataset.classes,
            **dataset.identities(),
            **_scaling(dataset),
        },
        "measured": {"mode": "eval", "batch": len(dataset.eval_rows), "reduction": "sum, per sample"},
        "recipe": {"optimizer": "AdamW", "augmentation": dataset.augment, "checkpoint_rule": "last epoch"},
        **({"code": code} if code else {}),
    }


def _scaling(dataset: Dataset) -> dict[str, Any]:
    """How stored bytes become inputs: (x/255 − mean)/sd per channel; nothing where inputs were numbers."""
    return {} if dataset.mean is None else {"mean": list(dataset.mean), "sd": list(dataset.sd or ())}


def fingerprint(net: Adapter) -> str:
    """The net's depth and the shapes of its weights, whatever they are called: is a baseline matched?"""
    shapes = sorted(list(parameter.shape) for parameter in net.model.parameters())
    return content_id({"depth": net.depth, "shapes": shapes})


def here(device: torch.device) -> dict[str, Any]:
    capability = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""
    return environment(threads=torch.get_num_threads(), instruction_set=capability, device=device.type)


def _fresh_state(spec: RunSpec, dataset: Dataset, device: str) -> TrainState:
    """A net and a rule as they are before the first step, each from a stream of its own."""
    features = int(np.prod(dataset.x_train.shape[1:]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(spec.seed, "init"))
        model = build_net(spec.net, features, dataset.classes)
    net, rule = Adapter(model.to(device)), make_rule(spec.rule)
    y = torch.zeros(2, dtype=torch.long)
    x = torch.zeros(2, *dataset.x_train.shape[1:])
    with net.evaluating():
        rule.setup(net.probe(x, y), feedback_stream(spec.seed))
    return TrainState(net, rule.to(device))


def _save_state(state: TrainState) -> Arrays:
    """net/…, rule/…, moments/… and the scalars, as arrays."""
    tensors = {
        **{f"net/{name}": value for name, value in state.net.model.state_dict().items()},
        **{f"rule/{name}": value for name, value in state.rule.state_dict().items()},
        **{f"moments/{name}": value for name, value in state.moments.items()},
    }
    arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    return {**arrays, "epoch": np.array([state.epoch]), "train_loss": np.array([state.train_loss])}


def _load_state(state: TrainState, arrays: Arrays) -> None:
    device = state.net.device

    def part(kind: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(f"{kind}/"): torch.from_numpy(array.copy()).to(device)
            for name, array in arrays.items()
            if name.startswith(f"{kind}/")
        }

    state.net.model.load_state_dict(part("net"))
    state.rule.load_state_dict(part("rule"))
    state.moments = part("moments")
    state.epoch = int(arrays["epoch"][0])
    state.train_loss = float(arrays["train_loss"][0])
