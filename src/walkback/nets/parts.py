"""The blocks and the head of a model, by path, by module or by their usual names."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from walkback.core.errors import BadInput
from walkback.nets.wrappers import unwrap

Blocks = str | Sequence[str] | Sequence[nn.Module]


def find_blocks(model: nn.Module, blocks: Blocks | None) -> list[nn.Module]:
    if blocks is None:
        found = getattr(model, "blocks", None)
        if not isinstance(found, (nn.ModuleList, nn.Sequential)):
            raise _blocks_not_found(model, f"{type(model).__name__} has no attribute 'blocks'.")
        return _some(model, list(found))
    if isinstance(blocks, str):
        return _some(model, list(_submodule(model, blocks, "blocks").children()))
    named = [_submodule(model, b, "blocks") if isinstance(b, str) else b for b in blocks]
    return _some(model, named)


def _some(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    if not blocks:
        raise _blocks_not_found(model, f"{type(model).__name__} has no blocks under that name.")
    return [unwrap(block) for block in blocks]


def _blocks_not_found(model: nn.Module, message: str) -> BadInput:
    return BadInput(message, f"Name them by path, as in blocks='encoder.layer'.{_lists_in(model)}")


def _lists_in(model: nn.Module) -> str:
    lists = [n for n, m in model.named_modules() if n and isinstance(m, (nn.ModuleList, nn.Sequential))]
    return f" Lists of modules in it: {', '.join(lists[:6])}." if lists else ""


def _submodule(model: nn.Module, path: str, option: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        children = ", ".join(name for name, _ in model.named_children())
        raise BadInput(
            f"{type(model).__name__} has no submodule {path!r} (given as {option}).",
            f"Its direct children are: {children}.{_lists_in(model)}",
        ) from None


def find_part(
    model: nn.Module, given: str | nn.Module | None, option: str, default: str
) -> nn.Module | None:
    if isinstance(given, str):
        return unwrap(_submodule(model, given, option))
    if isinstance(given, nn.Module):
        return unwrap(given)
    if given is not None:
        raise BadInput(f"{option} is a path or a module, not {given!r}.")
    found = getattr(model, default, None)
    return unwrap(found) if isinstance(found, nn.Module) else None
