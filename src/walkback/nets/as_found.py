"""A model in evaluation mode for a while, and afterwards as it was found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from walkback.core.errors import BadInput


@contextlib.contextmanager
def as_found(model: nn.Module) -> Iterator[None]:
    """Evaluation mode. Afterwards every module has its mode, its buffers and its plain attributes again.

    Buffers that a forward pass made are gone, and so is the attribute that says they were made. A model
    that changes its parameters when it is run is refused, with its parameters put back.
    """
    kept = [_Kept.of(module) for module in model.modules()]
    weights = _weights(model)
    changed: list[str] = []
    try:
        model.eval()
        yield
    finally:
        for each in kept:
            each.put_back()
        with torch.no_grad():
            for name, (parameter, before) in weights.items():
                if not _same(parameter.detach(), before):
                    parameter.detach().copy_(before)
                    changed.append(name)
    if changed:
        raise BadInput(
            f"The model changes its parameter {changed[0]!r} when it is run in evaluation mode: every "
            "number would be of another model."
        )


def _weights(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Every parameter that has values, and a copy of them."""
    held = {name: p for name, p in model.named_parameters() if not is_lazy(p) and not p.is_meta}
    return {name: (p, p.detach().clone()) for name, p in held.items()}


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal values; NaN is equal to NaN."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


@dataclass(frozen=True)
class _Kept:
    module: nn.Module
    mode: bool
    buffers: dict[str, Tensor | None]
    values: dict[str, Tensor]
    fleeting: set[str]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, module: nn.Module) -> _Kept:
        buffers = dict(module._buffers.items())
        values = {name: t.detach().clone() for name, t in buffers.items() if t is not None}
        fleeting = set(module._non_persistent_buffers_set)
        return cls(module, module.training, buffers, values, fleeting, _plain_attributes(module))

    def put_back(self) -> None:
        module, held = self.module, self.module._buffers
        for name in set(held.keys()) - set(self.buffers):
            del held[name]
        for name, tensor in self.buffers.items():
            if name not in held or held[name] is not tensor:
                held[name] = tensor
        with torch.no_grad():
            for name, before in self.values.items():
                tensor = self.buffers[name]
                if tensor is not None and not torch.equal(tensor, before):
                    tensor.copy_(before)
        if module._non_persistent_buffers_set != self.fleeting:
            module._non_persistent_buffers_set = self.fleeting
        now = _plain_attributes(module)
        for name in set(now) - set(self.attributes):
            del module.__dict__[name]
        for name, value in self.attributes.items():
            if name not in now or now[name] is not value:
                module.__dict__[name] = value
        module.training = self.mode


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """What a module holds beside parameters, buffers and modules; a scripted one has none of its own."""
    if isinstance(module, torch.jit.ScriptModule):
        return {}
    return {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training"}
