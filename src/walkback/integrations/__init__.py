"""walkback inside other tools."""
