"""`feedback-draw`: two seeds of DFA with each other's feedback, the control for why its seeds differ."""

from __future__ import annotations

from dataclasses import replace

from walkback.report.answer import ACCURACY, EXACT, GROWTH, STATE, VALIDITY, Line, measured_table
from walkback.report.tables import Column, Table
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
        other = next(one for one in PAIR if one != seed)
        for drawn, answer in ((seed, replace(own, planned=1)), (other, swapped)):
            lines.append(Line({"seed": str(seed), "feedback": str(drawn)}, answer))
    lead = [Column("seed", ("seed",)), Column("feedback of seed", ("feedback",))]
    caption = "DFA with its own feedback and with another seed's; weights and batches are the run's own."
    measures = [replace(measure, paper="") for measure in (ACCURACY, STATE, GROWTH, VALIDITY, EXACT)]
    return [measured_table("feedback-draw", caption, lines, lead, measures)]


STUDY = Study(
    "feedback-draw",
    "Seeds of DFA end far apart: is it the draw of its feedback, or weights and batches?",
    tuple(ARMS.values()),
    ours="the whole study",
    tables=draw_table,
)
