"""Pure functions of a Trace: scale, reference, alignment."""

from walkback.measure.light import measure_light as measure_light
from walkback.measure.light import measure_rule as measure_rule
