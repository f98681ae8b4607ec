"""What Allocations counts: by hand, and by the allocator's own events."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from walkback.tracks.allocations import Allocations

KB = 1024


def kilobyte() -> torch.Tensor:
    return torch.ones(256, dtype=torch.float32)


def test_memory_counts_while_something_refers_to_it():
    with Allocations() as seen:
        kept = [kilobyte() for _ in range(3)]
        for _ in range(10):
            kilobyte()  # one at a time
        del kept
        kilobyte()
    assert seen.peak_bytes == 4 * KB


def test_what_was_there_before_and_views_of_it_count_nothing():
    before = kilobyte()
    with Allocations() as seen:
        before.add_(1).view(16, 16).T.mul_(2)
        torch.add(before, before, out=before)
    assert seen.peak_bytes == 0


def test_what_autograd_keeps_for_its_backward_pass_counts():
    weight = kilobyte().requires_grad_()

    def peak(steps: int) -> int:
        with Allocations() as seen:
            h = weight
            for _ in range(steps):
                h = h.tanh()
        return seen.peak_bytes

    assert peak(12) - peak(2) == 10 * KB
    with torch.no_grad():
        assert peak(12) == peak(2) == 2 * KB


def test_the_count_is_that_of_the_allocator():
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    x = torch.randn(128, 64)

    def step() -> None:
        net.zero_grad()
        net(x).square().mean().backward()

    step()
    with Allocations() as seen:
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as observed:
        step()
    held = peak = 0
    for event in observed.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert abs(seen.peak_bytes - peak) <= 0.01 * peak
