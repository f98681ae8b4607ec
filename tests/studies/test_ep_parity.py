"""Solved equilibrium propagation learns like backprop, unsettled it does not: the test and the study."""

from __future__ import annotations

import pytest

from tests.report.conftest import Runs
from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.judge.assemble import judge_bundles
from walkback.run.many import run_many
from walkback.store import Store
from walkback.studies import studies
from walkback.studies.ep_parity import MARGIN, parity


def rows(judged):
    (table,) = parity(judged)
    return {row["rule"]: row for row in table.rows}, dict(zip(names(table), table.cells(), strict=True))


def names(table):
    return [row["rule"] for row in table.rows]


def test_the_table_pairs_every_rule_with_backprop_and_says_which_are_as_good(tmp_path):
    runs = Runs(tmp_path)
    for seed in range(5):
        runs.add("bp", seed=seed, accuracy=0.9)
        runs.add("ep", seed=seed, accuracy=0.9, residual=0.001)
        runs.add("ep", label="ep(solver=gd)", seed=seed, accuracy=0.4, residual=2.0, cosine=0.01)
    found, cells = rows(runs.judged())
    assert found["bp"]["parity"] is found["bp"]["p"] is None and "—" in cells["bp"]
    solved, few = found["ep"], found["ep(solver=gd) (unconverged)"]
    assert (solved["parity"], solved["difference"], solved["p"]) == ("equivalent", 0.0, 0.0)
    assert few["parity"] == "different" and few["high"] < -MARGIN and few["p"] > 0.99
    assert few["difference"] == pytest.approx(-0.5) and few["residual"] == 2.0
    assert cells["ep(solver=gd) (unconverged)"][3].startswith("−50.0 [")


def test_without_backprop_or_with_one_seed_nothing_is_claimed(tmp_path):
    alone = Runs(tmp_path / "alone")
    for seed in (1, 2):
        alone.add("ep", seed=seed, residual=0.0)
    found, _ = rows(alone.judged())
    assert found["ep"]["parity"] is None and found["ep"]["seeds"] == 2
    single = Runs(tmp_path / "single")
    single.add("bp")
    single.add("ep", residual=0.0)
    found, cells = rows(single.judged())
    assert found["ep"]["parity"] is None and cells["ep"][3] == "—"


def test_only_seeds_that_both_have_are_paired(tmp_path):
    runs = Runs(tmp_path)
    for seed in (1, 2, 3):
        runs.add("bp", seed=seed)
    for seed in (2, 3, 4):
        runs.add("ep", seed=seed, residual=0.0)
    found, _ = rows(runs.judged())
    assert found["ep"]["seeds"] == 2


@pytest.mark.slow
def test_solved_ep_is_equivalent_to_backprop_and_few_step_ep_is_not(tmp_path):
    """digits, ResMLP of 4 blocks, 5 seeds: the study itself."""
    digits, store = load_dataset(Call("digits")), Store(tmp_path)
    specs = studies["ep-parity"].runs({"digits": digits})
    assert run_many(specs, store, [digits], workers=2) == []
    found, _ = rows(judge_bundles(store.bundles()))
    few = next(name for name in found if "solver=gd" in name)
    for solved in ("ep", "ep(form=aep)"):
        assert found[solved]["parity"] == "equivalent" and found[solved]["p_seeds"] < 0.05
        assert found[solved]["deep_cosine"] > 0.99
    assert few.endswith("(unconverged)") and found[few]["parity"] == "different"
    assert abs(found[few]["deep_cosine"]) < 0.1
    assert found[few]["accuracy_mean"] > 0.5, "it is not equivalent, and it does not diverge either"
