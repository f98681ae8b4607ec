"""Code of others that walkback runs: rules, nets, data sets and tracks that it did not bring itself.

A run is a function of that code too, so its hash belongs to the run; and what goes wrong in it is not
walkback's fault, so the person who meets the error is told whose it is.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from walkback.core.canonical import content_id, hash_code, sha256
from walkback.core.errors import WalkbackError

OURS = "walkback"
_PACKAGES: set[str] = set()


class OutsideFault(WalkbackError):
    """An error that was raised in somebody else's rule, net or data set."""

    kind = "outside"


def package_of(module: str) -> str:
    return module.partition(".")[0]


def note_outside(module: str) -> None:
    """Something of this module is run by name from now on."""
    if package_of(module) != OURS:
        _PACKAGES.add(package_of(module))


def fault_of_others(error: BaseException) -> OutsideFault | None:
    """The error told as theirs, if the last step that was theirs or ours was theirs."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = package_of(str(frame.f_globals.get("__name__", "")))
        if package == OURS:
            return None
        if package in _PACKAGES:
            where = f"line {line} of {Path(frame.f_code.co_filename).name}"
            said = " ".join(f"{type(error).__name__}: {error}".split())
            return OutsideFault(f"{said} ({where}).", f"The error is in {package}, not in walkback.")
    return None


@contextlib.contextmanager
def stdout_kept() -> Iterator[None]:
    """What others print, in Python or in a process they start, goes to stderr: stdout is for the answer."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (AttributeError, OSError, ValueError):  # a program without a stdout has none to keep
        kept = None
    try:
        if kept is not None:
            with contextlib.suppress(OSError):
                os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def code_of(thing: Any) -> str:
    """The hash of the package that a thing comes from; nothing for walkback's own."""
    module = str(getattr(thing, "__module__", "") or "")
    package = package_of(module)
    if package in ("", OURS):
        return ""
    root = sys.modules.get(package)
    found = [hash_code(Path(folder)) for folder in getattr(root, "__path__", ())]
    file = Path(getattr(root, "__file__", None) or "")
    if not found and file.is_file():
        found = [sha256(file.read_bytes())]
    return f"{package} {content_id(found)}"
