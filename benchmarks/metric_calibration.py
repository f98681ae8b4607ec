"""How often the metric audit says INDEPENDENT where nothing is there, and how often where something is.

Each row is a share of simulated tables with its 95 % interval; `WALKBACK_TABLES` sets how many (300), and
`WALKBACK_ROWS` takes only the rows whose name holds a word.
"""

import os

import numpy as np
import pandas as pd
from harness import report
from scipy.stats import binomtest

from walkback.core.verdict import Outcome
from walkback.metrics import MetricAudit

TABLES = int(os.environ.get("WALKBACK_TABLES", "300"))
ROWS = os.environ.get("WALKBACK_ROWS", "")
SHAPES = {
    "linear": lambda b: b,
    "U-shaped": lambda b: 2 * b**2,
    "oscillating": lambda b: 2 * np.sin(3 * b),
    "step": lambda b: 4.0 * (b > 0.3),
}


def confounded(shape, rng, n=200, effect=0.0):
    loss = rng.normal(size=n)
    rest = rng.multivariate_normal([0, 0], [[1, effect], [effect, 1]], n)
    return pd.DataFrame({"m": shape(loss) + rest[:, 0], "loss": loss, "acc": rest[:, 1] - shape(loss)})


def clustered(rng):
    """Six clusters of five rows, metric and target nearly constant within each."""
    cluster = np.repeat(np.arange(6), 5)
    common, own = rng.normal(size=(6, 3))[cluster], rng.normal(size=(30, 3))
    drawn = np.sqrt(0.9) * common + np.sqrt(0.1) * own
    return pd.DataFrame({"m": drawn[:, 0], "acc": drawn[:, 1], "loss": drawn[:, 2], "cluster": cluster})


def reread(rng, n=200):
    """A metric that is nothing but another noisy reading of the loss; `again` is the baseline's twin."""
    loss = rng.normal(size=n)
    noisy = {name: loss + 0.5 * rng.normal(size=n) for name in ("m", "loss", "again")}
    return pd.DataFrame({**noisy, "acc": 0.5 * rng.normal(size=n) - loss})


def bent(rng, n=300):
    """Metric and target saturate with the loss, and nothing else; both readings of it are noisy."""
    loss = rng.normal(size=n)
    readings = {name: loss + 0.3 * rng.normal(size=n) for name in ("loss", "again")}
    noise = 0.5 * rng.normal(size=(2, n))
    return pd.DataFrame(
        {**readings, "m": np.tanh(3 * loss) + noise[0], "acc": noise[1] - np.tanh(3 * loss)}
    )


def sloped(rng, n=200):
    """The loss acts with another slope in each of three categories; both readings of it are noisy."""
    loss, arch = rng.normal(size=n), rng.integers(0, 3, n)
    readings = {name: loss + 0.4 * rng.normal(size=n) for name in ("loss", "again")}
    acts, noise = np.array([2.0, 0.3, -1.0])[arch] * loss, 0.5 * rng.normal(size=(2, n))
    return pd.DataFrame(
        {**readings, "arch": np.array(list("abc"))[arch], "m": acts + noise[0], "acc": noise[1] - acts}
    )


def grid(rng, n=200):
    """Five learning rates, a decade apart and best in the middle, beside a loss that acts along a line."""
    decade, loss = rng.integers(-2, 3, n), rng.normal(size=n)
    acts, noise = (decade**2 - 2) / 1.7 + loss, rng.normal(size=(2, n))
    return pd.DataFrame(
        {"lr": 10.0 ** (decade - 3), "loss": loss, "m": acts + noise[0], "acc": noise[1] - acts}
    )


def distance(rng, n=200):
    """How far a loss and a rate lie apart acts on metric and target: a kink along a diagonal."""
    loss, rate = rng.normal(size=(2, n))
    acts, noise = np.abs(loss - rate), 0.4 * rng.normal(size=(2, n))
    return pd.DataFrame({"loss": loss, "lr": rate, "m": acts + noise[0], "acc": noise[1] - acts})


def product(rng, noise, low, n=300):
    """A loss and two rates act by their product, on metric and target; `noise` is the metric's own.
    From a `low` end below zero the factors change their sign."""
    factors = rng.uniform(low, low + 0.9, (3, n))
    acts = factors.prod(axis=0)
    own = acts.std() * rng.normal(size=(2, n))
    named = dict(zip(("loss", "lr", "wd"), factors, strict=True))
    return pd.DataFrame({**named, "m": acts + noise * own[0], "acc": acts + 0.4 * own[1]})


def share(name, draw, goal, *, missed=False, **options):
    if ROWS not in name:
        return
    found = sum(
        (_audit(draw, seed, options) is Outcome.INDEPENDENT) is not missed for seed in range(TABLES)
    )
    low, high = binomtest(found, TABLES).proportion_ci(method="wilson")
    report(name, found / TABLES, (float(low), float(high)), goal=goal, peer=f"of {TABLES} known truths")


def _audit(draw, seed, options):
    return MetricAudit(draw(np.random.default_rng([7, seed])), "m", "acc", "loss", **options).run().outcome


if __name__ == "__main__":
    for shape_name, shape in SHAPES.items():
        share(
            f"metric audit: false support, {shape_name} confounder, n=200",
            lambda rng, shape=shape: confounded(shape, rng),
            0.07,
        )
    share("metric audit: false support, 6×5 clusters", clustered, 0.07, cluster="cluster")
    share("metric audit: false support, noisy re-reading with a twin", reread, 0.10, twin="again")
    share("metric audit: false support, curved loss, noisy twins, n=300", bent, 0.07, twin="again")
    share(
        "metric audit: false support, another slope of the loss in each category, noisy twins, n=200",
        sloped,
        0.07,
        twin="again",
        controls=["arch"],
    )
    share("metric audit: false support, a grid of five rates, n=200", grid, 0.07, controls=["lr"])
    share("metric audit: false support, distance of two controls, n=200", distance, 0.07, controls=["lr"])
    for factors, low in (("positive", 0.1), ("centred", -0.45)):
        for noise in (0.0, 0.4):
            share(
                f"metric audit: false support, product of three {factors} controls, noise {noise:g}, n=300",
                lambda rng, noise=noise, low=low: product(rng, noise, low),
                0.07,
                controls=["lr", "wd"],
            )
    share(
        "metric audit: missed effects, partial r = .4, n=100",
        lambda rng: confounded(SHAPES["linear"], rng, n=100, effect=0.4),
        0.20,
        missed=True,
    )
