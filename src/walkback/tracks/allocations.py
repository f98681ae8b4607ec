"""Allocations: the most memory that tensors held at once while some code ran, storage by storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """`with Allocations() as seen: …`, and `seen.peak_bytes` is the most that new tensors held at once.

    Every storage that an operation makes counts from then until nothing refers to it any more, autograd's
    graph included. What was there before does not count, nor what an operation frees before it returns.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._bound = 0  # on what is held now: what has died since it was last counted is still in it
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        returned = func(*args, **(kwargs or {}))
        for storage in _storages(returned):
            if storage._cdata not in given:
                self._living[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self._bound += storage.nbytes()
        if self._bound > self.peak_bytes:
            self._living = {key: kept for key, kept in self._living.items() if not kept[0].expired()}
            self._bound = sum(size for _, size in self._living.values())
            self.peak_bytes = max(self.peak_bytes, self._bound)
        return returned


def _storages(tree: Any) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
