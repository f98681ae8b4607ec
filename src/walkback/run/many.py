"""Many runs at once, each in a process with one thread: fast on CPUs, and the same bits every time.

Data sets are read once, by the caller, and handed to each worker as it starts.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from walkback.core.errors import WalkbackError
from walkback.core.spec import RunSpec
from walkback.data import Dataset
from walkback.store import Store

_AGAIN = "Run the same command again: it goes on from the last checkpoint."
OnProgress = Callable[[RunSpec, int, int], None]


@dataclass(frozen=True)
class Job:
    """What a worker needs beside the data sets, which it has from the start."""

    spec: RunSpec
    store: str
    device: str


class WorkerDied(WalkbackError):
    """A process that was killed from outside: out of memory, or by hand. No fault of the input."""

    kind = "worker_died"
    exit_code = 4


@dataclass
class RunFailure:
    """A run that ended with an error. It is reported, never dropped."""

    spec: RunSpec
    error: WalkbackError | None
    traceback: str = ""


def run_many(
    specs: Sequence[RunSpec],
    store: Store,
    data: Sequence[Dataset],
    *,
    workers: int = 1,
    device: str = "cpu",
    on_progress: OnProgress = lambda spec, step, steps: None,
) -> list[RunFailure]:
    """Train every spec that the store does not hold yet on the data set it was planned on; the failures.

    The order of specs is kept; a finished worker takes the next one. Workers die with this process.
    """
    for spec in specs:
        with store.hold(spec.name):
            bundle = store.find(spec.name)
            if bundle is not None and bundle.finished:
                bundle.sweep()
    todo = [spec for spec in specs if not is_finished(store, spec)]
    jobs = [Job(spec, str(store.path), device) for spec in todo]
    if not jobs:
        return []
    wanted = {spec.data_identity for spec in todo}
    pool = _Pool(min(workers, len(jobs)), [dataset for dataset in data if dataset.identity in wanted])
    try:
        return pool.work_off(jobs, on_progress)
    finally:
        pool.close()


def is_finished(store: Store, spec: RunSpec) -> bool:
    bundle = store.find(spec.name)
    return bundle is not None and bundle.finished


class _Pool:
    def __init__(self, workers: int, data: Sequence[Dataset]) -> None:
        self.data = data
        self.ends: dict[Connection, mp.process.BaseProcess] = {}
        for _ in range(workers):
            self._start()

    def _start(self) -> Connection:
        context = mp.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_worker, args=(there, self.data), daemon=True)
        with _quiet_threads():
            process.start()
        there.close()
        self.ends[here] = process
        return here

    def work_off(self, jobs: Sequence[Job], on_progress: OnProgress) -> list[RunFailure]:
        queue, busy, failures = list(jobs), {}, []
        for end in list(self.ends)[: len(queue)]:
            busy[end] = self._give(end, queue)
        while busy:
            ready = wait(list(busy))
            for end in [end for end in busy if end in ready]:
                kind, payload = self._hear(end)
                if kind == "progress":
                    on_progress(busy[end].spec, *payload)
                    continue
                if kind != "done":
                    failures.append(RunFailure(busy[end].spec, *payload))
                del busy[end]
                if kind == "died":
                    end = self._start()
                if queue:
                    busy[end] = self._give(end, queue)
        return failures

    def _hear(self, end: Connection) -> tuple[str, Any]:
        try:
            return end.recv()
        except (EOFError, ConnectionResetError):
            self.ends[end].join()
            code = self.ends[end].exitcode
            return "died", (WorkerDied(f"Its worker process died (exit code {code}).", _AGAIN), "")

    def _give(self, end: Connection, queue: list[Job]) -> Job:
        job = queue.pop(0)
        end.send(job)
        return job

    def close(self) -> None:
        for end, process in self.ends.items():
            end.close()
            process.terminate()
            process.join()


class _quiet_threads:
    """Thread counts are read when a library is loaded, so they are set before the worker starts."""

    NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in self.NAMES}
        os.environ.update(dict.fromkeys(self.NAMES, "1"))

    def __exit__(self, *exc: object) -> None:
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _worker(end: Connection, data: Sequence[Dataset]) -> None:
    """Take jobs until the pipe closes."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    import torch

    torch.set_num_threads(1)
    from walkback.run.one import run_one

    while True:
        try:
            job: Job = end.recv()
        except EOFError:
            return
        spec = job.spec
        try:
            dataset = next(held for held in data if held.identity == spec.data_identity)
            run_one(spec, dataset, Store(Path(job.store)), device=job.device, on_progress=_throttled(end))
            end.send(("done", None))
        except WalkbackError as error:
            end.send(("failed", (error, "")))
        except Exception:
            end.send(("failed", (None, traceback.format_exc())))


def _throttled(end: Connection) -> Callable[..., None]:
    """Report at most a few times a second: progress must not cost training time."""
    import time

    last = 0.0

    def report(progress: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.25:
            last = now
            end.send(("progress", (progress.step, progress.steps)))  # type: ignore[attr-defined]

    return report


def _die_with_parent() -> None:
    """End this process as soon as the parent is gone, however it went."""
    parent = mp.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
