"""Opens what wraps a model, and lets it run as it is written: not compiled, and without a cache."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from walkback.core.errors import BadInput


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside the wrappers of torch.compile and of data parallelism: it computes the same."""
    while True:
        inner = getattr(model, "_orig_mod", None)  # torch.compile's name for it
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def refuse_sharded(model: nn.Module) -> None:
    """A state has no norm and a gradient no direction where each process holds a part of the weights."""
    parts = [*model.modules(), *model.parameters()]
    names = {type(part).__name__ for part in parts} & {"FullyShardedDataParallel", "DTensor"}
    if names:
        raise BadInput(
            f"The weights of {type(model).__name__} are split over processes ({', '.join(sorted(names))}).",
            "Gather them in a model on one device, and audit that.",
        )


@contextlib.contextmanager
def plain_pass(model: nn.Module) -> Iterator[None]:
    """Within, every module runs as it is written, so that hooks fire and two passes do not mix."""
    with uncompiled(), _without_cache(model):
        yield


def uncompiled() -> AbstractContextManager[Any]:
    """Within, whatever was compiled runs eagerly, wherever it sits in a model.

    A compiled pass ignores hooks that are newer than itself: torch does not look for them again
    (`torch._dynamo.config.skip_nnmodule_hook_guards`), and a swapped state would silently have no effect.
    """
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and loading it takes seconds
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """Language models keep the keys and values they have seen (`config.use_cache`), for generation.

    A block that is run again would attend to the keys of the pass before instead of its own.
    """
    found: list[Any] = [module.__dict__.get("config") for module in model.modules()]
    caching = [config for config in found if getattr(config, "use_cache", None) is True]
    try:
        for config in caching:
            config.use_cache = False
        yield
    finally:
        for config in caching:
            config.use_cache = True


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Within, attention runs as written: fused, it has neither second derivatives nor forward mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Within, BatchNorm's running statistics stay: of all the times a step runs a part they count one."""
    kept = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    tracked = [m.track_running_stats for m in kept]
    try:
        for module in kept:
            module.track_running_stats = False
        yield
    finally:
        for module, value in zip(kept, tracked, strict=True):
            module.track_running_stats = value


def is_plain(argument: Any) -> bool:
    """Whether a block cannot have changed an argument: anything else may be a cache it writes to."""
    if isinstance(argument, tuple):
        return all(is_plain(part) for part in argument)
    kinds = (Tensor, bool, int, float, str, torch.dtype, torch.device)
    return argument is None or isinstance(argument, kinds)
