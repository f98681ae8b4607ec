"""What the metrics of the battery are functions of: one net on one batch, in float64, worked out on demand.

Nothing here changes the net: parameters and buffers are read into copies and the net is called with those.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from walkback.core.errors import BadInput
from walkback.core.streams import stream_seed
from walkback.measure.rows import correct_rows
from walkback.nets.as_found import as_found
from walkback.nets.batch import check_label_range, check_label_shape, logits_of
from walkback.nets.wrappers import plain_attention, plain_pass, unwrap

Batch = Tensor | Mapping[str, Tensor]
Data = tuple[Batch, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]  # logits, labels → the loss of each row
CHUNK = 1000  # rows of a data set that go through the net at once


def stable_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """`−log σ(z_y − lse_{c≠y})` per row: neither it nor its gradient cancels where a sample is fitted.

    Through `p_y − 1` the label's own part of the error, its largest, is 0 once 1 − p_y is below the
    precision: the directions of the gradients of a fitted net, and so their spectrum, would be wrong.
    """
    own = torch.arange(logits.shape[-1], device=logits.device) == labels.unsqueeze(-1)
    others = logits.masked_fill(own, float("-inf")).logsumexp(-1)
    return -nn.functional.logsigmoid(logits.masked_fill(~own, 0.0).sum(-1) - others)


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, with the model and the generators as they were found afterwards.

    What was compiled runs eagerly: its hooks would not fire.
    """
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with (
        as_found(model),
        torch.random.fork_rng(devices=devices),
        torch.inference_mode(False),
        torch.enable_grad(),
        plain_attention(),
        plain_pass(model),
    ):
        yield


