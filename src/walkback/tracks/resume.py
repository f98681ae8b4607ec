"""Track "resume": a run that is killed and started again gives the same bytes as one left alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from walkback.core.canonical import sha256
from walkback.core.errors import WalkbackError
from walkback.core.spec import Call, RunSpec
from walkback.data import Dataset, load_dataset
from walkback.run import one
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.store import Store
from walkback.store.bundle import Arrays
from walkback.tracks import Control, Decision, IdentityGate, Lab, Track
from walkback.train import TrainState

NET, RULE, DATA = "resmlp(width=48,depth=2)", "dfa", "digits"

track = Track(
    id="resume",
    name="Bit-identical resume",
    claim="A run killed by SIGKILL and started again gives the same files, byte for byte.",
    purpose="Long studies are stopped; numbers that depend on where are not reproducible.",
    limits="One machine, one thread, one moment of death per seed.",
    improve="Kill while a file is being written, and several times.",
    arms={"whole": "left alone", "killed": "killed in the middle of training, then resumed"},
    gates=(IdentityGate("cut", "Epochs that were left when it was killed", at_least=1),),
    decisions=(Decision("differ", "Files that are not the same", at_most=0),),
    controls=(
        Control("moments lost", "the optimizer starts afresh"),
        Control("one bit", "one weight is one rounding step off"),
        Control("left alone", "nobody kills it"),
    ),
    level={"quick": "directional", "full": "directional"},
    quick={"epochs": 8},
    full={"epochs": 30},
)


@track.experiment
def kill_and_resume(lab: Lab) -> None:
    """A small DFA run on digits, once left alone in this process, once trained by `walkback train` in a
    process of its own, which is killed after its first epoch, and resumed here. Every file is compared.
    """
    data = load_dataset(Call(DATA))
    spec = plan_runs(
        net=NET,
        rules=[RULE],
        seeds=[lab.stream("run") % 10_000],
        data=DATA,
        dataset=data,
        epochs=lab.settings["epochs"],
    )[0]
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Store(Path(folder) / "whole"), Store(Path(folder) / "killed")
        run_one(spec, data, whole)
        epoch = spec.epochs if lab.under("left alone") else _train_and_kill(spec, killed)
        lab.report("cut", spec.epochs - epoch)
        _resume(lab, spec, data, killed)
        first, second = _hashes(whole.path / spec.name), _hashes(killed.path / spec.name)
    for name in sorted(first | second):
        lab.row(file=name, same=first.get(name) == second.get(name))
    differ = sum(first.get(name) != second.get(name) for name in first | second)
    lab.report("differ", differ)
    lab.tell(
        difference=f"{differ} of {len(first)} files differ; it was killed after epoch {epoch}.",
        interpretation="Where a run was stopped cannot be told from its numbers.",
    )


def _train_and_kill(spec: RunSpec, store: Store) -> int:
    """Start the same run in a process of its own and kill it once its first epoch is stored."""
    command = [sys.executable, "-m", "walkback", "train", "--net", NET, "--rules", RULE, "--data", DATA]
    command += ["--seeds", str(spec.seed), "--epochs", str(spec.epochs), "--store", str(store.path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 300
    while not list(store.path.glob("*/checkpoints/epoch-0001*")):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            told = process.stderr.read().decode() if process.stderr else ""
            raise WalkbackError(f"The run to be killed ended by itself: {told.strip()}")
        time.sleep(0.002)
    process.kill()
    process.communicate()
    bundle = store.find(spec.name)
    return spec.epochs if bundle is None or bundle.finished else int(bundle.status["epoch"] or 0)


def _resume(lab: Lab, spec: RunSpec, data: Dataset, store: Store) -> None:
    plain = one._load_state

    def load(state: TrainState, arrays: Arrays) -> None:
        if lab.under("moments lost"):
            arrays = {k: np.zeros_like(v) if k.startswith("moments/") else v for k, v in arrays.items()}
        if lab.under("one bit"):
            name = next(k for k in arrays if k.startswith("net/blocks") and k.endswith("weight"))
            moved = arrays[name].copy()
            moved.flat[0] = np.nextafter(moved.flat[0], np.float32(np.inf))
            arrays = {**arrays, name: moved}
        plain(state, arrays)

    with patch.object(one, "_load_state", load):
        run_one(spec, data, store)


def _hashes(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): sha256(file.read_bytes()) for file in files}
