"""`schedule`: one seed at a constant rate, the control for a schedule that the FA paper does not state."""

from __future__ import annotations

from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, recipe
from walkback.studies.study import SEEDS, Arm, Study

STUDY = Study(
    "schedule",
    "How much of the difference between our numbers and the paper's is the learning-rate schedule?",
    (Arm(("bp", "dfa", "frozen"), NET, DATA, seeds=SEEDS[:1], recipe=recipe(PAPER_EPOCHS, "constant")),),
    ours="the whole study",
)
