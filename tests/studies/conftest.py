"""A store with every run of the studies of the paper, made up: written once, copied where one is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.studies.made_up import write_run
from walkback.run.plan import Known
from walkback.store import Store
from walkback.studies import paper

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
