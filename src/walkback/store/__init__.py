"""Runs on disk: atomic files, bundles, the folder of bundles, and where a number came from. No torch."""

from walkback.store.bundle import Bundle as Bundle
from walkback.store.folder import Store as Store
