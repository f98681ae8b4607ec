"""`temporal-replay`: the FA paper's third validation. When would each detector first have fired?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from walkback.judge.replay import DETECTORS, first_firing, replay
from walkback.report import words
from walkback.report.answer import NOT_RUN, RUNNING, Answer
from walkback.report.table import Column, Row, Table
from walkback.studies import bridges_and_ep, five_rule, penalty, schedule
from walkback.studies.answers import Answers
from walkback.studies.study import Arm, Study

ARMS = (five_rule.ARM, schedule.ARM, penalty.ARM, bridges_and_ep.ARM)
FIELDS = (
    "rule",
    "seed",
    *(f"{d}_{k}" for d in DETECTORS for k in ("first", "stays", "gap")),
    "epochs",
    "recipe",
)


def first_table(answers: Answers) -> list[Table]:
    """Per rule and seed: the first epoch at which each detector fires, and from which it stays."""
    columns = (
        Column("rule", ("rule",), numeric=False),
        Column("seed", ("seed",)),
        *map(first_column, DETECTORS),
        Column("epochs", ("epochs",)),
        Column("recipe", ("recipe",), numeric=False),
    )
    caption = (
        "The first epoch at which each detector fires, and the one from which it fires to the end. D3 "
        "compares with the frozen baseline of the same seed and epoch, by the point rule, as a single seed "
        "has no interval: a rule may stay open in Table 1 where D3 fires on each of its seeds here. The "
        "baseline learns too, and D3 can fire and stop again by what that does. Epoch 0 is left out."
    )
    rows = [
        row for arm in ARMS for answer in _rules(answers, arm) for row in firing(answers, answer, arm.seeds)
    ]
    once = {(row["rule"], row["seed"], row["recipe"]): row for row in rows}  # arms share runs
    return [Table("first-firing", caption, columns, FIELDS, tuple(once.values()))]


def _rules(answers: Answers, arm: Arm) -> Sequence[Answer]:
    return [a for a in answers.of(arm) if a.name not in ("frozen", "shallow")]


def firing(answers: Answers, answer: Answer, seeds: Sequence[int]) -> Iterator[Row]:
    """When each detector first fired on each of the seeds that were asked for, run or not."""
    found = first_firing(replay(answers.histories(answer)))
    for seed in seeds:
        own = {row["detector"]: row for row in found if row["seed"] == seed}
        absent = RUNNING if seed in answer.running_seeds else NOT_RUN
        cells: dict[str, object] = {}
        for check in DETECTORS:
            row = own.get(check, {})
            known = row.get("known_epochs", 0)
            cells[f"{check}_first"], cells[f"{check}_stays"] = row.get("first"), row.get("stays_from")
            cells[f"{check}_gap"] = absent if not own else "" if known else "not known"
        epochs = next((row["epochs"] for row in own.values()), None)
        yield {"rule": answer.name, "seed": seed, **cells, "epochs": epochs, "recipe": answer.recipe}


def first_column(detector: str) -> Column:
    fields = tuple(f"{detector}_{part}" for part in ("first", "stays", "gap"))
    return Column(f"{detector} first (stays from)", fields, _show_first)


def _show_first(first: int | None, stays: int | None, gap: str) -> str:
    return gap or words.firing(first, stays, known=1)


STUDY = Study(
    "temporal-replay",
    "At which epoch would each detector first have fired, rule by rule and seed by seed?",
    ARMS,
    tables=first_table,
)
