"""A store with every run of the studies of the paper, made up: written once, copied where one is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.studies.made_up import write_run
from walkback.core.spec import RunSpec
from walkback.run.plan import Known
from walkback.store import Store
from walkback.studies import paper
from walkback.studies.answers import Answers

DATA = {arm.data: Known(("1" if "lossless" in arm.data else "0") * 64) for arm in paper.ARMS}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("paper"))
    for spec in paper.STUDY.runs(DATA):
        write_run(store, spec)
    return store


@pytest.fixture
def copied(whole: Store, tmp_path: Path) -> Store:
    shutil.copytree(whole.path, tmp_path / "runs")
    return Store(tmp_path / "runs")


@pytest.fixture(scope="session")
def answers(whole: Store) -> Answers:
    return Answers(whole, DATA)


def rows_of(table, **wanted):
    return [row for row in table.rows if all(row[key] == value for key, value in wanted.items())]


def take(store: Store, arm, rule: str, seeds=(42, 123, 456)) -> None:
    """Remove the runs of one rule from a store."""
    for spec in arm.plan(DATA[arm.data]):
        if arm.rules.index(rule) == _place(arm, spec) and spec.seed in seeds:
            shutil.rmtree(store.path / spec.name)


def _place(arm, spec: RunSpec) -> int:
    first = [s for s in arm.plan(DATA[arm.data]) if s.seed == spec.seed]
    return first.index(spec)
