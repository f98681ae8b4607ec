"""The setting that the FA paper's studies on CIFAR-10 share."""

from __future__ import annotations

from typing import Any

NET, DATA = "resmlp", "cifar10"
BATCH, RATE = 128, 1e-3
PAPER_EPOCHS, SHORT_EPOCHS, FEW_EPOCHS = 100, 30, 10


def recipe(epochs: int, schedule: str = "cosine", batch: int = BATCH, lr: float = RATE) -> dict[str, Any]:
    """AdamW, rate 1e-3, decay .01, batches of 128. The paper states no schedule; the notes
    of its public code name the cosine."""
    return {"epochs": epochs, "lr": lr, "weight_decay": 0.01, "batch": batch, "schedule": schedule}
