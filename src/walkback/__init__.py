"""walkback audits claims about how networks learn, and walks back the ones the evidence does not carry."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walkback import credit_metrics as credit_metrics
    from walkback.check import check_rule as check_rule
    from walkback.core.errors import WalkbackError as WalkbackError
    from walkback.core.verdict import Outcome as Outcome
    from walkback.core.verdict import Verdict as Verdict
    from walkback.judge.thresholds import Thresholds as Thresholds
    from walkback.measure.battery import fim_norm as fim_norm
    from walkback.measure.battery import metric_battery as metric_battery
    from walkback.metrics.audit import MetricAudit as MetricAudit
    from walkback.metrics.mbe import MBEEvaluator as MBEEvaluator
    from walkback.nets import nets as nets
    from walkback.nets.adapter import freeze_blocks as freeze_blocks
    from walkback.protocol import Bundle as Bundle
    from walkback.protocol import FAProtocol as FAProtocol
    from walkback.rules import Rule as Rule
    from walkback.rules import rules as rules
    from walkback.tracks import Track as Track
    from walkback.tracks.verify import verify as verify

# Loaded when first used: `import walkback` stays instant, and judging never loads torch.
_PUBLIC = {
    "Bundle": "walkback.protocol",
    "MBEEvaluator": "walkback.metrics.mbe",
    "MetricAudit": "walkback.metrics.audit",
    "FAProtocol": "walkback.protocol",
    "Outcome": "walkback.core.verdict",
    "Rule": "walkback.rules",
    "Thresholds": "walkback.judge.thresholds",
    "Track": "walkback.tracks",
    "Verdict": "walkback.core.verdict",
    "WalkbackError": "walkback.core.errors",
    "check_rule": "walkback.check",
    "fim_norm": "walkback.measure.battery",
    "freeze_blocks": "walkback.nets.adapter",
    "metric_battery": "walkback.measure.battery",
    "nets": "walkback.nets",
    "rules": "walkback.rules",
    "verify": "walkback.tracks.verify",
}

__all__ = sorted([*_PUBLIC, "credit_metrics"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from walkback.store.provenance import installed

        return installed("walkback")
    if name == "credit_metrics":
        return import_module("walkback.credit_metrics")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'walkback' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
