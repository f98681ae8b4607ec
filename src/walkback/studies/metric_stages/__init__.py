"""The four stages a metric passes before it may claim to predict generalisation."""

from walkback.studies.metric_stages.answers import StageResult as StageResult
from walkback.studies.metric_stages.stages import acid_test as acid_test
from walkback.studies.metric_stages.stages import grid as grid
from walkback.studies.metric_stages.stages import harness as harness
from walkback.studies.metric_stages.stages import init_probe as init_probe
