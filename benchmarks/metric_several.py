"""The audit of 41 metrics over 680 runs, with p corrected by 9,999 shared draws, against a minute."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # the goal is for one core

import time

import numpy as np
import pandas as pd
from harness import report

from walkback.metrics.several import DRAWS, audit_all

RUNS, METRICS, CONTROLS = 680, 41, 7

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    controls = {f"control{index}": rng.normal(size=RUNS) for index in range(CONTROLS)}
    first = controls["control0"]
    metrics = {f"metric{index}": first + rng.normal(size=RUNS) for index in range(METRICS)}
    table = pd.DataFrame({"acc": first + rng.normal(size=RUNS), **controls, **metrics})
    started = time.perf_counter()
    audit_all(table, list(metrics), "acc", controls=list(controls))
    seconds = time.perf_counter() - started
    report(
        f"audit of {METRICS} metrics × {RUNS} runs × {DRAWS:,} draws / 60 s",
        seconds / 60,
        goal=1.0,
        peer="one minute, one core",
    )
