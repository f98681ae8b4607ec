"""`ep-parity`: does equilibrium propagation learn as well as backprop, settled and unsettled?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from walkback.core.stats import Equivalence, paired_tost
from walkback.judge.assemble import Judged
from walkback.judge.naming import names_of
from walkback.report import words
from walkback.report.answer import NOT_RUN
from walkback.report.audit_tables import verdict_rows
from walkback.report.table import Column, Row, Table
from walkback.studies.answers import Answers
from walkback.studies.study import SEEDS, Arm, Study

MARGIN = 0.015  # of accuracy, fixed before the runs
ARM = Arm(
    ("bp", "ep", "ep(form=aep)", "ep(solver=gd)", "frozen"),
    "resmlp(width=128,expansion=2)",
    "digits",
    seeds=(*SEEDS, 789, 1011),
    recipe={"epochs": 30},
)
FIELDS = (
    *("rule", "variant", "seeds", "accuracy_mean", "accuracy_sd", "difference", "low", "high"),
    *("p", "p_seeds", "parity", "deep_cosine", "residual"),
)


def tables(answers: Answers) -> list[Table]:
    found = answers.of(ARM)
    missing = [answer.name for answer in found if answer.artifact is None]
    return parity([answer.artifact for answer in found if answer.artifact is not None], missing)


def parity(judged: Sequence[Judged], missing: Sequence[str] = ()) -> list[Table]:
    """One row per rule: its paired difference from backprop, and whether it lies within the margin."""
    exact = [item for item in judged if item.label == "bp"]
    rows = zip(names_of(judged), judged, verdict_rows(judged).rows, strict=True)
    columns = (
        Column("rule", ("rule",), numeric=False),
        Column("seeds", ("seeds",)),
        Column("accuracy", ("accuracy_mean", "accuracy_sd"), _show_accuracy, "%"),
        Column("less bp", ("difference", "low", "high"), _show_difference, "pp"),
        Column("p", ("p",), words.number),
        Column("p, seeds alone", ("p_seeds",), words.number),
        Column("as good as bp", ("parity",), numeric=False),
        Column("deep cosine", ("deep_cosine",), words.cosine),
        Column("residual", ("residual",), words.number),
    )
    caption = (
        f"Paired with backprop by seed and item: two one-sided tests that the difference lies within "
        f"±{100 * MARGIN:g} pp, and the 90 % interval they decide by. Equivalent: all of it is within; "
        "different: all of it is outside; open: neither. The residual is the largest over seeds."
    )
    found = tuple(_row(name, item, shown, exact[0] if exact else None) for name, item, shown in rows)
    gaps = tuple({**dict.fromkeys(FIELDS), "rule": name, "seeds": 0, "parity": NOT_RUN} for name in missing)
    return [Table("ep-parity", caption, columns, FIELDS, found + gaps)]


def _row(name: str, item: Judged, shown: Row, exact: Judged | None) -> Row:
    kept = {key: shown[key] for key in FIELDS if key in shown}
    differences = None if exact is None or item is exact else _paired(item, exact)
    if differences is None:
        missing = dict.fromkeys(("difference", "low", "high", "p", "p_seeds"))
        return {**kept, **missing, "rule": name, "parity": None}
    both, seeds = paired_tost(differences, MARGIN), _over_seeds(differences)
    return {
        **kept,
        "rule": name,
        "seeds": len(differences),
        "difference": both.interval.estimate,
        "low": both.interval.low,
        "high": both.interval.high,
        "p": both.p,
        "p_seeds": seeds.p,
        "parity": both.words,
    }


def _over_seeds(differences: NDArray[np.float64]) -> Equivalence:
    return paired_tost(differences.mean(axis=1)[None], MARGIN)


def _paired(item: Judged, exact: Judged) -> NDArray[np.float64] | None:
    """[seed, test item] of the seeds that both have; fewer than two tell nothing about seeds."""
    mine, theirs = _correct(item), _correct(exact)
    seeds = [seed for seed in mine if seed in theirs]
    if len(seeds) < 2:
        return None
    return np.stack([mine[seed] - theirs[seed] for seed in seeds])


def _correct(item: Judged) -> Mapping[int | None, NDArray[np.float64]]:
    return {run.seed: run.correct.astype(float) for run in item.runs if run.correct is not None}


def _show_accuracy(mean: float | None, sd: float | None) -> str:
    return words.spread(words.percent(mean), words.percent(sd))


def _show_difference(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return words.MISSING
    return f"{words.points(value)} [{words.points(low)}, {words.points(high)}]"


STUDY = Study(
    "ep-parity",
    "Does equilibrium propagation learn as well as backprop where it settles, and where it does not?",
    (ARM,),
    ours="the whole study; the margin of 1.5 pp was fixed before the runs",
    tables=tables,
)
