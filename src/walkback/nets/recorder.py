"""The recorder: notes the hidden states of one forward pass, and cuts its graph where asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.errors import NotApplicable
from walkback.nets.calls import (
    BlockCall,
    Place,
    arguments,
    block_call,
    first_tensor,
    is_state,
    with_first_tensor,
)
from walkback.nets.wrappers import is_plain


class Recorder:
    """Forward hooks that note each state, and cut the graph where asked.

    With `copies` a block works on a copy of the state, so that one that begins in place cannot change
    what was noted; and what each block received is noted too, where it is not the state before it.
    """

    def __init__(self, blocks: Sequence[nn.Module], cuts: Sequence[int], *, copies: bool) -> None:
        self.blocks, self.cuts, self.copies = blocks, frozenset(cuts), copies
        self.contiguous = self.replayable = True
        self.passed: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.states: list[Tensor] = []
        self.received: list[Tensor] = []
        self.calls: list[BlockCall] = []

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        handles = []
        for index, block in enumerate(self.blocks):
            handles.append(block.register_forward_pre_hook(self._before(index), with_kwargs=True))
            handles.append(block.register_forward_hook(self._after(index)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, index: int) -> Callable[..., Any]:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._in_order(index, len(self.calls))
            _check_graph(index)
            place = self._place_of_state(index, args, kwargs)
            self.calls.append(block_call(args, kwargs, place))
            self.replayable = self.replayable and is_plain((*args, *kwargs.values()))
            given = arguments(args, kwargs)[place]
            if index > 0:
                self._note_received(given)
                return None
            self.first_place = place
            passed = self._pass_on(given)
            self._note_received(passed)
            return self.calls[0](passed)

        return note

    def _after(self, index: int) -> Callable[..., Any]:
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            return with_first_tensor(output, self._pass_on(first_tensor(output)))

        return note

    def _note_received(self, given: Tensor) -> None:
        if self.copies:
            same = _is_same(given, self.passed[-1])
            self.received.append(self.states[-1] if same else given.detach().clone())

    def _pass_on(self, h: Tensor) -> Tensor:
        layer = len(self.outputs)
        self.outputs.append(h)
        self.states.append(h.detach().requires_grad_() if layer in self.cuts else h)
        copies = self.copies or layer in self.cuts  # a leaf cannot be changed in place
        self.passed.append(self.states[-1].clone() if copies else self.states[-1])
        return self.passed[-1]

    def _place_of_state(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place:
        """Which argument is the hidden state: the one the block before returned, else the first float."""
        given = arguments(args, kwargs)
        places = [place for place, thing in given.items() if is_state(thing)]
        if not places:
            raise NotApplicable(f"Block {index} was called without a floating-point state.")
        if index == 0:
            return places[0]
        same = [place for place in places if _is_same(given[place], self.passed[-1])]
        self.contiguous = self.contiguous and bool(same)
        place = same[0] if same else places[0]
        if index == 1 and same and place != self.first_place and len(places) > 1:
            raise NotApplicable(
                f"The state is argument {place} of the second block, and not of the first.",
                "Blocks must take their hidden state in the same place, before other tensors.",
            )
        return place

    def _in_order(self, index: int, expected: int) -> None:
        if index != expected:
            raise NotApplicable(
                f"Block {index} ran where block {expected} was expected.",
                "The blocks must run once each, in the order in which they are named.",
            )

    def check_complete(self) -> None:
        if len(self.outputs) != len(self.blocks) + 1:
            raise NotApplicable(
                f"Only {len(self.calls)} of the {len(self.blocks)} named blocks ran in a forward pass.",
                "Name the blocks that the model really uses.",
            )


def _is_same(given: Tensor, passed: Tensor) -> bool:
    """The state that was passed on, or what a module's own backward hook makes of it.

    Any other view may have been changed in place, or send back another gradient.
    """
    node = given.grad_fn
    while given is not passed and type(node).__name__ == "BackwardHookFunctionBackward":
        assert node is not None
        node = node.next_functions[0][0]
        if node is not None and node is passed.grad_fn:
            return given.data_ptr() == passed.data_ptr() and given.shape == passed.shape
    return given is passed


def _check_graph(index: int) -> None:
    if not torch.is_grad_enabled():
        raise NotApplicable(
            f"Block {index} runs without a graph, so no gradient can be asked of it.",
            "Is it called under no_grad, or with re-entrant gradient checkpointing (use_reentrant=True)?",
        )
