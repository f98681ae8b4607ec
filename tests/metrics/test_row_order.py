"""The same rows in another order are the same table: no verdict and no number of an audit may move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pytest

from walkback.metrics import MetricAudit
from walkback.metrics.admissible import Claim
from walkback.metrics.ledger import read_tables
from walkback.metrics.several import Audits, audit_all
from walkback.metrics.simulate import Truth


def runs(n: int = 120, effect: float = 0.3) -> pd.DataFrame:
    """Runs of two optimisers in 24 families, with two readings of the loss, a gap and a repeat."""
    rng = np.random.default_rng(4)
    loss, other, first, second = rng.normal(size=(4, n))
    rest = rng.multivariate_normal([0, 0], [[1, effect], [effect, 1]], n)
    frame = pd.DataFrame(
        {
            "m": loss + rest[:, 0],
            "other": (loss + other).round(1),
            "acc": (rest[:, 1] - loss).round(1),
            "loss": loss + 0.3 * first,
            "again": loss + 0.3 * second,
            "lr": 10.0 ** rng.integers(-4, -1, n),
            "optimizer": rng.choice(["adam", "sgd"], n),
            "family": np.arange(n) % 24,
            "arch": rng.choice(["cnn", "vit"], n),
        }
    )
    frame.loc[3, "m"] = np.nan
    frame.loc[8, "arch"] = None
    return pd.concat([frame, frame[20:22]], ignore_index=True)


def shuffled(frame: pd.DataFrame, seed: int = 7) -> pd.DataFrame:
    return frame.sample(frac=1, random_state=seed)


def numbers(found: Any) -> Iterator[Any]:
    """All that stands in nested answers, in order."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield name
            yield from numbers(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from numbers(value)
    else:
        yield found


def assert_same(one: Audits, other: Audits) -> None:
    assert_equal(list(numbers(asdict(one))), list(numbers(asdict(other))))


def assert_equal(told: list[Any], again: list[Any]) -> None:
    assert len(told) == len(again)
    for left, right in zip(told, again, strict=True):
        assert left == (pytest.approx(right, abs=1e-9, nan_ok=True) if isinstance(right, float) else right)


OPTIONS: dict[str, dict[str, Any]] = {
    "independent rows": {"group": "arch", "canon": True},
    "clusters": {"cluster": "family", "group": "arch"},
    "twin": {"twin": "again"},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_in_another_order_give_the_same_verdicts_and_numbers(options):
    def audited(frame: pd.DataFrame) -> Audits:
        return audit_all(frame, ["m", "other"], "acc", "loss", ["lr", "optimizer"], **OPTIONS[options])

    assert_same(audited(shuffled(runs())), audited(runs()))


def test_a_verdict_on_the_edge_does_not_flip_when_the_table_is_sorted():
    rng = np.random.default_rng(11)
    loss = rng.normal(size=110)
    rest = rng.multivariate_normal([0, 0], [[1, 0.25], [0.25, 1]], 110)
    frame = pd.DataFrame({"m": loss + rest[:, 0], "loss": loss, "acc": rest[:, 1] - loss})
    orders = (shuffled(frame, seed) for seed in (0, 1))
    assert len({MetricAudit(each, "m", "acc", "loss").run().verdict for each in orders}) == 1


def test_a_simulated_table_does_not_depend_on_the_order_of_rows():
    claim = Claim("m", "acc", "loss", ("lr",), cluster="family")
    one, other = (
        Truth.of(frame, claim).draw(0.4, np.random.default_rng(0)) for frame in (runs(), shuffled(runs()))
    )
    pd.testing.assert_frame_equal(one, other, rtol=0, atol=1e-9)


def test_the_repeat_that_stays_is_the_same_in_every_order():
    """Two rows of one run that name two groups, or differ in another metric alone."""
    frame = runs()
    frame = pd.concat([frame, frame[40:60].assign(arch="mlp", other=lambda t: -t.other)], ignore_index=True)
    one, other = (
        audit_all(each, ["m", "other"], "acc", "loss", group="arch") for each in (frame, frame[::-1])
    )
    assert one.verdicts["m"].evidence["repeated"] == 22 != one.verdicts["other"].evidence["repeated"]
    assert_same(one, other)


def test_columns_in_another_order_or_under_other_names_give_the_same_numbers():
    frame = runs()
    names = dict(zip(frame.columns, [f"c{k}" for k in range(len(frame.columns))][::-1], strict=True))
    moved = shuffled(frame)[sorted(frame, reverse=True)].rename(columns=names)
    asked = ["m", "acc", "loss", "lr", "optimizer", "family"]

    def tests(frame: pd.DataFrame, metric: str, target: str, baseline: str, *others: str) -> list[Any]:
        audit = MetricAudit(frame, metric, target, baseline, others[:2], cluster=others[2])
        return list(numbers(audit.run().evidence["tests"]))

    assert_equal(tests(frame, *asked), tests(moved, *(names[name] for name in asked)))


def test_rows_that_count_are_named_by_their_places_in_the_table_that_was_given():
    frame = shuffled(runs())
    admitted = MetricAudit(frame, "m", "acc", "loss").admitted
    given = frame.iloc[admitted.rows].reset_index(drop=True)
    pd.testing.assert_frame_equal(given[["m", "acc", "loss"]], admitted.frame[["m", "acc", "loss"]])
    assert len(given) == 119 and frame.m.iloc[admitted.rows].notna().all()


def test_categories_of_a_long_table_do_not_depend_on_where_its_text_stands(tmp_path):
    """Read in parts, a category 1.50 would be the number 1.5 wherever its part holds no text."""
    lines = [f"{k},{'1.50' if k % 2 else '2'}" for k in range(300_000)] + ["300000,none"]
    found = []
    for name, rows in (("a", lines), ("b", lines[::-1])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["run,kind", *rows]) + "\n")
        found.append(set(read_tables([tmp_path / f"{name}.csv"])["kind"].astype(str)))
    assert found == [{"1.50", "2", "none"}] * 2
