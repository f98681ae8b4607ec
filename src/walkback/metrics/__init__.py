"""The metric audit: does a metric say more about the target than the loss does?"""

from __future__ import annotations

from walkback.metrics.audit import MetricAudit as MetricAudit
from walkback.metrics.mbe import MBEEvaluator as MBEEvaluator
