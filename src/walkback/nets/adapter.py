"""The adapter: traces any nn.Module whose blocks and head are named, and hands it back untouched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.errors import BadInput, NotApplicable, WalkbackError
from walkback.nets.settling import SettlingNet
from walkback.nets.trace import Trace, Wiring, cut_layers
from walkback.nets.wrappers import is_plain, plain_pass, refuse_sharded, uncompiled, unwrap

Batch = Tensor | Mapping[str, Tensor]
Blocks = str | Sequence[str] | Sequence[nn.Module]


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
        self.blocks = _find_blocks(self.model, blocks)
        self.head = _find_part(self.model, head, "head", "out_head")
        self.out_ln = _find_part(self.model, out_ln, "out_ln", "out_ln")

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
        recorder = _Recorder(self.blocks, cut_layers(wiring, self.depth), copies=wiring == "probe")
        with torch.enable_grad(), recorder.attached():
            logits = self.logits(x)
        recorder.check_complete()
        _check_label_shape(logits, y)
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
        )

    def logits(self, x: Batch) -> Tensor:
        """The model's own forward pass, eager and without a cache."""
        with plain_pass(self.model):
            return _logits_of(self.model(**x) if isinstance(x, Mapping) else self.model(x))

    def probe(self, x: Batch, y: Tensor) -> Trace:
        """The trace that is measured: batch checked, moved to the model's device and precision."""
        with torch.inference_mode(False):
            x, y = self.prepare(x, y)
            try:
                trace = self.trace(x, y, "probe")
            except WalkbackError:
                raise
            except (Exception, SystemExit) as error:  # sys.exit(0) would read as a pass
                reason = (str(error).splitlines() or [""])[0]
                raise BadInput(
                    f"The model cannot process these inputs: {type(error).__name__}: {reason}"
                ) from error
        _check_label_range(trace.logits, y)
        _check_measurable(trace)
        return trace

    def prepare(self, x: Batch, y: Tensor) -> tuple[Batch, Tensor]:
        parts = dict(x) if isinstance(x, Mapping) else {"x": x}
        parts = {name: _as_tensor(part, f"The inputs ({name})") for name, part in parts.items()}
        y = _as_tensor(y, "The labels")
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
        """Evaluation mode, with every module's mode and the generators put back afterwards.

        Everything measured happens in here: in training mode dropout and BatchNorm would make a
        gradient depend on more than its own sample.
        """
        modes = {module: module.training for module in self.model.modules()}
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=devices):
                self.model.eval()
                yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def replay_block(self, call: BlockCall, layer: int, h: Tensor) -> Tensor:
        """Block `layer` (1 … L) on another input, its other arguments as they were in the trace."""
        args, kwargs = call(h.clone())  # a block may work in place
        with uncompiled():
            return _first_tensor(self.blocks[layer - 1](*args, **kwargs))

    def read_out(self, h: Tensor) -> Tensor:
        """`head(out_ln(h))`."""
        assert self.head is not None
        with uncompiled():
            return self.head(h if self.out_ln is None else self.out_ln(h))

    def forward_from(self, x: Batch, layer: int, h: Tensor) -> Tensor:
        """Logits with h_layer replaced by `h`: what the tail of the net makes of it."""
        swapped = []

        def swap_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            swapped.append(layer)
            given = _arguments(args, kwargs)
            place = next(place for place, thing in given.items() if _is_state(thing))
            return _block_call(args, kwargs, place)(h)

        def swap_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            swapped.append(layer)
            return _with_first_tensor(output, h)

        if layer == 0:
            handle = self.blocks[0].register_forward_pre_hook(swap_input, with_kwargs=True)
        else:
            handle = self.blocks[layer - 1].register_forward_hook(swap_output)
        try:
            logits = self.logits(x)
        finally:
            handle.remove()
        if len(swapped) != 1:
            raise NotApplicable(f"h_{layer} could not be replaced: its block ran {len(swapped)} times.")
        return logits


def freeze_blocks(model: nn.Module, blocks: Blocks | None = None) -> nn.Module:
    """Fix the blocks at their present weights; train the rest for the matched baseline of D3."""
    for parameter in Adapter(model, blocks).block_parameters().values():
        parameter.requires_grad_(False)
    return model


Place = int | str  # of an argument: its position, or its keyword
BlockCall = Callable[[Tensor], tuple[tuple[Any, ...], dict[str, Any]]]


