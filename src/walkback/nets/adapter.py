"""The adapter: traces any nn.Module whose blocks and head are named, and hands it back untouched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.errors import BadInput, NotApplicable, WalkbackError
from walkback.nets.as_found import as_found
from walkback.nets.batch import (
    Batch,
    as_tensor,
    check_label_range,
    check_label_shape,
    check_labels_are_not_inputs,
    check_measurable,
    logits_of,
)
from walkback.nets.calls import BlockCall, arguments, block_call, first_tensor, is_state, with_first_tensor
from walkback.nets.parts import Blocks, find_blocks, find_part
from walkback.nets.recorder import Recorder
from walkback.nets.settling import SettlingNet
from walkback.nets.trace import Trace, Wiring, cut_layers
from walkback.nets.wrappers import plain_pass, refuse_sharded, statistics_kept, uncompiled, unwrap


class Adapter:
    """A model seen as stem → blocks → head.

    `blocks` is the path of a ModuleList (`"encoder.layer"`), a list of paths, or the modules
    themselves; `head` and `out_ln` are paths or modules. Without them the attributes `blocks`,
    `out_ln` and `out_head` are used. h_0 is what the first block receives; h_l is what block l
    returns (its first tensor, where it returns several). A compiled or data-parallel model is opened
    and runs eagerly here, whatever in it was compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Blocks | None = None,
        out_ln: str | nn.Module | None = None,
        head: str | nn.Module | None = None,
    ) -> None:
        refuse_sharded(model)
        self.model = unwrap(model)
        self.blocks = find_blocks(self.model, blocks)
        self.head = find_part(self.model, head, "head", "out_head")
        self.out_ln = find_part(self.model, out_ln, "out_ln", "out_ln")
        self.trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        floating = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(floating, torch.float32)

    def block_parameters(self) -> dict[str, nn.Parameter]:
        inside = {id(p) for block in self.blocks for p in block.parameters()}
        return {name: p for name, p in self.model.named_parameters() if id(p) in inside}

    @property
    def shares_weights(self) -> bool:
        """Whether some block uses the weights of another, as the steps of a recurrent net do."""
        seen = [id(p) for block in self.blocks for p in block.parameters()]
        return isinstance(self.model, SettlingNet) or len(set(seen)) < len(seen)

    def trace(self, x: Batch, y: Tensor, wiring: Wiring) -> Trace:
        """One forward pass in the model's current mode, its graph cut as `wiring` says."""
        recorder = Recorder(self.blocks, cut_layers(wiring, self.depth), copies=wiring == "probe")
        reader = self.head if self.out_ln is None else self.out_ln
        with (
            torch.enable_grad(),
            recorder.attached(),
            given_to(reader if wiring == "probe" else None) as read,
        ):
            logits = self.logits(x)
        recorder.check_complete()
        check_label_shape(logits, y)
        return Trace(
            self,
            recorder.outputs,
            recorder.states,
            logits,
            y,
            wiring,
            inputs=x,
            calls=recorder.calls,
            contiguous=recorder.contiguous,
            replayable=recorder.replayable,
            received=recorder.received,
            read=read[0] if len(read) == 1 else None,
        )

    def logits(self, x: Batch) -> Tensor:
        """The model's own forward pass, eager and without a cache."""
        with plain_pass(self.model), outputs_of(self.head) as made:
            if isinstance(x, Mapping):
                return logits_of(self.model(**{name: _own(part) for name, part in x.items()}), made)
            return logits_of(self.model(_own(x)), made)

    def probe(self, x: Batch, y: Tensor) -> Trace:
        """The trace that is measured: batch checked, moved to the model's device and precision."""
        with torch.inference_mode(False):
            x, y = self.prepare(x, y)
            try:
                before = self._generators()
                trace = self.trace(x, y, "probe")
                trace.random = self._draws(before, x, trace.logits)
            except WalkbackError:
                raise
            except (Exception, SystemExit) as error:  # sys.exit(0) would read as a pass
                reason = (str(error).splitlines() or [""])[0]
                raise BadInput(
                    f"The model cannot process these inputs: {type(error).__name__}: {reason}"
                ) from error
        check_label_range(trace.logits, y)
        check_measurable(trace)
        return trace

    def _generators(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def _draws(self, before: list[Tensor], x: Batch, logits: Tensor) -> bool:
        """Whether a pass that used a generator gives other logits when it is made again."""
        if all(map(torch.equal, before, self._generators())):
            return False
        with torch.no_grad(), statistics_kept(self.model):
            return not torch.allclose(self.logits(x), logits, rtol=0, atol=0, equal_nan=True)

    def prepare(self, x: Batch, y: Tensor) -> tuple[Batch, Tensor]:
        if any(parameter.is_meta for parameter in self.model.parameters()):
            raise BadInput("The model has no weights: it is on the meta device.", "Load them first.")
        parts = dict(x) if isinstance(x, Mapping) else {"x": x}
        parts = {name: as_tensor(part, f"The inputs ({name})") for name, part in parts.items()}
        y = as_tensor(y, "The labels")
        check_labels_are_not_inputs(parts, y)
        for name, part in parts.items():
            if len(part) != len(y):
                raise BadInput(f"{len(part)} inputs ({name}) but {len(y)} labels.")
            if part.is_floating_point():
                if not bool(torch.isfinite(part).all()):
                    raise BadInput(f"The inputs ({name}) contain NaN or infinite values.")
                part = part.to(self.dtype)  # before it moves: MPS has no float64
            parts[name] = part.to(self.device)
        if y.is_floating_point() or y.dtype == torch.bool:
            raise BadInput(f"Labels must be whole numbers, not {y.dtype}.")
        if y.numel() == 0:
            raise BadInput("The batch is empty.")
        return (parts if isinstance(x, Mapping) else parts["x"]), y.long().to(self.device)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode, with the model and torch's generators as they were found afterwards.

        Everything measured happens in here: in training mode dropout and BatchNorm would make a
        gradient depend on more than its own sample.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with as_found(self.model), torch.random.fork_rng(devices=devices), torch.inference_mode(False):
            yield

    def replay_block(self, call: BlockCall, layer: int, h: Tensor) -> Tensor:
        """Block `layer` (1 … L) on another input, its other arguments as they were in the trace."""
        args, kwargs = call(h.clone())  # a block may work in place
        block = self.blocks[layer - 1]
        with uncompiled(), statistics_kept(block):
            return first_tensor(block(*args, **kwargs))

    def read_out(self, h: Tensor) -> Tensor:
        """`head(out_ln(h))` on another state."""
        assert self.head is not None
        with uncompiled(), statistics_kept(self.head):
            return self.head(self.normed(h))

    def normed(self, h: Tensor) -> Tensor:
        """`out_ln(h)` on another state; the state itself where there is no terminal norm."""
        if self.out_ln is None:
            return h
        with uncompiled(), statistics_kept(self.out_ln):
            return self.out_ln(h)

    def forward_from(self, x: Batch, layer: int, h: Tensor) -> Tensor:
        """Logits with h_layer replaced by `h`: what the tail of the net makes of it."""
        swapped = []

        def swap_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            swapped.append(layer)
            given = arguments(args, kwargs)
            place = next(place for place, thing in given.items() if is_state(thing))
            return block_call(args, kwargs, place)(h)

        def swap_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            swapped.append(layer)
            return with_first_tensor(output, h)

        if layer == 0:
            handle = self.blocks[0].register_forward_pre_hook(swap_input, with_kwargs=True)
        else:
            handle = self.blocks[layer - 1].register_forward_hook(swap_output)
        try:
            with statistics_kept(self.model):
                logits = self.logits(x)
        finally:
            handle.remove()
        if len(swapped) != 1:
            raise NotApplicable(f"h_{layer} could not be replaced: its block ran {len(swapped)} times.")
        return logits


@contextlib.contextmanager
def outputs_of(module: nn.Module | None) -> Iterator[list[Any]]:
    """What a module gives while this lasts: a head may make one of several tensors that a model returns."""
    made: list[Any] = []
    if module is None or isinstance(module, torch.jit.ScriptModule):
        yield made
        return
    handle = module.register_forward_hook(lambda module, args, output: made.append(output))
    try:
        yield made
    finally:
        handle.remove()


@contextlib.contextmanager
def given_to(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """The first floating-point tensor that a module receives each time it runs while this lasts."""
    given: list[Tensor] = []
    if module is None or isinstance(module, torch.jit.ScriptModule):
        yield given
        return

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = [thing for thing in arguments(args, kwargs).values() if is_state(thing)]
        given.extend(state.detach().clone() for state in states[:1])  # it may work in place

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield given
    finally:
        handle.remove()


def _own(part: Any) -> Any:
    """A copy for the model, which may change its input in place."""
    return part.clone() if isinstance(part, Tensor) else part


def freeze_blocks(model: nn.Module, blocks: Blocks | None = None) -> nn.Module:
    """Fix the blocks at their present weights; train the rest for the matched baseline of D3."""
    for parameter in Adapter(model, blocks).block_parameters().values():
        parameter.requires_grad_(False)
    return model
