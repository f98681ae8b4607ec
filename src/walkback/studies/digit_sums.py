"""`digit-sums`: every variant side by side on embedded data, stem and blocks told apart, in minutes."""

from __future__ import annotations

from walkback.studies.study import Arm, Study

NET, DATA = "resmlp(width=128,expansion=2)", "digit-sums"
RECIPE = {"epochs": 4, "lr": 1e-2, "schedule": "constant"}

STUDY = Study(
    "digit-sums",
    "Which variants of FA and DFA train the blocks of a small residual net, and is it the stem instead?",
    (
        Arm(
            (
                "bp",
                "fa",
                "fa(form=block)",
                "dfa",
                "dfa(form=layer)",
                "dfa(skip=sum)",
                "frozen",
                "shallow",
                "ladder(k=2)",
                "frozen(stem=dfa)",
                "mixed(stem=bp,blocks=dfa)",
            ),
            NET,
            DATA,
            recipe=RECIPE,
        ),
    ),
    ours="the demo's setting; the task was chosen because depth matters there",
)
