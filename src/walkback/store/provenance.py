"""Where a number came from: walkback's commit, library versions, threads, instruction set."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors")


def environment(*, threads: int, instruction_set: str, device: str) -> dict[str, Any]:
    """What the bits of a result depend on, and nothing that names a person, a host or a folder."""
    return {
        "walkback": installed("walkback"),
        "commit": commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "libraries": {name: installed(name) for name in LIBRARIES},
        "threads": threads,
        "instruction_set": instruction_set,
        "device": device,
    }


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


@cache
def commit() -> str:
    """The commit of walkback's own source tree, with `+changes` if it has any; else `released`.

    Asked once: what is committed while a process runs is not the code that it runs.
    """
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return "released"
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
