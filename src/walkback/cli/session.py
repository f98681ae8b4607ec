"""Training from the command line: run what is planned, show how far it is, say what went wrong in words."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from walkback.cli.output import INCOMPLETE, INTERNAL, RunProgress
from walkback.core.errors import BadInput, WalkbackError
from walkback.core.spec import RunSpec
from walkback.data import Dataset
from walkback.run.many import RunFailure, is_finished, run_many
from walkback.store import Bundle, Store


def train_all(
    specs: Sequence[RunSpec], store: Store, data: Sequence[Dataset], *, workers: int, device: str
) -> list[Bundle]:
    """The bundles of all specs, trained now or found finished; a failure is raised after all have ended."""
    failures = train_what_can_be(specs, store, data, workers=workers, device=device)
    if failures:
        raise first_of(failures, len(specs))
    bundles = [store.find(spec.name) for spec in specs]
    missing = [spec.name for spec, bundle in zip(specs, bundles, strict=True) if bundle is None]
    if missing:
        raise WalkbackError(f"The store lost {', '.join(missing)} while training.")
    return [bundle for bundle in bundles if bundle is not None]


def train_what_can_be(
    specs: Sequence[RunSpec], store: Store, data: Sequence[Dataset], *, workers: int, device: str
) -> list[RunFailure]:
    """Train all specs, and say of each that failed why, as it fails; those."""
    store.refuse_zipped([spec.name for spec in specs])
    items = {dataset.identity: len(dataset.y_train) for dataset in data}
    steps = {spec: spec.epochs * math.ceil(items[spec.data_identity] / spec.batch) for spec in specs}
    done = {spec for spec in specs if is_finished(store, spec)}
    with RunProgress(steps, done).shown() as progress:
        return run_many(
            specs,
            store,
            data,
            workers=workers,
            device=device,
            on_progress=progress,
            on_end=progress.end,
        )


def first_of(failures: Sequence[RunFailure], planned: int) -> Exception:
    """The first failure as the error of the whole command; a bug of ours stays one."""
    first = failures[0]
    several = f"{len(failures)} of {planned} runs failed, first " if planned > 1 else ""
    if first.error is None:
        return RuntimeError(f"{several}{first.spec.name}")
    return type(first.error)(f"{several}{first.spec.name}: {first.error.message}", first.error.hint)


def exit_code(failures: Sequence[RunFailure]) -> int:
    """Of a command that went on without them: its answer is incomplete, or something here is broken."""
    if any(failure.error is None for failure in failures):
        return INTERNAL
    return INCOMPLETE if failures else 0


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
