"""Fetching an augmented, normalised batch against the training step that consumes it."""

import torch
from harness import compare
from setting import BATCH, feed, step

if __name__ == "__main__":
    source, generator = feed(), torch.Generator().manual_seed(0)
    rows = torch.randperm(source.items)[:BATCH]
    compare(
        "augmented batch / training step",
        lambda: source.train_batch(rows, generator),
        step("bp"),
        goal=0.15,
        peer_name="walkback's own step",
    )