class _Recorder:
    """Forward hooks that note each state, and cut the graph where asked.

    With `copies` a block works on a copy of the state, so that one that begins in place cannot change
    what was noted.
    """

    def __init__(self, blocks: Sequence[nn.Module], cuts: Sequence[int], *, copies: bool) -> None:
        self.blocks, self.cuts, self.copies = blocks, frozenset(cuts), copies
        self.contiguous = self.replayable = True
        self.passed: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.states: list[Tensor] = []
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
            self.calls.append(_block_call(args, kwargs, place))
            self.replayable = self.replayable and is_plain((*args, *kwargs.values()))
            if index > 0:
                return None
            self.first_place = place
            return self.calls[0](self._pass_on(_arguments(args, kwargs)[place]))

        return note

    def _after(self, index: int) -> Callable[..., Any]:
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            return _with_first_tensor(output, self._pass_on(_first_tensor(output)))

        return note

    def _pass_on(self, h: Tensor) -> Tensor:
        layer = len(self.outputs)
        self.outputs.append(h)
        self.states.append(h.detach().requires_grad_() if layer in self.cuts else h)
        self.passed.append(self.states[-1].clone() if self.copies else self.states[-1])
        return self.passed[-1]

    def _place_of_state(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place:
        """Which argument is the hidden state: the one the block before returned, else the first float."""
        given = _arguments(args, kwargs)
        places = [place for place, thing in given.items() if _is_state(thing)]
        if not places:
            raise NotApplicable(f"Block {index} was called without a floating-point state.")
        if index == 0:
            return places[0]
        same = [place for place in places if given[place] is self.passed[-1]]
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


def _find_blocks(model: nn.Module, blocks: Blocks | None) -> list[nn.Module]:
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


def _find_part(
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


def _check_graph(index: int) -> None:
    if not torch.is_grad_enabled():
        raise NotApplicable(
            f"Block {index} runs without a graph, so no gradient can be asked of it.",
            "Is it called under no_grad, or with re-entrant gradient checkpointing (use_reentrant=True)?",
        )


def _logits_of(output: Any) -> Tensor:
    logits = getattr(output, "logits", output)
    if isinstance(logits, (tuple, list)):
        logits = logits[0]
    if not isinstance(logits, Tensor) or logits.dim() < 2:
        raise NotApplicable(
            "The model's output is not a batch of logits.",
            "It must return a tensor [batch, classes], or an object with an attribute 'logits'.",
        )
    return logits


def _check_label_shape(logits: Tensor, y: Tensor) -> None:
    if logits.shape[:-1] != y.shape:
        raise BadInput(
            f"The logits have shape {tuple(logits.shape)}, so labels of shape "
            f"{tuple(logits.shape[:-1])} are needed, not {tuple(y.shape)}."
        )


def _check_label_range(logits: Tensor, y: Tensor) -> None:
    classes, low, high = logits.shape[-1], int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise BadInput(
            f"Labels must lie in 0…{classes - 1} for {classes} logits, found {low}…{high}.",
            "Every row counts: there is no label, such as -100, that leaves one out." if low < 0 else "",
        )


def _check_measurable(trace: Trace) -> None:
    """States that belong to the labels row by row, and logits that a gradient can come back from."""
    lead = tuple(trace.labels.shape)
    for layer, h in enumerate(trace.states):
        if tuple(h.shape[: len(lead)]) != lead:
            raise NotApplicable(
                f"h_{layer} has shape {tuple(h.shape)}, which does not begin like the labels {lead}.",
                "States must be batch-first: [batch, …], or [batch, tokens, …] with a label per token.",
            )
    if not trace.logits.requires_grad:
        raise NotApplicable(
            "No gradient comes back from the logits to the last block.",
            "Is the head run under no_grad, or does it not depend on the blocks?",
        )


def _as_tensor(thing: Any, name: str) -> Tensor:
    try:
        tensor = torch.as_tensor(thing)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name} cannot be read as numbers: {error}.") from None
    if tensor.dim() == 0:
        raise BadInput(f"{name} must be a batch, not a single number.")
    if tensor.is_complex():
        raise BadInput(f"{name} must not be complex.")
    with torch.inference_mode(False):  # an inference tensor has no gradients; its copy has
        return tensor.clone() if tensor.is_inference() else tensor


def _is_state(thing: Any) -> bool:
    return isinstance(thing, Tensor) and thing.is_floating_point()


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Place, Any]:
    given: dict[Place, Any] = dict(enumerate(args))
    given.update(kwargs)
    return given


def _block_call(args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> BlockCall:
    """The call that was made, as a function of the hidden state at `place`."""

    def call(h: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(place, int):
            return (*args[:place], h, *args[place + 1 :]), kwargs
        return args, {**kwargs, place: h}

    return call


def _first_tensor(output: Any) -> Tensor:
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    if not _is_state(first):
        raise NotApplicable(f"A block returned {type(output).__name__}, not a state tensor.")
    return first


def _with_first_tensor(output: Any, h: Tensor) -> Any:
    if not isinstance(output, (tuple, list)):
        return h
    named = hasattr(output, "_fields")  # a namedtuple takes its fields one by one
    return type(output)(h, *output[1:]) if named else type(output)((h, *output[1:]))
