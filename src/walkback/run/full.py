"""The full tier of a stored run, from its checkpoint and evaluation batch: no data set needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from walkback.core.canonical import sha256
from walkback.core.errors import BadInput
from walkback.core.quantities import Measurements
from walkback.core.spec import RunSpec
from walkback.core.streams import stream_seed
from walkback.measure.full import measure_full
from walkback.measure.nulls import DRAWS
from walkback.nets import Adapter, build_net
from walkback.rules import Rule, make_rule
from walkback.run.pool import one_thread
from walkback.store import Bundle, Store
from walkback.store.bundle import Arrays, Member

ROWS = 128  # of the evaluation batch; ours, the paper does not state its own
LATEST = "perturbation.rho_compat@1"  # the quantity that came to the full tier last


def measure_stored(bundle: Bundle, epochs: Sequence[int] | None = None, draws: int = DRAWS) -> list[int]:
    """Measure the full tier at checkpoints (default: the last), add it to the bundle; the epochs done."""
    kept = stored_checkpoints(bundle)
    wanted = list(epochs) if epochs is not None else [max(kept)]
    missing = sorted(set(wanted) - set(kept))
    if missing:
        raise BadInput(
            f"{bundle.path.name} has no checkpoint of epoch {missing[0]}.", f"It has {sorted(kept)}."
        )
    with Store(bundle.path.parent).hold(bundle.path.name):
        bundle.refresh()  # what others added before this process held it must stay listed
        for epoch in wanted:
            _store_tier(bundle, epoch, _measure(bundle, epoch, draws).to_csv().encode())
    return wanted


def _store_tier(bundle: Bundle, epoch: int, data: bytes) -> None:
    """What is listed is never written over: a tier that was measured before is dropped for the new one."""
    first = f"full/epoch-{epoch:04d}"
    before = [name for name in bundle.members("full") if name.startswith(first)]
    name = f"{first}-{sha256(data)[:12]}.csv" if before else f"{first}.csv"
    if name not in before:
        bundle.commit([Member(name, "full", data, epoch)], drop=before)


def stored_checkpoints(bundle: Bundle) -> dict[int, str]:
    """The epochs from which a run can be built again."""
    if "rule" not in bundle.spec or "epochs" not in bundle.spec:
        raise BadInput(f"{bundle.path.name} was captured from a model; its net cannot be built again.")
    kept = bundle.checkpoint_epochs()
    if not kept:
        raise BadInput(f"{bundle.path.name} has no checkpoints.", "A light copy is without its weights.")
    return kept


def measure_missing(bundle: Bundle, epochs: Sequence[int], draws: int = DRAWS) -> list[int]:
    """Measure those of the epochs whose checkpoint is there and whose full tier is not; the epochs done.

    A tier that an older walkback measured without all of today's quantities is measured again.
    """
    table, kept = bundle.measurements(), bundle.checkpoint_epochs()
    wanted = [e for e in epochs if e in kept and table.get(LATEST, e, 0) is None]
    return measure_stored(bundle, wanted, draws) if wanted else []


def _measure(bundle: Bundle, epoch: int, draws: int) -> Measurements:
    net, rule, x, y = restore_run(bundle, epoch)
    seed = stream_seed(int(bundle.spec["seed"]), "full tier", epoch)
    with one_thread(), net.evaluating():
        trace = net.probe(x[:ROWS], y[:ROWS])
        generator = torch.Generator().manual_seed(seed)
        return measure_full(trace, rule, epoch, generator, draws=draws, compat=True)


def restore_run(bundle: Bundle, epoch: int) -> tuple[Adapter, Rule, Tensor, Tensor]:
    """Net and rule as they were at a checkpoint, and the evaluation batch as the net takes it."""
    spec = RunSpec.from_dict(bundle.spec)
    arrays = bundle.arrays(bundle.checkpoint_epochs()[epoch])
    x, y = eval_batch(bundle)
    net = Adapter(build_net(spec.net, int(np.prod(x.shape[1:])), bundle.card["data"]["classes"]))
    rule = make_rule(spec.rule)
    with net.evaluating():
        rule.setup(net.probe(x[:2], y[:2]), torch.Generator())
    try:
        net.model.load_state_dict(_part(arrays, "net"))
        rule.load_state_dict(_part(arrays, "rule"))
    except RuntimeError:
        raise BadInput(
            f"The checkpoint of {bundle.path.name} does not fit this walkback's {spec.rule}.",
            "It was made by another version; its stored measurements can still be judged.",
        ) from None
    return net, rule, x, y


def eval_batch(bundle: Bundle) -> tuple[Tensor, Tensor]:
    arrays, data = bundle.arrays("eval.safetensors"), bundle.card["data"]
    x = torch.from_numpy(arrays["x"])
    if "mean" in data:
        channels = (1, -1, *[1] * (x.dim() - 2))
        mean, sd = (torch.tensor(data[key]).view(channels) for key in ("mean", "sd"))
        x = (x / 255 - mean) / sd
    return x, torch.from_numpy(arrays["y"])


def _part(arrays: Arrays, kind: str) -> dict[str, Tensor]:
    found = {name: array for name, array in arrays.items() if name.startswith(f"{kind}/")}
    return {name.removeprefix(f"{kind}/"): torch.from_numpy(array.copy()) for name, array in found.items()}
