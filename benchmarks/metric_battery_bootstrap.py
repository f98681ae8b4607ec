"""Intervals and adjusted p of 41 metrics over 680 runs from 10,000 shared bootstrap draws, in minutes."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # the goal is for one core

import time

import numpy as np
from harness import report

from walkback.metrics.multiple import bootstrap_battery

RUNS, METRICS, CONTROLS, DRAWS = 680, 41, 7, 10_000

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    controls = rng.normal(size=(RUNS, CONTROLS))
    target = controls[:, 0] + rng.normal(size=RUNS)
    metrics = rng.normal(size=(RUNS, METRICS)) + controls[:, :1]
    started = time.perf_counter()
    bootstrap_battery(metrics, target, controls, rng=rng, draws=DRAWS)
    seconds = time.perf_counter() - started
    report(
        "680 runs × 41 metrics × 10,000 draws / 60 s", seconds / 60, goal=1.0, peer="one minute, one core"
    )
