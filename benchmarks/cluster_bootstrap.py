"""One draw of the cluster bootstrap, 2000 rows in 400 clusters, against mbe-eval's."""

import sys

import numpy as np
import pandas as pd
from harness import ratio_of, report

from walkback.metrics.intervals import cluster_bootstrap

ROWS, CLUSTERS = 2000, 400
OURS, THEIRS = 1000, 3  # draws per call; ours come with the jackknife that BCa needs


def table():
    """Metric, target and two controls; rows of a cluster share an effect."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(CLUSTERS), ROWS // CLUSTERS)
    lr, wd = rng.normal(size=(2, ROWS))
    metric, target = (rng.normal(size=CLUSTERS)[codes] + lr + rng.normal(size=ROWS) for _ in range(2))
    return pd.DataFrame({"metric": metric, "target": target, "lr": lr, "wd": wd, "cluster": codes})


def ours(frame):
    metric, target, codes = (frame[name].to_numpy() for name in ("metric", "target", "cluster"))
    controls, rng = frame[["lr", "wd"]].to_numpy(), np.random.default_rng(0)
    return lambda: cluster_bootstrap(metric, target, controls, clusters=codes, rng=rng, draws=OURS)


if __name__ == "__main__":
    try:
        from mbe_eval import audit_metric
    except ImportError:
        sys.stderr.write("No row: mbe-eval is not installed, so the cluster bootstrap has no peer.\n")
        sys.exit(0)
    frame = table()

    def theirs():
        audit_metric(
            frame, "metric", "target", ["lr", "wd"], bootstrap=THEIRS, inference_unit_col="cluster"
        )

    ratio, (low, high) = ratio_of(ours(frame), theirs, rounds=9, warm=1)
    each = THEIRS / OURS
    report(
        "cluster bootstrap draw / mbe-eval's",
        ratio * each,
        (low * each, high * each),
        goal=0.0075,
        peer="mbe-eval 0.5.0, n=2000, 400 clusters",
    )
