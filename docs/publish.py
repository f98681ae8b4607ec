"""Copies the finished runs of the paper's study from a store into docs/results/cifar10, without weights.

WALKBACK_DATA=… python docs/publish.py runs     then `make docs` renders the pages from them

The full tier is measured where the study wants it and a run has none yet; a run that is there already is
written anew only then.
"""

from __future__ import annotations

import sys

from render import RUNS

from walkback.run.full import measure_missing
from walkback.store import Store
from walkback.studies import studies


def main() -> None:
    paper, store = studies["paper"], Store.existing(sys.argv[1])
    data = paper.load(None)
    wanted = paper.full_epochs(data)
    for spec in paper.runs(data):
        bundle, copy = store.find(spec.name), RUNS / f"{spec.name}.zip"
        if bundle is None or not bundle.finished:
            continue
        measured = measure_missing(bundle, wanted.get(spec, []))
        if measured or not copy.exists():
            bundle.export(copy, light=True)
            sys.stdout.write(f"{copy.name}\n")


if __name__ == "__main__":
    main()
