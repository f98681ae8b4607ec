"""Track "calibration": how often the metric audit says INDEPENDENT, where it should and where not."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pandas as pd

from walkback.core.verdict import Outcome
from walkback.metrics import MetricAudit, crossfit
from walkback.tracks import Control, Decision, Lab, Track

FALSE, POWER = 0.07, 0.80
SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda b: b,
    "U-shaped": lambda b: 2 * b**2,
    "oscillating": lambda b: 2 * np.sin(3 * b),
    "step": lambda b: 4.0 * (b > 0.3),
}

track = Track(
    id="calibration",
    name="Calibration of the metric audit",
    claim="With no effect, at most 7 % of tables are called INDEPENDENT; partial r = .4 is found in 80 %.",
    purpose="A default that takes half of all U-shaped confounders for support decides nothing.",
    limits="Gaussian noise, one baseline, n = 200 and 100. A quick run sees gross miscalibration only.",
    improve="Heavy tails, several baselines, clusters.",
    arms={"nothing": "metric and target follow the loss along four shapes", "something": "partial r of .4"},
    decisions=(
        Decision("false", "p of the hypothesis that false support is 7 % or less", at_least=0.01),
        Decision("power", "p of the hypothesis that power is 80 % or more", at_least=0.01),
    ),
    controls=(
        Control("linear only", "only the linear learner is asked"),
        Control("never sure", "the audit calls everything inconclusive"),
        Control("loss unseen", "the audit is not told of the loss"),
    ),
    level={"quick": "smoke", "full": "directional"},
    quick={"tables": 8},
    full={"tables": 60},
)


@track.experiment
def audit_known_truths(lab: Lab) -> None:
    """Tables in which the loss drives metric and target along a line, a U, a wave and a step and nothing
    else joins them, then tables with a true partial correlation of .4. The counts are tested against the
    rates that are claimed, by exact binomial tests.
    """
    from scipy.stats import binomtest

    tables, false = lab.settings["tables"], 0
    for done, (name, shape) in enumerate(SHAPES.items()):
        hits = sum(_found(lab, _table(lab.rng(name, k), shape)) for k in range(tables))
        lab.row(truth=f"nothing, {name}", tables=tables, found=hits)
        lab.progress(done + 1, len(SHAPES) + 1)
        false += hits
    seen = sum(_found(lab, _table(lab.rng("power", k), SHAPES["linear"], 100, 0.4)) for k in range(tables))
    lab.row(truth="partial r = .4", tables=tables, found=seen)
    nothing = len(SHAPES) * tables
    lab.report("false", float(binomtest(false, nothing, FALSE, "greater").pvalue))
    lab.report("power", float(binomtest(seen, tables, POWER, "less").pvalue))
    lab.tell(
        difference=f"{false} of {nothing} tables without anything, and {seen} of {tables} with an effect.",
        interpretation="What is called INDEPENDENT is seldom nothing, and what is there is mostly found.",
    )


def _table(
    rng: np.random.Generator, shape: Callable[[np.ndarray], np.ndarray], n: int = 200, effect: float = 0.0
) -> pd.DataFrame:
    loss = rng.normal(size=n)
    rest = rng.multivariate_normal([0, 0], [[1, effect], [effect, 1]], n)
    return pd.DataFrame({"m": shape(loss) + rest[:, 0], "loss": loss, "acc": rest[:, 1] - shape(loss)})


def _found(lab: Lab, frame: pd.DataFrame) -> bool:
    if lab.under("never sure"):
        return False
    audit = MetricAudit(frame, "m", "acc", None if lab.under("loss unseen") else "loss")
    asked = {"linear": crossfit.LEARNERS["linear"]} if lab.under("linear only") else crossfit.LEARNERS
    with patch.object(crossfit, "LEARNERS", asked):
        return audit.run().outcome is Outcome.INDEPENDENT
