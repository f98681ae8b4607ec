"""Work for several processes with one thread each: fast on CPUs, and the same bits every time."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from walkback.core.errors import FileTrouble, WalkbackError
from walkback.core.outside import fault_of_others

_AGAIN = "Run the same command again: it goes on from what was kept."
PATIENCE = 2.0  # seconds until it is looked whether a silent worker is still there
# One thread each; and what is freed stays with the worker (glibc's malloc, others do not look). Left to
# itself it hands large buffers back and is given pages of zeros for the next ones: 28,000 page faults and a
# third of the time in a step of SmallResNet at a batch of 128.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the most that glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
}
Report = Callable[[int, int], None]
Work = Callable[[Any, Any, Report], Any]  # (job, what every worker holds, report of done and total)


class WorkerDied(WalkbackError):
    """A process that was killed from outside: out of memory, or by hand. No fault of the input."""

    kind = "worker_died"
    exit_code = 130  # interrupted, by whomever: the same command goes on


@dataclass(frozen=True)
class Ended:
    """A job that is over: with its result, or with an error, which is reported and never dropped."""

    job: Any
    result: Any = None
    failed: bool = False
    error: WalkbackError | None = None
    traceback: str = ""


def work_off(
    jobs: Sequence[Any],
    work: Work,
    held: Any = None,
    *,
    workers: int = 1,
    fresh: bool = False,
    on_progress: Callable[[Any, int, int], None] = lambda job, done, total: None,
) -> Iterator[Ended]:
    """Jobs as they end. They are begun in order; a worker that is free takes the next one.

    `work` is a function of a module, and `held` is sent to each worker once it runs. Workers die with
    this process, however it goes, and print to stderr. With `fresh` every job has a process of its own, in
    which nothing has run before, and which may start processes in turn.
    """
    pool = _Pool(min(workers, len(jobs)), work, held, fresh)
    try:
        yield from pool.work_off(jobs, on_progress)
    finally:
        pool.close()


class _Pool:
    def __init__(self, workers: int, work: Work, held: Any, fresh: bool) -> None:
        self.work, self.held, self.fresh = work, held, fresh
        self.context = _ready_context() if fresh else mp.get_context("spawn")
        self.ends: dict[Connection, mp.process.BaseProcess] = {}
        for end in [self._launch() for _ in range(workers)]:
            self._send(end, held)

    def _start(self) -> Connection:
        end = self._launch()
        self._send(end, self.held)
        return end

    def _launch(self) -> Connection:
        here, there = self.context.Pipe()
        given = (there, self.work)
        process = self.context.Process(target=_worker, args=given, daemon=not self.fresh)
        with _worker_environment():
            process.start()
        there.close()
        self.ends[here] = process
        return here

    def _send(self, end: Connection, message: Any) -> None:
        """To a worker that may be dead: that is heard when it is listened to.

        What is large goes this way and not with the process: while it starts, this side holds the other
        end open too, and would write to a dead worker for ever.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            end.send(message)

    def work_off(
        self, jobs: Sequence[Any], on_progress: Callable[[Any, int, int], None]
    ) -> Iterator[Ended]:
        queue, busy = list(jobs), {}
        for end in list(self.ends)[: len(queue)]:
            busy[end] = self._give(end, queue)
        while busy:
            wait([*busy, *(self.ends[end].sentinel for end in busy)], PATIENCE)
            for end in list(busy):
                alive = self.ends[end].is_alive()  # asked first: what it said last is still heard
                if alive and not end.poll():
                    continue
                kind, payload = self._hear(end)
                if kind == "progress":
                    on_progress(busy[end], *payload)
                    continue
                job = busy.pop(end)
                if queue:
                    if self.fresh:
                        self._retire(end)
                    free = self._start() if self.fresh or kind == "died" else end
                    busy[free] = self._give(free, queue)
                yield Ended(job, payload) if kind == "done" else Ended(job, None, True, *payload)

    def _hear(self, end: Connection) -> tuple[str, Any]:
        """What it says, or that it is dead. Its children may hold the pipe open, but they are not it."""
        if end.poll():
            with contextlib.suppress(EOFError, ConnectionResetError):
                return end.recv()
        self.ends[end].join()
        code = self.ends[end].exitcode
        return "died", (WorkerDied(f"Its worker process died (exit code {code}).", _AGAIN), "")

    def _give(self, end: Connection, queue: list[Any]) -> Any:
        job = queue.pop(0)
        self._send(end, job)
        return job

    def _retire(self, end: Connection) -> None:
        process = self.ends.pop(end)
        end.close()
        process.terminate()
        process.join()

    def close(self) -> None:
        for end in list(self.ends):
            self._retire(end)


def _ready_context() -> Any:
    """Processes that begin with torch loaded, where the system can fork a clean one; else from nothing."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "walkback.tracks.runner"])
    return context


class _worker_environment:
    """Libraries read it as they are loaded, so that it is set before the worker starts."""

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
        os.environ.update(WORKER_ENVIRONMENT)

    def __exit__(self, *exc: object) -> None:
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """What this process computes meanwhile has the bits that a worker gives it."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _worker(end: Connection, work: Work) -> None:
    """Take what all jobs share, then jobs until the pipe closes."""
    _die_with_parent()
    os.dup2(2, 1)  # stdout is for the answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    import torch

    torch.set_num_threads(1)
    try:
        held = end.recv()
    except EOFError:
        return
    while True:
        try:
            job = end.recv()
        except EOFError:
            return
        try:
            end.send(("done", work(job, held, _throttled(end))))
        except Exception as error:
            end.send(("failed", told(error)))


def told(error: Exception) -> tuple[WalkbackError | None, str]:
    """An error in words; one that is a bug, of others or of ours, with the lines that show where."""
    if isinstance(error, WalkbackError):
        return error, ""
    if isinstance(error, OSError):
        return FileTrouble.told(error), ""
    return fault_of_others(error), "".join(traceback.format_exception(error))


def _throttled(end: Connection) -> Report:
    """Report at most a few times a second, and the end: progress must not cost working time."""
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.25 or done >= total:
            last = now
            end.send(("progress", (done, total)))

    return report


def _die_with_parent() -> None:
    """End this process as soon as the parent is gone, however it went."""
    parent = mp.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
