"""Is this machine fit for reproducible runs? The same short training twice, compared bit by bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from walkback.core.spec import Call, RunSpec
from walkback.data import Dataset, load_dataset
from walkback.run.many import run_many
from walkback.run.one import here
from walkback.run.plan import plan_runs
from walkback.store import Bundle, Store

NET = "resmlp(depth=2,width=32,expansion=2)"


def examine(device: str = "cpu") -> dict[str, Any]:
    """The environment, and whether a run repeated in another process gives the same bytes."""
    import torch

    dataset = load_dataset(Call("digits"))
    (spec,) = plan_runs(net=NET, rules=["dfa"], seeds=[0], data="digits", dataset=dataset, epochs=2)
    with tempfile.TemporaryDirectory() as scratch:
        bundles = [_trained(spec, dataset, Store(Path(scratch) / name), device) for name in ("one", "two")]
        same = _members(bundles[0]) == _members(bundles[1])
        environment = bundles[0].provenance[0]
    return {
        "reproducible": same,
        "environment": environment,
        "threads_here": torch.get_num_threads(),
        "instruction_set_here": here(torch.device("cpu"))["instruction_set"],
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }


def _trained(spec: RunSpec, dataset: Dataset, store: Store, device: str) -> Bundle:
    failures = run_many([spec], store, [dataset], device=device)
    if failures:
        raise RuntimeError(failures[0].traceback or str(failures[0].error))
    bundle = store.find(spec.name)
    assert bundle is not None
    return bundle


def _members(bundle: Bundle) -> dict[str, bytes]:
    return {name: bundle.read(name) for name in bundle.members()}
