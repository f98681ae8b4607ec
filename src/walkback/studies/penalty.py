"""`penalty`: the FA paper's fifth validation. Does DFA learn once its scale is held down?"""

from __future__ import annotations

from walkback.studies.cifar10 import DATA, NET, SHORT_EPOCHS, recipe
from walkback.studies.study import Arm, Study

WEIGHTS = ("1e-4", "1e-2")

STUDY = Study(
    "penalty",
    "Does DFA train its blocks once a penalty on their branches keeps the scale down, or was scale not it?",
    (
        Arm(
            (
                "dfa",
                *(f"dfa+penalty({weight})" for weight in reversed(WEIGHTS)),
                "frozen",
                "bp",
                *(f"bp+penalty({weight})" for weight in reversed(WEIGHTS)),
            ),
            NET,
            DATA,
            recipe=recipe(SHORT_EPOCHS),
        ),
    ),
    ours="backprop under each penalty, end to end, as the matched control",
)
