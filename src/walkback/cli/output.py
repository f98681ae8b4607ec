"""What every command shares: one JSON object on stdout, messages and progress on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walkback.core.canonical import plain

if TYPE_CHECKING:
    from rich.console import Console

    from walkback.core.spec import RunSpec

INCOMPLETE, INTERNAL, INTERRUPTED, PIPE = 3, 4, 130, 141
A_WHILE, SOME_HOURS = 10.0, 1e4  # seconds

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
StoreOption = Annotated[str, typer.Option("--store", help="Folder of bundles.")]
Logic = Annotated[str, typer.Option("--logic", help="artifact: (D1 and D2) or D3. paper: each suffices.")]


def check_out(out: Path | None) -> None:
    """Asked before the work that it is for: a report goes into a folder."""
    from walkback.core.errors import BadInput

    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file, not a folder.")


def emit_json(answer: Any) -> None:
    typer.echo(json.dumps(plain(answer), indent=1, ensure_ascii=False, allow_nan=False))


def emit_error(kind: str, message: str, hint: str, as_json: bool) -> None:
    if as_json:
        emit_json({"error": {"kind": kind, "message": message, "hint": hint}})
    else:
        typer.echo(f"walkback: {message} {hint}".rstrip(), err=True)


def stdout_console() -> Console:
    from rich.console import Console

    class Answering(Console):
        def on_broken_pipe(self) -> None:
            """Whoever read along, as `head` does, has seen enough; rich would end the process here."""
            raise BrokenPipeError

    return Answering(highlight=False, markup=False)  # a path may have brackets


def say(message: str) -> None:
    """A word on stderr, so that stdout stays the answer."""
    typer.echo(message, err=True)


@contextlib.contextmanager
def counted(first: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """A bar for things that are counted; silent where nobody watches."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(first, total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


class RunProgress:
    """A bar per running run and one for all, with the time left; silent where nobody watches.

    `steps` is the length of every run, `done` those that were finished before.
    """

    def __init__(self, steps: Mapping[RunSpec, int], done: Container[RunSpec] = ()) -> None:
        self._lengths = steps
        self._steps = {spec: length for spec, length in steps.items() if spec in done}
        self._made, self._moved = 0, 0.0
        self._bars: dict[RunSpec, Any] = {}

    @contextlib.contextmanager
    def shown(self) -> Iterator[RunProgress]:
        self._progress = None
        if not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        # A step of one net may take ten times that of another: half a minute says nothing of a day. rich
        # estimates from at most 1000 advances, so that the bar of all runs is moved now and then.
        bars = Progress(
            *columns, console=Console(stderr=True), transient=True, speed_estimate_period=SOME_HOURS
        )
        with bars as self._progress:
            total, done = sum(self._lengths.values()), sum(self._steps.values())
            self._all = self._progress.add_task("all runs", total=total, completed=done)
            yield self

    def end(self, spec: RunSpec, failure: object | None) -> None:
        """A run that is over has nothing left, wherever it stopped; one that failed is named at once."""
        if failure is not None:
            say(str(failure))
        if self._progress is not None:
            self._leave_out(self._lengths[spec] - self._steps.get(spec, 0))
            self._steps[spec] = self._lengths[spec]
            self._move()
            if spec in self._bars:
                self._progress.update(self._bars[spec], visible=False)

    def __call__(self, spec: RunSpec, step: int, steps: int) -> None:
        if self._progress is None:
            return
        if spec not in self._bars:
            label = f"{spec.net.name} {spec.rule.name} seed {spec.seed}"
            self._bars[spec] = self._progress.add_task(label, total=steps)
            self._leave_out(step - 1)  # what it has from before took no time now
            self._steps[spec] = step - 1
        self._progress.update(self._bars[spec], completed=step, visible=step < steps)
        self._made += step - self._steps[spec]
        self._steps[spec] = step
        if time.monotonic() - self._moved > A_WHILE:
            self._move()

    def _move(self) -> None:
        assert self._progress is not None
        self._progress.advance(self._all, self._made)
        self._made, self._moved = 0, time.monotonic()

    def _leave_out(self, steps: int) -> None:
        """Steps that will not be made here: the rate of those that are must not be taken over them."""
        assert self._progress is not None
        self._progress.update(self._all, total=(self._progress.tasks[0].total or 0) - steps)
