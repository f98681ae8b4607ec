"""One registry for everything that has a name: rules, nets, data sets.

An entry is a line `name: "package.module:Attribute"`; it is imported when it is first asked for,
so listing names costs nothing. Code outside the package adds its own with `@registry.register(name)`, or,
to be found by the command line and its workers, as an entry point of the group `walkback.rules`,
`walkback.nets`, `walkback.data_sets`, ….
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from walkback.core.errors import BadInput, UnknownName

T = TypeVar("T")


class Registry(Generic[T]):
    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._entries: dict[str, str | T] = dict(entries)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            self._load_plugins()
        if name not in self._entries:
            raise UnknownName(f"Unknown {self.kind} {name!r}.", self._suggest(name))
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            try:
                entry = getattr(import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                if module.partition(".")[0] == "walkback":
                    raise
                raise BadInput(
                    f"The {self.kind} {name!r} cannot be loaded from {entry}: {error}."
                ) from error
            self._entries[name] = entry
        return entry

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that adds one's own entry under `name`."""

        def add(thing: T) -> T:
            held = self._entries.get(name, thing)
            here = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
            if held is not thing and held != here:  # an entry point may name the same thing
                raise BadInput(f"A {self.kind} named {name!r} is registered already.")
            self._entries[name] = thing
            return thing

        return add

    def _load_plugins(self) -> None:
        """Entries of other installed packages: entry points of the group `walkback.<kind>s`."""
        group = f"walkback.{self.kind.replace(' ', '_')}s"
        for point in entry_points(group=group):
            self._entries.setdefault(point.name, point.value)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def _suggest(self, name: str) -> str:
        available = "Available: " + ", ".join(self) + "."
        close = difflib.get_close_matches(name, list(self), n=1, cutoff=0.5)
        return f"Did you mean {close[0]!r}? {available}" if close else available
