"""`every-rule`: each rule at its documented default on embedded data; which train, and does one diverge?"""

from __future__ import annotations

from walkback.studies.digit_sums import DATA, NET
from walkback.studies.study import SEEDS, Arm, Study

STUDY = Study(
    "every-rule",
    "Does every rule train a small residual net on digit sums at its default, or where does it diverge?",
    (
        Arm(
            (
                "bp",
                "frozen",
                "fa",
                "fa(form=block)",
                "dfa",
                "dfa(form=layer)",
                "dfa(skip=sum)",
                "sign-symmetry(form=usf)",
                "sign-symmetry(form=brsf)",
                "sign-symmetry(form=frsf)",
                "kolen-pollack",
                "weight-mirror",
                "drtp",
                "pepita",
                "dtp",
                "state-bridge",
                "credit-bridge",
                "forward-gradient",
                "node-perturbation",
                "ep",
                "shallow",
            ),
            NET,
            DATA,
            seeds=SEEDS[:1],
            recipe={"epochs": 5},
        ),
    ),
    ours="`walkback train`'s own recipe (rate 1e-3, cosine, five epochs); no rate was chosen for any rule",
)
