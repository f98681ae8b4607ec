"""Named sets of runs that answer one question each. A new study is one file and one line here."""

from __future__ import annotations

from walkback.core.registry import Registry
from walkback.studies.study import Arm as Arm
from walkback.studies.study import Study as Study

studies: Registry[Study] = Registry(
    "study",
    {
        "batch-size": "walkback.studies.batch_size:STUDY",
        "border": "walkback.studies.border:STUDY",
        "bridges-and-ep": "walkback.studies.bridges_and_ep:STUDY",
        "controls": "walkback.studies.controls:STUDY",
        "cross-architecture": "walkback.studies.cross_architecture:STUDY",
        "decision-utility": "walkback.studies.decision_utility:STUDY",
        "digit-sums": "walkback.studies.digit_sums:STUDY",
        "dose-response": "walkback.studies.dose_response:STUDY",
        "early-epoch": "walkback.studies.early_epoch:STUDY",
        "encoding": "walkback.studies.encoding:STUDY",
        "ep-parity": "walkback.studies.ep_parity:STUDY",
        "every-rule": "walkback.studies.every_rule:STUDY",
        "feedback-draw": "walkback.studies.feedback_draw:STUDY",
        "five-rule": "walkback.studies.five_rule:STUDY",
        "offset": "walkback.studies.offset:STUDY",
        "paper": "walkback.studies.paper:STUDY",
        "penalty": "walkback.studies.penalty:STUDY",
        "penalty-reduction": "walkback.studies.penalty_reduction:STUDY",
        "perturbation-step": "walkback.studies.perturbation_step:STUDY",
        "pixels": "walkback.studies.pixels:STUDY",
        "public-code": "walkback.studies.public_code:STUDY",
        "rate": "walkback.studies.rate:STUDY",
        "schedule": "walkback.studies.schedule:STUDY",
        "stem": "walkback.studies.stem:STUDY",
        "temporal-replay": "walkback.studies.temporal_replay:STUDY",
        "threshold-sensitivity": "walkback.studies.threshold_sensitivity:STUDY",
    },
    base=Study,
)
