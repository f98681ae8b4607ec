"""`feedback-draw`: two seeds of DFA with each other's feedback, the control for why its seeds differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from walkback.report import words
from walkback.report.answer import ACCURACY, EXACT, GROWTH, STATE, VALIDITY, Line, measured_table
from walkback.report.table import Column, Table
from walkback.studies import penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, SHORT_EPOCHS, recipe
from walkback.studies.study import SEEDS, Arm, Study

PAIR = (SEEDS[0], SEEDS[-1])
ARMS = {
    seed: Arm(
        (f"dfa+feedback(seed={other})", "frozen"), NET, DATA, seeds=(seed,), recipe=recipe(SHORT_EPOCHS)
    )
    for seed, other in (PAIR, PAIR[::-1])
}


def draw_table(answers: Answers) -> list[Table]:
    """Two by two: whose weights and batches, and whose feedback."""
    lines = []
    for seed, arm in ARMS.items():
        swapped, own = answers.of(arm)[0], answers.one(penalty.ARM, "dfa").of_seeds({seed})
        for drawn, answer in ((seed, replace(own, planned=1)), (other_than(seed), swapped)):
            lines.append(Line({"seed": str(seed), "feedback": str(drawn)}, answer))
    lead = [Column("seed", ("seed",)), Column("feedback of seed", ("feedback",))]
    caption = "DFA with its own feedback and with another seed's; weights and batches are the run's own."
    measures = [replace(measure, paper="") for measure in (ACCURACY, STATE, GROWTH, VALIDITY, EXACT)]
    return [measured_table("feedback-draw", caption, lines, lead, measures)]


def what_makes_it(own: Mapping[int, float], swapped: Mapping[int, float]) -> str:
    """What the other seed ends like when it has one part of the better one; by the seed of the weights."""
    best, other = sorted(own, key=lambda seed: -own[seed])
    middle = (own[best] + own[other]) / 2
    feedback, weights = swapped[other] > middle, swapped[best] > middle
    its = f"seed {best}'s"
    part = {
        (True, True): f"{its} feedback alone is enough, and so are {its} weights and batches alone",
        (True, False): f"{its} feedback alone is enough, {its} weights and batches alone are not",
        (False, True): f"{its} weights and batches alone are enough, {its} feedback alone is not",
        (False, False): f"neither {its} feedback alone nor {its} weights and batches alone are enough",
    }[feedback, weights]
    return (
        f"To bring a run above the middle of seeds {best} and {other} ({words.share(middle)}), {part}: "
        "four runs, no more."
    )


def other_than(seed: int) -> int:
    return next(one for one in PAIR if one != seed)


def statement(answers: Answers) -> str:
    """The four cells in a sentence; nothing before all of them are there."""
    usual = {run.seed: run.accuracy for run in answers.one(penalty.ARM, "dfa").runs}
    own = {seed: usual.get(seed) for seed in PAIR}
    swapped = {seed: words.mean_of([r.accuracy for r in answers.of(ARMS[seed])[0].runs]) for seed in PAIR}
    known = [{s: a for s, a in cells.items() if a is not None} for cells in (own, swapped)]
    return what_makes_it(*known) if all(len(cells) == len(PAIR) for cells in known) else ""


STUDY = Study(
    "feedback-draw",
    "Seeds of DFA end far apart: is it the draw of its feedback, or weights and batches?",
    tuple(ARMS.values()),
    ours="the whole study",
    tables=draw_table,
)
