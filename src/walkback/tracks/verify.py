"""verify: many tracks at once, kept on disk as they end, and one answer for all of them."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from walkback.core.errors import BadInput
from walkback.judge.verification import Verification
from walkback.run.pool import Ended, Report, work_off
from walkback.tracks import Track
from walkback.tracks.find import find_tracks, read_tracks
from walkback.tracks.kept import find_arm, keep_arm, key_of
from walkback.tracks.runner import Arm, arms_of, judge, run_arm

OnProgress = Callable[[str, int, int], None]
Tell = Callable[["Job", int, int], None]


def verify(
    *wanted: int | str | Track,
    file: str | Path | None = None,
    full: bool = False,
    seed: int = 0,
    workers: int = 0,
    out: str | Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Verification:
    """Run tracks by their ids (of a file, or walkback's own), or as objects; without any, all there are.

    With workers every pass through an experiment goes to a process of its own, which gives the same
    numbers; without, and for objects, all run in this process. What has ended is kept in `out/arms`, and is
    not run again while the code and the seed are the same; objects, whose code nobody can look up, always
    are.
    """
    given = [item for item in wanted if isinstance(item, Track)]
    named = [item for item in wanted if not isinstance(item, Track)]
    chosen = [*given, *(find_tracks(named, file) if named or not given else [])]
    twice = [name for name, count in Counter(str(track.id) for track in chosen).items() if count > 1]
    if twice:
        raise BadInput(f"Two of these tracks have the id {twice[0]!r}.", "Numbers go by it: change one.")
    folder = "" if out is None or given else str(Path(out).resolve() / "arms")
    plan = {
        track: [Job(track.source, str(track.id), arm, seed, full, folder) for arm in arms_of(track)]
        for track in chosen
    }
    jobs = [(track, job) for track, planned in plan.items() for job in planned]
    found = {job: arm for track, job in jobs if (arm := _kept(track, job)) is not None}
    kept = len(found)
    todo = [(track, job) for track, job in jobs if job not in found]

    def tell(job: Job, done: int, total: int) -> None:
        on_progress(f"{job.label} ({done} of {total})", len(found), len(jobs))

    for job, arm in _run_here(todo, tell) if given or not workers else _run_apart(todo, tell, workers):
        found[job] = arm
        on_progress(job.label, len(found), len(jobs))
    verdicts = [
        judge(track, [found[job] for job in planned], seed=seed, full=full)
        for track, planned in plan.items()
    ]
    traces = {job.label: found[job].trace for _, job in jobs if found[job].trace}
    return Verification(verdicts, seed, "full" if full else "quick", kept, traces)


@dataclass(frozen=True)
class Job:
    """One pass through an experiment: where its track is found, and what it is run under."""

    source: str
    track: str
    control: str | None
    seed: int
    full: bool
    folder: str

    @property
    def label(self) -> str:
        return f"track {self.track}: {self.control or 'the claim'}"

    @property
    def store(self) -> Path | None:
        return Path(self.folder) if self.folder else None


def _kept(track: Track, job: Job) -> Arm | None:
    key = key_of(track, job.control, seed=job.seed, full=job.full)
    return find_arm(job.store, key, track, job.control)


def _run(track: Track, job: Job, report: Report) -> Arm:
    key, started = key_of(track, job.control, seed=job.seed, full=job.full), time.time()
    arm = run_arm(track, job.control, seed=job.seed, full=job.full, on_progress=report)
    keep_arm(job.store, key, arm, started)
    return arm


def _run_here(todo: Sequence[tuple[Track, Job]], tell: Tell) -> Iterator[tuple[Job, Arm]]:
    for track, job in todo:
        yield job, _run(track, job, functools.partial(tell, job))


def _run_apart(todo: Sequence[tuple[Track, Job]], tell: Tell, workers: int) -> Iterator[tuple[Job, Arm]]:
    jobs = [job for _, job in todo]
    for ended in work_off(jobs, _in_worker, workers=workers, fresh=True, on_progress=tell):
        yield ended.job, _lost(ended) if ended.failed else ended.result


def _in_worker(job: Job, held: None, report: Report) -> Arm:
    return _run(_track_of(job.source, job.track), job, report)


@functools.cache
def _track_of(source: str, name: str) -> Track:
    return read_tracks(Path(source))[name] if source else find_tracks([name])[0]


def _lost(ended: Ended) -> Arm:
    """A process that died under an experiment is that experiment's error."""
    said = str(ended.error) if ended.error else ended.traceback.strip().splitlines()[-1]
    return Arm(ended.job.control, error=said, trace=ended.traceback)
