"""Small bundles written by hand, without torch: any status, any label, any gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from walkback.core.canonical import content_id
from walkback.core.quantities import QUANTITIES, Measurements
from walkback.judge.assemble import Judged, judge_bundles
from walkback.report import write_report
from walkback.store import Bundle, Store
from walkback.store.bundle import Member, pack_items

LAYERS = 3
ITEMS = 400
ENVIRONMENT = {
    "walkback": "0.1.0",
    "commit": "c0ffee",
    "libraries": {"numpy": "2.0.0"},
    "threads": 1,
    "instruction_set": "AVX2",
    "device": "cpu",
}


class Runs:
    """A store under construction: `runs.add("dfa", seed=1, growth=7000)` is one more bundle in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self,
        rule: str,
        *,
        seed: int = 1,
        label: str | None = None,
        accuracy: float = 0.8,
        growth: float = 3.0,
        validity: float = 1e-3,
        cosine: float = 0.5,
        norm: float | None = None,
        residual: float | None = None,
        state: str = "finished",
        reason: str = "",
        epochs: int = 2,
        without: Sequence[str] = (),
        not_applicable: Sequence[str] = (),
        **settings: Any,
    ) -> Bundle:
        """`without` quantities were never taken, `not_applicable` ones have no meaning for this rule.

        A rule without a `residual` does not settle anything.
        """
        label = rule if label is None else label
        spec = {"net": "toy(depth=2)", "rule": label, "data": "toy", "data_identity": "d" * 64}
        spec |= {"seed": seed, "epochs": epochs, "batch": 32, "lr": 0.01, **settings}
        bundle = Bundle.create(
            self.path / f"toy-{content_id(spec)}", id=content_id(spec), spec=spec, card=_card(rule, label)
        )
        values = {"accuracy.test@1": accuracy, "scale.growth_max@1": growth}
        values |= {"reference.validity@1": validity, "alignment.deep_cosine@1": cosine}
        values |= {} if norm is None else {"scale.state_norm@1": norm, "reference.norm@1": norm}
        values |= {} if residual is None else {"settling.residual@1": residual}
        without = [*without, *(["settling.residual@1"] if residual is None else [])]
        table = Measurements()
        for epoch in range(epochs + 1):
            _measure(table, epoch, values, without, not_applicable)
        members = [Member("measurements.csv", "measurements", table.to_csv().encode())]
        if math.isfinite(accuracy):
            members.append(Member("items.safetensors", "items", _items(accuracy, epochs, seed)))
        status = {"state": state, "epoch": epochs, "reason": reason}
        bundle.commit(members, status=status, environment=ENVIRONMENT)
        return bundle

    def start(self, rule: str, *, seed: int = 1) -> Bundle:
        """A run that was killed before its first measurement."""
        whole = self.add(rule, seed=seed)
        status = {"state": "running", "epoch": 0, "reason": ""}
        whole.commit(drop=whole.members(), status=status)
        return whole

    def judged(self, **options: Any) -> list[Judged]:
        return judge_bundles(Store(self.path).bundles(), **options)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """A sound rule, an exploding one and the baseline, three seeds each."""
    runs = Runs(tmp_path_factory.mktemp("audit"))
    for seed in (1, 2, 3):
        runs.add("bp", seed=seed, accuracy=0.9 + 0.01 * seed, cosine=1.0)
        runs.add("dfa", seed=seed, accuracy=0.3, growth=7000.0 + seed, validity=4e-9, cosine=0.1)
        runs.add("frozen", seed=seed, accuracy=0.5, growth=1.0)
    return runs.judged()


@pytest.fixture(scope="session")
def written(audit: list[Judged], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the audit's report, drawn once for all tests that only read it."""
    return write_report(audit, tmp_path_factory.mktemp("report")).parent


def _card(rule: str, label: str) -> dict[str, Any]:
    role = "baseline" if rule == "frozen" else "rule"
    return {
        "rule": {"label": label, "name": rule, "variant": label, "role": role, "about": f"about {label}"},
        "net": {"label": "toy(depth=2)", "fingerprint": "f00d"},
        "data": {
            "label": "toy",
            "classes": 10,
            "dataset": "d" * 64,
            "split": "5" * 64,
            "eval_batch": "e" * 64,
        },
        "measured": {"mode": "eval", "batch": 32, "reduction": "sum, per sample"},
        "recipe": {"optimizer": "AdamW"},
    }


def _measure(
    table: Measurements,
    epoch: int,
    values: dict[str, float],
    without: Sequence[str],
    not_applicable: Sequence[str],
) -> None:
    for quantity in QUANTITIES.values():
        if quantity.id in without:
            continue
        gone = quantity.id in not_applicable
        for layer in range(LAYERS) if quantity.per_layer else [None]:
            value = values.get(quantity.id, 0.25 if layer is None else 0.5 + layer)
            table.add(
                epoch,
                quantity.id,
                math.nan if gone else value,
                layer,
                status="not_applicable" if gone else "",
            )


def _items(accuracy: float, epochs: int, seed: int) -> bytes:
    right = np.arange(ITEMS) < round(accuracy * ITEMS)
    np.random.default_rng(seed).shuffle(right)
    return pack_items(dict.fromkeys(range(epochs + 1), right))
