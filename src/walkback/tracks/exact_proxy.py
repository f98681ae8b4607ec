"""Track "exact-proxy": a metric that is a monotone function of the loss is never certified as news."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pandas as pd

from walkback.core.verdict import Outcome
from walkback.metrics import MetricAudit
from walkback.metrics import audit as audit_module
from walkback.tracks import Control, Decision, Gate, Lab, Track

COPIES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "the loss itself": lambda loss, rng: loss,
    "exp(loss)": lambda loss, rng: np.exp(loss),
    "2·loss + 1e-12 noise": lambda loss, rng: 2 * loss + 1e-12 * rng.normal(size=len(loss)),
    "1/(1 + exp(loss))": lambda loss, rng: 1 / (1 + np.exp(loss)),
}

track = Track(
    id="exact-proxy",
    name="Exact proxies",
    claim="A metric that is a monotone function of the baseline is called PROXY or REFUSED in every table.",
    purpose="Peers certify exp(loss) at p = 2e-18: they test what rounding has left of it.",
    limits="One baseline column. A copy that is not monotone is mostly left open: of 50 tables each with "
    "loss², |loss| and sin(20·loss), 138 of 150 came out INCONCLUSIVE and 12 PROXY. Copies with real noise "
    "are the calibration track's.",
    improve="Copies of two controls at once; a search for copies that fold the baseline.",
    arms={"copies": "four monotone copies of the loss", "news": "a metric with a true partial correlation"},
    gates=(Gate("news", "Share of tables with real news that are called INDEPENDENT", at_least=0.8),),
    decisions=(Decision("caught", "Share of copies called PROXY or REFUSED", at_least=1.0),),
    controls=(
        Control("gate off", "what rounding leaves is tested as if it were data"),
        Control("copies carry news", "the copies have news of their own added"),
        Control("always a proxy", "every metric is called a proxy"),
    ),
    level={"quick": "directional", "full": "conclusive"},
    quick={"tables": 3, "n": 120},
    full={"tables": 50, "n": 120},
)


@track.experiment
def audit_copies(lab: Lab) -> None:
    """Tables of a loss, a target that follows it, and a metric: four kinds of monotone copy of the loss,
    and as many tables in which the metric has a true partial correlation of .7. Each is audited.
    """
    n, tables = lab.settings["n"], lab.settings["tables"]
    found = [_outcome(lab, _table(lab.rng("news", k), n, 0.7)) for k in range(tables)]
    lab.report("news", float(np.mean([outcome is Outcome.INDEPENDENT for outcome in found])))
    caught = []
    for kind, copy in COPIES.items():
        outcomes = []
        for k in range(tables):
            rng = lab.rng("copies", kind, k)
            frame = _table(rng, n, 0.7 if lab.under("copies carry news") else 0.0)
            if not lab.under("copies carry news"):
                frame["m"] = copy(frame["loss"].to_numpy(), rng)
            outcomes.append(_outcome(lab, frame))
        hits = [outcome in (Outcome.PROXY, Outcome.REFUSED) for outcome in outcomes]
        lab.row(metric=kind, tables=tables, caught=sum(hits))
        caught += hits
    lab.report("caught", float(np.mean(caught)))
    lab.tell(
        difference=f"{sum(caught)} of {len(caught)} copies were caught.",
        interpretation="An exact copy is found before any statistic, which would test its rounding.",
    )


def _table(rng: np.random.Generator, n: int, effect: float) -> pd.DataFrame:
    loss = rng.normal(size=n)
    rest = rng.multivariate_normal([0, 0], [[1, effect], [effect, 1]], n)
    return pd.DataFrame({"m": loss + rest[:, 0], "loss": loss, "acc": rest[:, 1] - loss})


def _outcome(lab: Lab, frame: pd.DataFrame) -> Outcome:
    if lab.under("always a proxy"):
        return Outcome.PROXY
    audit = MetricAudit(frame, "m", "acc", "loss")
    if lab.under("gate off"):
        with patch.object(audit_module, "exact_source", lambda frame, claim: None):
            return audit.run().outcome
    return audit.run().outcome
