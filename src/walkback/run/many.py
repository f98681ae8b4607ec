"""Many runs at once, each in a process with one thread: fast on CPUs, and the same bits every time.

Data sets are read once, by the caller, and sent to each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from walkback.core.errors import WalkbackError
from walkback.core.spec import RunSpec
from walkback.data import Dataset
from walkback.run.code import refuse_other_code
from walkback.run.pool import Report, work_off
from walkback.store import Store

OnProgress = Callable[[RunSpec, int, int], None]


@dataclass(frozen=True)
class Job:
    """What a worker needs beside the data sets, which it was sent before."""

    spec: RunSpec
    store: str
    device: str


@dataclass
class RunFailure:
    """A run that ended with an error. It is reported, never dropped."""

    spec: RunSpec
    error: WalkbackError | None
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.spec.name}: {self.traceback}{self.error or ''}"


OnEnd = Callable[[RunSpec, RunFailure | None], None]


def run_many(
    specs: Sequence[RunSpec],
    store: Store,
    data: Sequence[Dataset],
    *,
    workers: int = 1,
    device: str = "cpu",
    on_progress: OnProgress = lambda spec, step, steps: None,
    on_end: OnEnd = lambda spec, failure: None,
) -> list[RunFailure]:
    """Train every spec that the store does not hold yet on the data set it was planned on; the failures.

    The order of specs is kept; a finished worker takes the next one. Workers die with this process. How a
    run ended is told as it ends, for the others may take days.
    """
    for spec in specs:
        with store.hold(spec.name):
            bundle = store.find(spec.name)
            if bundle is not None:
                refuse_other_code(bundle, spec)
                if bundle.finished:
                    bundle.sweep()
    todo = [spec for spec in specs if not is_finished(store, spec)]
    jobs = [Job(spec, str(store.path), device) for spec in todo]
    needed = [dataset for dataset in data if any(map(dataset.serves, todo))]
    ended = work_off(
        jobs,
        _train,
        needed,
        workers=workers,
        on_progress=lambda job, step, steps: on_progress(job.spec, step, steps),
    )
    failures = []
    for end in ended:
        failure = RunFailure(end.job.spec, end.error, end.traceback) if end.failed else None
        failures += [failure] if failure else []
        on_end(end.job.spec, failure)
    return failures


def is_finished(store: Store, spec: RunSpec) -> bool:
    bundle = store.find(spec.name)
    return bundle is not None and bundle.finished


def _train(job: Job, data: Sequence[Dataset], report: Report) -> None:
    """One run, in a worker."""
    from walkback.run.one import run_one

    spec = job.spec
    dataset = next(held for held in data if held.serves(spec))
    run_one(
        spec,
        dataset,
        Store(Path(job.store)),
        device=job.device,
        on_progress=lambda progress: report(progress.step, progress.steps),
    )
