"""Named sets of runs that answer one question each. A new study is one file and one line here."""

from __future__ import annotations

from walkback.core.registry import Registry
from walkback.studies.study import Arm as Arm
from walkback.studies.study import Study as Study

studies: Registry[Study] = Registry(
    "study",
    {
        "digit-sums": "walkback.studies.digit_sums:STUDY",
        "dose-response": "walkback.studies.dose_response:STUDY",
        "every-rule": "walkback.studies.every_rule:STUDY",
        "five-rule": "walkback.studies.five_rule:STUDY",
        "penalty": "walkback.studies.penalty:STUDY",
        "schedule": "walkback.studies.schedule:STUDY",
    },
)