class Probe:
    """One net on one batch of N samples. Its parameters are those that are trainable, as one vector w."""

    def __init__(
        self,
        model: nn.Module,
        x: Batch,
        y: Tensor,
        *,
        init: nn.Module | Mapping[str, Tensor] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        train: Data | None = None,
        val: Data | None = None,
        loss: Loss | None = None,
        seed: int = 0,
        hessian_probes: int = 8,
        hessian_steps: int = 30,
    ) -> None:
        self.model = unwrap(model)
        self.init, self.optimizer, self.train, self.val = init, optimizer, train, val
        self.loss = loss or stable_cross_entropy
        self.seed, self.hessian_probes, self.hessian_steps = seed, hessian_probes, hessian_steps
        self.trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not self.trainable:
            raise BadInput(
                "The model has no trainable parameter.", "Set requires_grad before measuring it."
            )
        try:
            self._read_all(x, y, torch.float64)
        except RuntimeError:
            # A net that writes float32 constants into its forward pass cannot be read in float64.
            self._read_all(x, y, next(iter(self.trainable.values())).dtype)

    def _read_all(self, x: Batch, y: Tensor, dtype: torch.dtype) -> None:
        self.dtype = dtype
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        self._state = {name: _cast(tensor.detach(), dtype) for name, tensor in named}
        names = {id(tensor): name for name, tensor in reversed(named)}
        self._slots = {slot: names[id(tensor)] for slot, tensor in _slots(self.model)}
        self.x, self.y = self._read(x, y)
        with torch.no_grad():
            logits = self.forward(self.x)
        check_label_shape(logits, self.y)
        check_label_range(logits, self.y)
        self.logits = logits.cpu().double()

    def generator(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(self.seed, "battery", purpose))

    @cached_property
    def weights(self) -> Tensor:
        """w: the trainable parameters as one float64 vector."""
        return torch.cat([p.detach().to(self.dtype).flatten() for p in self.trainable.values()])

    @cached_property
    def start(self) -> Tensor | None:
        """The same vector at initialisation, where that is known."""
        if self.init is None:
            return None
        known = unwrap(self.init).state_dict() if isinstance(self.init, nn.Module) else self.init
        missing = [n for n, p in self.trainable.items() if n not in known or known[n].shape != p.shape]
        if missing:
            raise BadInput(f"init has no {missing[0]} of the model's shape.", "Give the state at step 0.")
        return torch.cat([known[n].detach().to(self.weights).flatten() for n in self.trainable])

    @cached_property
    def features(self) -> Tensor | None:
        """What the last linear layer receives, one row per sample; None for a net without one."""
        seen: list[Tensor] = []
        linear = [m for m in self.model.modules() if isinstance(m, nn.Linear)]
        handles = [m.register_forward_pre_hook(lambda m, args: seen.append(args[0])) for m in linear]
        try:
            with torch.no_grad():
                self.forward(self.x)
        finally:
            for handle in handles:
                handle.remove()
        return seen[-1].reshape(len(self.y), -1).cpu().double() if seen else None

    @cached_property
    def gradients(self) -> Tensor:
        """G: row i is the gradient of sample i's own loss with its observed label, float64 [N, P]."""
        norms = [m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if any(norm.running_mean is None for norm in norms):
            # With the statistics of a batch, no sample has a gradient of its own.
            return torch.full((len(self.y), len(self.weights)), torch.nan, dtype=torch.float64)

        def one(parameters: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
            return self._sample_losses(self.forward(_add_axis(x), parameters), y.unsqueeze(0)).sum()

        tensors = self.unflatten(self.weights)
        try:
            found = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(tensors, self.x, self.y)
        except (RuntimeError, ValueError, NotImplementedError):
            rows = [grad(one)(tensors, _rows(self.x, i), self.y[i]) for i in range(len(self.y))]
            found = {name: torch.stack([row[name] for row in rows]) for name in tensors}
        flat = [found[name].detach().reshape(len(self.y), -1) for name in self.trainable]
        return torch.cat(flat, dim=1).cpu().double()

    @cached_property
    def mean_gradient(self) -> Tensor:
        return self.gradients.mean(0)

    @property
    def spectrum(self) -> Tensor:
        """λ: eigenvalues of GGᵀ/N, largest first; NaN where G is not finite."""
        unit, size = self._unit_spectrum
        return unit * size.square()

    @property
    def spectrum_shares(self) -> Tensor:
        """λ/Σλ; NaN where all gradients are zero: nothing has no shape."""
        unit, _ = self._unit_spectrum
        return unit / unit.sum()

    @cached_property
    def _unit_spectrum(self) -> tuple[Tensor, Tensor]:
        """λ of G divided by its largest entry, and that entry: a loss of any scale keeps its digits."""
        size = self.gradients.abs().max()
        if not bool(torch.isfinite(size)):
            return torch.full((len(self.y),), torch.nan, dtype=torch.float64), size
        unit = self.gradients / torch.where(size > 0, size, 1.0)
        return torch.linalg.eigvalsh(unit @ unit.T / len(unit)).flip(0).clamp(min=0), size

    def loss_at(self, weights: Tensor) -> Tensor:
        """The mean loss of the batch with other parameters."""
        return self._sample_losses(self.forward(self.x, self.unflatten(weights)), self.y).mean()

    def hessian_times(self, vector: Tensor) -> Tensor:
        """Hv of the mean loss, by differentiating its gradient once more."""
        weights, gradient = self._gradient_graph
        if not gradient.requires_grad:
            return torch.zeros_like(vector)
        # Not `autograd.grad`: it goes round an operation that has no second derivative and reads 0 there.
        weights.grad = None
        torch.autograd.backward(gradient, vector.to(weights), retain_graph=True)
        if weights.grad is None:
            raise RuntimeError("its gradient does not lead back to its parameters.")
        return weights.grad.detach().cpu().double()

    @cached_property
    def _gradient_graph(self) -> tuple[Tensor, Tensor]:
        weights = self.weights.clone().requires_grad_()
        return weights, torch.autograd.grad(self.loss_at(weights), weights, create_graph=True)[0]

    def evaluate(self, data: Data) -> tuple[Tensor, Tensor]:
        """The loss of every sample of a data set, and which are classified correctly."""
        x, y = self._read(*data)
        losses, correct = [], []
        with torch.no_grad():
            for start in range(0, len(y), CHUNK):
                part = slice(start, start + CHUNK)
                logits = self.forward(_rows(x, part))
                losses.append(self._sample_losses(logits, y[part]))
                right = correct_rows(logits, y[part]).double()
                correct.append(right.reshape(len(logits), -1).mean(1))
        return torch.cat(losses).cpu().double(), torch.cat(correct).cpu()

    @cached_property
    def val_losses(self) -> Tensor | None:
        return None if self.val is None else self.evaluate(self.val)[0]

    def forward(self, x: Batch, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """The logits of a batch, with the net's own parameters or others."""
        state = {**self._state, **(parameters or {})}
        filled = {slot: state[name] for slot, name in self._slots.items()}
        args, kwargs = ((), dict(x)) if isinstance(x, Mapping) else ((x,), {})
        # torch's own tying would put back what it had swapped in where a module is used twice.
        return logits_of(functional_call(self.model, filled, args, kwargs, tie_weights=False))

    def unflatten(self, weights: Tensor) -> dict[str, Tensor]:
        parts = weights.split([p.numel() for p in self.trainable.values()])
        return {n: part.view(p.shape) for (n, p), part in zip(self.trainable.items(), parts, strict=True)}

    def _sample_losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """One loss per sample: its own, or the mean over its tokens."""
        return self.loss(logits, y).reshape(len(y), -1).mean(1)

    def _read(self, x: Batch, y: Tensor) -> Data:
        device = next(iter(self.trainable.values())).device
        parts = dict(x) if isinstance(x, Mapping) else {"x": x}
        parts = {name: _cast(torch.as_tensor(part), self.dtype).to(device) for name, part in parts.items()}
        y = torch.as_tensor(y)
        if y.numel() == 0:
            raise BadInput("The batch is empty.")
        if y.is_floating_point() or y.dtype == torch.bool:
            raise BadInput(f"Labels must be whole numbers, not {y.dtype}.")
        for name, part in parts.items():
            if len(part) != len(y):
                raise BadInput(f"{len(part)} inputs ({name}) but {len(y)} labels.")
        return (parts if isinstance(x, Mapping) else parts["x"]), y.long().to(device).clone()


def _slots(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every place where a module holds a parameter or buffer, each module once; tied ones fill several."""
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{path}.{name}" if path else name, tensor


def hutchinson_trace(probe: Probe) -> float:
    """mean vᵀHv over random sign vectors v: its expectation is the trace."""
    generator, found = probe.generator("hutchinson"), []
    for _ in range(probe.hessian_probes):
        signs = torch.randint(0, 2, probe.weights.shape, generator=generator).double() * 2 - 1
        found.append(signs @ probe.hessian_times(signs))
    return float(torch.stack(found).mean())


def lanczos_top(probe: Probe) -> float:
    """The eigenvalue of H of largest magnitude, with its sign, by Lanczos with full orthogonalisation."""
    size = len(probe.weights)
    start = torch.randn(size, generator=probe.generator("lanczos"), dtype=torch.float64)
    basis, diagonal, beside = (start / start.norm()).unsqueeze(0), [], []
    for _ in range(min(probe.hessian_steps, size)):
        r = probe.hessian_times(basis[-1])
        if not bool(torch.isfinite(r).all()):
            return float("nan")
        diagonal.append(r @ basis[-1])
        for _ in range(2):
            r = r - basis.T @ (basis @ r)
        beside.append(r.norm())
        if beside[-1] <= 1e-12 * max(map(abs, diagonal)):
            break
        basis = torch.cat([basis, (r / beside[-1]).unsqueeze(0)])
    off = torch.stack(beside[: len(diagonal) - 1]) if len(diagonal) > 1 else torch.zeros(0).double()
    values = torch.linalg.eigvalsh(torch.diag(torch.stack(diagonal)) + off.diag(1) + off.diag(-1))
    return float(values[values.abs().argmax()])


def second_order(function: Callable[[Probe], float]) -> Callable[[Probe], float]:
    """NaN and a warning, rather than no row, for a net with an operation that has no second derivative."""

    def tried(probe: Probe) -> float:
        try:
            return function(probe)
        except RuntimeError as error:
            reason = (str(error).splitlines() or [""])[0]
            warnings.warn(f"The Hessian of this net cannot be measured: {reason}", stacklevel=2)
            return float("nan")

    return tried


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy that autograd may use, floats in the precision of the measurement."""
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != dtype else tensor.clone()


def _rows(x: Batch, which: int | slice) -> Any:
    return {name: part[which] for name, part in x.items()} if isinstance(x, Mapping) else x[which]


def _add_axis(x: Any) -> Any:
    return {n: part.unsqueeze(0) for n, part in x.items()} if isinstance(x, Mapping) else x.unsqueeze(0)
