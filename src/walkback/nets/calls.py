"""How a block is called: which of its arguments, and which part of what it returns, is the hidden state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from walkback.core.errors import NotApplicable

Place = int | str  # of an argument: its position, or its keyword
BlockCall = Callable[[Tensor], tuple[tuple[Any, ...], dict[str, Any]]]


def is_state(thing: Any) -> bool:
    return isinstance(thing, Tensor) and thing.is_floating_point()


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Place, Any]:
    given: dict[Place, Any] = dict(enumerate(args))
    given.update(kwargs)
    return given


def block_call(args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> BlockCall:
    """The call that was made, as a function of the hidden state at `place`."""

    def call(h: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(place, int):
            return (*args[:place], h, *args[place + 1 :]), kwargs
        return args, {**kwargs, place: h}

    return call


def first_tensor(output: Any) -> Tensor:
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    if not is_state(first):
        raise NotApplicable(f"A block returned {type(output).__name__}, not a state tensor.")
    return first


def with_first_tensor(output: Any, h: Tensor) -> Any:
    if not isinstance(output, (tuple, list)):
        return h
    named = hasattr(output, "_fields")  # a namedtuple takes its fields one by one
    return type(output)(h, *output[1:]) if named else type(output)((h, *output[1:]))
