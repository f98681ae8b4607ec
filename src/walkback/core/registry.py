"""One registry for everything that has a name: rules, nets, data sets.

An entry is a line `name: "package.module:Attribute"`; it is imported when it is first asked for,
so listing names costs nothing. Code outside the package adds its own with `@registry.register(name)`, or,
to be found by the command line and its workers, as an entry point of the group `walkback.rules`,
`walkback.nets`, `walkback.data_sets`, ….
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from walkback.core.errors import BadInput, UnknownName
from walkback.core.outside import OURS, note_outside, package_of, stdout_kept

T = TypeVar("T")


class Registry(Generic[T]):
    """`base` is what every entry of others must be, or be made of, and `needs` what it must have."""

    def __init__(
        self, kind: str, entries: dict[str, str], *, base: type = object, needs: Sequence[str] = ()
    ) -> None:
        self.kind, self.base, self.needs = kind, base, needs
        self._own = dict(entries)
        self._entries: dict[str, str | EntryPoint | T] = dict(entries)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            self._load_plugins()
        if name not in self._entries:
            raise UnknownName(f"Unknown {self.kind} {name!r}.", self._suggest(name))
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = EntryPoint(name, entry, "")
        if isinstance(entry, EntryPoint):
            entry = entry.load() if package_of(entry.module) == OURS else self._load(entry)
            self._entries[name] = entry
        return entry

    def _load(self, point: EntryPoint) -> Any:
        """What another package registered: importing it may print, which is no answer, and may fail."""
        where = f"The {self.kind} {point.name!r} cannot be loaded from {point.value}"
        try:
            with stdout_kept():
                thing = point.load()
        except (Exception, SystemExit) as error:
            told = str(error) if isinstance(error, (ImportError, AttributeError)) else repr(error)
            raise BadInput(f"{where}: {told}.") from error
        if not (isinstance(thing, self.base) or (isinstance(thing, type) and issubclass(thing, self.base))):
            raise BadInput(f"{where}: it is no {self.base.__name__}.")
        missing = [name for name in self.needs if not hasattr(thing, name)]
        if missing:
            raise BadInput(f"{where}: it has no {missing[0]}.")
        note_outside(point.module)
        return thing

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that adds one's own entry under `name`."""

        def add(thing: T) -> T:
            held = self._entries.get(name, thing)
            held = held.value if isinstance(held, EntryPoint) else held
            here = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
            if held is not thing and held != here:  # an entry point may name the same thing
                raise BadInput(f"A {self.kind} named {name!r} is registered already.")
            self._entries[name] = thing
            note_outside(str(getattr(thing, "__module__", "") or OURS))
            return thing

        return add

    def _load_plugins(self) -> None:
        """Entries of other installed packages: entry points of the group `walkback.<kind>s`."""
        group = f"walkback.{self.kind.replace(' ', '_')}s"
        for point in entry_points(group=group):
            if self._own.get(point.name, point.value) != point.value:
                told = f"The {self.kind} {point.name!r} of {point.value} is not used"
                warnings.warn(f"{told}: walkback's own has that name.", stacklevel=2)
            self._entries.setdefault(point.name, point)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def _suggest(self, name: str) -> str:
        available = "Available: " + ", ".join(self) + "."
        close = difflib.get_close_matches(name, list(self), n=1, cutoff=0.5)
        return f"Did you mean {close[0]!r}? {available}" if close else available
