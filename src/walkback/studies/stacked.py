"""A population of equal small MLPs trained together: one batched matrix product where a loop makes twenty.

Small nets spend their time between the operations, not in them. The mathematics is that of training each
net alone with `torch.optim.Adam`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from walkback.core.streams import stream_seed

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # Adam's defaults
_relu_backward = torch.ops.aten.threshold_backward.grad_input


def make_mlp(widths: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """`widths[0]-…-widths[-1]` with ReLU between, initialised as PyTorch does, from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "weights"))
        layers = [
            layer for pair in pairwise(widths) for layer in (nn.Linear(*pair, dtype=dtype), nn.ReLU())
        ]
    return nn.Sequential(*layers[:-1])


def batch_rows(seed: int, rows: Tensor, batch: int, steps: int) -> Tensor:
    """Which rows each step sees [steps, batch]: shuffled passes over `rows`, one after the other."""
    generator = torch.Generator().manual_seed(stream_seed(seed, "batches"))
    passes = -(-steps * batch // len(rows))
    order = torch.cat([torch.randperm(len(rows), generator=generator) for _ in range(passes)])
    return rows[order[: steps * batch]].view(steps, batch)


def train_alone(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    order: Tensor,
    *,
    lr: float,
    wd: float,
    on_step: Callable[[int], None] = lambda step: None,
) -> None:
    """One net by plain torch. `on_step(t)` is called before the first step and after each."""
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=wd, fused=True)
    net.train()
    on_step(0)
    for step, rows in enumerate(order, start=1):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        on_step(step)


class Population:
    """K nets of the same widths; parameters are [K, out, in] and [K, out], Adam's state lies beside them.

    All parameters are views of one vector, layer after layer, so that Adam is a handful of operations.
    """

    def __init__(self, nets: Sequence[nn.Sequential], lr: Sequence[float], wd: Sequence[float]) -> None:
        self.count = len(nets)
        named = [[p.detach() for p in net.parameters()] for net in nets]
        self._shapes = [p.shape for p in named[0]]
        self.flat = torch.cat([torch.stack(same).flatten() for same in zip(*named, strict=True)])
        self.parameters = self._views(self.flat)
        self._gradient = torch.zeros_like(self.flat)
        self._gradients = self._views(self._gradient)
        self._first, self._second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self._lr, self._wd = self._per_net(lr), self._per_net(wd)
        self._spare = [torch.empty_like(self.flat) for _ in range(2)]
        self._space: dict[object, Tensor] = {}
        self._steps = 0

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step of every net on its own batch: x [K, batch, features], y [K, batch]."""
        self._deposit(x, y)
        self._adam()

    def net(self, index: int, flat: Tensor | None = None) -> nn.Sequential:
        """One member as a module of its own, now or from a remembered `flat`."""
        tensors = [view[index] for view in self._views(self.flat if flat is None else flat)]
        layers: list[nn.Module] = []
        for weight, bias in zip(tensors[::2], tensors[1::2], strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype, device="meta")
            layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
            layers += [layer, nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def _deposit(self, x: Tensor, y: Tensor) -> None:
        """The gradient of each net's mean cross-entropy, by the chain rule written out."""
        weights, biases = self.parameters[::2], self.parameters[1::2]
        top, states = len(weights) - 1, [x]
        for layer in range(top):
            h = self._buffer(("h", layer), x.shape[1], weights[layer].shape[1])
            torch.baddbmm(biases[layer].unsqueeze(1), states[-1], weights[layer].transpose(1, 2), out=h)
            states.append(h.relu_())
        # Classes before samples: with two classes last, softmax would take as long as a matrix product.
        z = torch.baddbmm(biases[top].unsqueeze(2), weights[top], states[-1].transpose(1, 2))
        error = z.softmax(1).scatter_add_(
            1, y.unsqueeze(1), z.new_full((), -1.0).expand(len(y), 1, y.shape[1])
        )
        error /= y.shape[1]
        torch.bmm(error, states[-1], out=self._gradients[-2])
        torch.sum(error, 2, out=self._gradients[-1])
        delta = error.transpose(1, 2)
        for layer in range(top - 1, -1, -1):
            h = states[layer + 1]
            below = torch.bmm(delta, weights[layer + 1], out=self._buffer(("d", layer), *h.shape[1:]))
            delta = _relu_backward(below, h, 0, grad_input=below)
            torch.bmm(delta.transpose(1, 2), states[layer], out=self._gradients[2 * layer])
            torch.sum(delta, 1, out=self._gradients[2 * layer + 1])

    def _adam(self) -> None:
        self._steps += 1
        gradient, (step, root) = self._gradient, self._spare
        gradient.addcmul_(self.flat, self._wd)
        self._first.lerp_(gradient, 1 - BETA1)
        self._second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        torch.sqrt(self._second, out=root).div_((1 - BETA2**self._steps) ** 0.5).add_(EPS)
        torch.mul(self._first, self._lr, out=step)
        self.flat.addcdiv_(step, root, value=-1 / (1 - BETA1**self._steps))

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([self.count * shape.numel() for shape in self._shapes])
        return [part.view(self.count, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _per_net(self, values: Sequence[float]) -> Tensor:
        column = torch.tensor(values, dtype=self.flat.dtype)
        return torch.cat([column.repeat_interleave(shape.numel()) for shape in self._shapes])

    def _buffer(self, key: object, *shape: int) -> Tensor:
        found = self._space.get((key, shape))
        if found is None:
            found = self._space[(key, shape)] = self.flat.new_empty(self.count, *shape)
        return found


def train_stacked(
    population: Population,
    x: Tensor,
    labels: Tensor,
    order: Tensor,
    *,
    on_step: Callable[[int], None] = lambda step: None,
) -> None:
    """Every net on its own rows of the same inputs: `labels` [K, items], `order` [K, steps, batch]."""
    on_step(0)
    for step in range(order.shape[1]):
        rows = order[:, step]
        population.step(x[rows], labels.gather(1, rows))
        on_step(step + 1)
