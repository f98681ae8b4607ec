"""Evidence in, verdict out: pure functions of stored numbers. No torch."""

from walkback.judge.evidence import Evidence as Evidence
from walkback.judge.evidence import evidence_of as evidence_of
from walkback.judge.protocol import judge as judge
from walkback.judge.thresholds import Thresholds as Thresholds
