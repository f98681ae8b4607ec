"""`five-rule`: the FA paper's first validation, the audit of whole rules on CIFAR-10."""

from __future__ import annotations

from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, recipe
from walkback.studies.study import Arm, Study

STUDY = Study(
    "five-rule",
    "Which rules does the protocol trust on CIFAR-10 after 100 epochs, and which does it walk back?",
    (Arm(("bp", "dfa", "frozen", "fa", "shallow"), NET, DATA, recipe=recipe(PAPER_EPOCHS)),),
    ours="the schedule (cosine); the paper does not state its own",
)
