"""Copies the finished runs of the paper's study from a store into docs/results/cifar10, without weights.

WALKBACK_DATA=… python docs/publish.py runs     then `make docs` renders the pages from them

The full tier is measured where the study wants it and a run has none yet. The same run gives the same
bytes, so that a copy changes only where something was added to its run.
"""

from __future__ import annotations

import sys

from render import RUNS

from walkback.run.full import measure_missing
from walkback.store import Store
from walkback.studies import studies
from walkback.studies.answers import data_of


def main() -> None:
    paper, store = studies["paper"], Store.existing(sys.argv[1])
    loaded, absent = paper.load(None)
    data = {**data_of(store, list(absent)), **loaded}
    wanted = paper.full_epochs(data)
    for spec in paper.runs(data):
        bundle, copy = store.find(spec.name), RUNS / f"{spec.name}.zip"
        if bundle is None or not bundle.finished:
            continue
        measure_missing(bundle, wanted.get(spec, []))
        before = copy.read_bytes() if copy.exists() else b""
        if bundle.export(copy, light=True).read_bytes() != before:
            sys.stdout.write(f"{copy.name}\n")


if __name__ == "__main__":
    main()
