"""Claims with the controls under which they must fail. A new track is one file and one line here."""

from __future__ import annotations

from walkback.core.registry import Registry
from walkback.tracks.lab import Lab as Lab
from walkback.tracks.track import Control as Control
from walkback.tracks.track import Decision as Decision
from walkback.tracks.track import Gate as Gate
from walkback.tracks.track import IdentityGate as IdentityGate
from walkback.tracks.track import PositiveControl as PositiveControl
from walkback.tracks.track import Track as Track

tracks: Registry[Track] = Registry(
    "track",
    {
        "1": "walkback.tracks.spectral_norm:track",
        "2": "walkback.tracks.parity:track",
        "3": "walkback.tracks.decay:track",
        "6": "walkback.tracks.alignment:track",
        "9": "walkback.tracks.ep_gradient:track",
        "10": "walkback.tracks.holomorphic:track",
        "15": "walkback.tracks.kernel_memory:track",
        "22": "walkback.tracks.golden:track",
        "calibration": "walkback.tracks.calibration:track",
        "cosine": "walkback.tracks.cosine:track",
        "dfa-cost": "walkback.tracks.dfa_cost:track",
        "exact-proxy": "walkback.tracks.exact_proxy:track",
        "reference": "walkback.tracks.reference_validity:track",
        "resume": "walkback.tracks.resume:track",
    },
    base=Track,
)
