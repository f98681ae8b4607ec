"""Training from the command line: run what is planned, show how far it is, say what went wrong in words."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from walkback.cli.output import RunProgress, say
from walkback.core.errors import BadInput, WalkbackError
from walkback.core.spec import RunSpec
from walkback.data import Dataset
from walkback.run.many import is_finished, run_many
from walkback.store import Bundle, Store


def train_all(
    specs: Sequence[RunSpec], store: Store, data: Sequence[Dataset], *, workers: int, device: str
) -> list[Bundle]:
    """The bundles of all specs, trained now or found finished. The first failure ends the command."""
    store.refuse_zipped([spec.name for spec in specs])
    items = {dataset.identity: len(dataset.y_train) for dataset in data}
    steps = {spec: spec.epochs * math.ceil(items[spec.data_identity] / spec.batch) for spec in specs}
    done = sum(steps[spec] for spec in specs if is_finished(store, spec))
    with RunProgress(sum(steps.values()), done).shown() as progress:
        failures = run_many(specs, store, data, workers=workers, device=device, on_progress=progress)
    for failure in failures:
        say(f"{failure.spec.name}: {failure.traceback}{failure.error or ''}")
    if failures:
        first = failures[0]
        if first.error is None:
            raise RuntimeError(f"{len(failures)} of {len(specs)} runs failed, first {first.spec.name}")
        several = f"{len(failures)} of {len(specs)} runs failed, first " if len(specs) > 1 else ""
        raise type(first.error)(f"{several}{first.spec.name}: {first.error.message}", first.error.hint)
    bundles = [store.find(spec.name) for spec in specs]
    missing = [spec.name for spec, bundle in zip(specs, bundles, strict=True) if bundle is None]
    if missing:
        raise WalkbackError(f"The store lost {', '.join(missing)} while training.")
    return [bundle for bundle in bundles if bundle is not None]


def default_workers() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_device(name: str) -> None:
    import torch

    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(f"The device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
