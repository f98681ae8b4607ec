"""Training steps of equilibrium propagation without autograd, for the two nets that settle.

No graph, buffers that are used again, and memory that does not grow with the number of steps. The phases
at +β and −β run side by side, as one batch of twice the rows. After K nudged steps from rest the gradients
are, up to O(β²), those of backprop through the last K steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from walkback.core.errors import BadInput
from walkback.nets.by_hand import Workspace
from walkback.nets.hopfield import HopfieldMLP
from walkback.nets.looped import LoopedMLP

Layers = Sequence[Tensor]  # the columns of each layer, as views


@dataclass(frozen=True)
class EPStep:
    """The free phase's logits and, if they were kept, its states; all gradients, as batch means.

    Logits and gradients are the kernel's own memory, which its next step overwrites.
    """

    logits: Float[Tensor, "batch classes"]
    gradients: dict[str, Tensor]
    states: Float[Tensor, "steps batch units"] | None = None


class EPKernel(ABC):
    """A net that settles: its forward pass is the free phase, `nudged` steps at ±`beta` follow.

    What settles in the nudged phases is the displacement m from the free state. As a difference of two
    states, nearly equal for a small β, it would drown in the rounding of float32.
    """

    def __init__(self, net: nn.Module, nudged: int = 10, beta: float = 0.01) -> None:
        if nudged < 1 or not beta > 0:
            raise BadInput("An EP step needs at least 1 nudged step and a beta above 0.")
        self.net, self.nudged, self.beta = net, nudged, beta
        self._space = Workspace()
        self._made: dict[str, Tensor] = {}

    @abstractmethod
    def step(self, x: Tensor, y: Int[Tensor, " batch"], *, keep: bool = False) -> EPStep:
        """Both phases and the gradients; `keep` also returns every state of the free phase."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The weights in use, by the names that their gradients have."""

    def deposit_gradients(self, x: Tensor, y: Int[Tensor, " batch"]) -> EPStep:
        """One step, and its gradients into `.grad`; for a parametrised weight, into what it is made of."""
        done, used = self.step(x, y), self.weights()
        self.net.zero_grad(set_to_none=True)
        torch.autograd.backward(list(used.values()), [done.gradients[name] for name in used])
        return done

    @property
    def buffer_bytes(self) -> int:
        """Memory held between steps, gradients left out."""
        return self._space.bytes

    def feed_back(self, above: Tensor, weight: Tensor, onto: Tensor) -> None:
        """The way back, through the same weights."""
        onto.addmm_(above, weight)

    def _rows(self, name: str, like: Tensor, *, width: int = 0, times: int = 1) -> Tensor:
        """Memory with `times` the rows of `like`, and its width if no other is given."""
        return self._space.rows(name, times * len(like), width or like.shape[1], like)

    def _twice(self, name: str, tensor: Tensor) -> Tensor:
        """One copy for the phase at +β and, under it, one for that at −β."""
        return torch.cat((tensor, tensor), out=self._rows(name, tensor, times=2))

    def signed_beta(self, error: Tensor) -> Tensor:
        """−β for each row of the phase at +β, +β for the other's: the factor of an error in the nudge."""
        column = self._rows("signed beta", error, width=1)
        for half, beta in zip(column.chunk(2), (self.beta, -self.beta), strict=True):
            half.fill_(-beta)
        return column

    def _places(self, like: Tensor, path: Tensor | None) -> Sequence[Tensor]:
        """Where successive states go: two places in turn, or one for each where all are kept."""
        return path.unbind() if path is not None else [self._rows("even", like), self._rows("odd", like)]

    def _weight_gradient(self, name: str, credit: Tensor, below: Tensor) -> Tensor:
        return torch.mm(credit.T, below, out=self._gradient(name, credit, below.shape[1]))

    def _bias_gradient(self, name: str, credit: Tensor) -> Tensor:
        return torch.sum(credit, 0, out=self._gradient(name, credit))

    def _gradient(self, name: str, credit: Tensor, *below: int) -> Tensor:
        if name not in self._made:
            self._made[name] = credit.new_empty(credit.shape[1], *below)
        return self._made[name]


class LoopedKernel(EPKernel):
    """EP of a LoopedMLP: `m ← tanh(a0 + W m) − h0 − (J − Jᵀ) m − β ∂C/∂h`, with `m = h − h0`.

    `a0 = W_in x + b + W h0` and `J = (1 − t²) W` with `t = tanh a0`, which is h0 itself if that is at rest.
    W_rec is not symmetric, and without the third term the nudge would travel along W instead of Wᵀ.
    """

    net: LoopedMLP

    def weights(self) -> dict[str, Tensor]:
        stem, head = self.net.stem, self.net.out_head
        return {
            "stem.weight": stem.weight,
            "stem.bias": stem.bias,
            "blocks.0.recurrent.weight": self.net.recurrent.weight,
            "out_head.weight": head.weight,
            "out_head.bias": head.bias,
        }

    @torch.no_grad()
    def step(self, x: Tensor, y: Int[Tensor, " batch"], *, keep: bool = False) -> EPStep:
        x = x.flatten(1)
        w_in, b, w, w_out, b_out = self.weights().values()
        drive = torch.addmm(b, x, w_in.T, out=self._rows("drive", x, width=len(w)))
        path = drive.new_empty(len(self.net.blocks) + 1, *drive.shape) if keep else None
        rest = self._settle_free(drive, w, self._places(drive, path))
        logits = torch.addmm(b_out, rest, w_out.T, out=self._rows("logits", x, width=len(w_out)))
        ahead = drive.addmm_(rest, w.T).tanh_()
        slope = one_minus_square(ahead, out=self._rows("slope", ahead))
        up, down = self._settle_nudged(y, w, w_out, logits, rest, ahead, slope).chunk(2)

        inner = torch.sub(down, up, out=ahead).mul_(slope).div_(2 * self.beta * len(x))
        error = softmax_error(logits, y, out=self._rows("error", logits)).div_(len(x))
        self._weight_gradient("stem.weight", inner, x)
        self._bias_gradient("stem.bias", inner)
        self._weight_gradient("blocks.0.recurrent.weight", inner, rest)
        self._weight_gradient("out_head.weight", error, rest)
        self._bias_gradient("out_head.bias", error)
        return EPStep(logits, self._made, path)

    def _settle_free(self, drive: Tensor, w: Tensor, places: Sequence[Tensor]) -> Tensor:
        doubled = torch.mul(drive, 2, out=self._rows("doubled", drive))
        h = tanh_of_half_(places[0].copy_(doubled))
        for index in range(1, len(self.net.blocks) + 1):
            place = places[index % len(places)]
            h = tanh_of_half_(torch.addmm(doubled, h, w.T, alpha=2, out=place))
        return h

    def _settle_nudged(
        self,
        y: Tensor,
        w: Tensor,
        w_out: Tensor,
        logits: Tensor,
        rest: Tensor,
        ahead: Tensor,
        slope: Tensor,
    ) -> Tensor:
        """m at +β and, under it, at −β; `ahead` is t, where one more free step would lead."""
        drift = self._twice("drift", torch.sub(ahead, rest, out=self._rows("across", rest)))
        ahead, slope = self._twice("both ahead", ahead), self._twice("both slopes", slope)
        moved, across, bend, back = (
            self._rows(name, drift) for name in ("moved", "across", "bend", "back")
        )
        logits = self._twice("both logits", logits)
        shown, nudge = self._rows("shown", logits), self._rows("nudge", logits)
        labels, by = y.repeat(2), self.signed_beta(logits)
        moved.zero_()
        for _ in range(self.nudged):
            softmax_error(torch.addmm(logits, moved, w_out.T, out=shown), labels, out=nudge).mul_(by)
            torch.mm(moved, w.T, out=across)
            torch.mul(moved, slope, out=back)
            tanh_change(across, ahead, out=bend, scratch=moved).sub_(across)
            torch.addcmul(drift, bend, slope, out=moved)
            self.feed_back(back, w, onto=moved)
            moved.addmm_(nudge, w_out)
        return moved


class HopfieldKernel(EPKernel):
    """EP of a HopfieldMLP: `m ← (1 − ε) m + ε (ρ'(s) F(s) − s0 − β ∂C/∂s)`, with `m = s − s0`.

    F is what arrives at a layer from its neighbours; all layers lie side by side and move at once.
    """

    net: HopfieldMLP

    def weights(self) -> dict[str, Tensor]:
        return {
            f"{name}.{kind}": getattr(self.net.get_submodule(name), kind)
            for name in self._names()
            for kind in ("weight", "bias")
        }

    def _names(self) -> list[str]:
        return ["stem.fc", *(f"blocks.0.layers.{index}" for index in range(len(self.net.step.layers)))]

    @torch.no_grad()
    def step(self, x: Tensor, y: Int[Tensor, " batch"], *, keep: bool = False) -> EPStep:
        x, used = x.flatten(1), list(self.weights().values())
        weights = used[0::2]
        drive = self._drive(x, weights[0], used[1::2])
        path = drive.new_empty(len(self.net.blocks) + 1, *drive.shape) if keep else None
        rest = self._settle_free(drive, weights[1:], self._places(drive, path))
        logits = self._rows("logits", x, width=self.net.out_head.classes)
        logits.copy_(self._layers(rest)[-1])
        rates = torch.tanh(rest, out=self._rows("rates", rest))
        self._add_fields(self._layers(rates), weights[1:], onto=self._layers(drive))
        changes = self._settle_nudged(y, weights[1:], rest, rates, fields=drive)
        self._differentiate(x, rates, *changes.chunk(2))
        return EPStep(logits, self._made, path)

    def _layers(self, units: Tensor) -> Layers:
        return units.split(self.net.step.widths, dim=1)

    def _drive(self, x: Tensor, weight: Tensor, biases: Sequence[Tensor]) -> Tensor:
        """`W_1 x + b_1 | b_2 | … | b_L`."""
        drive = self._rows("drive", x, width=sum(self.net.step.widths))
        first, *others = self._layers(drive)
        torch.addmm(biases[0], x, weight.T, out=first)
        for layer, bias in zip(others, biases[1:], strict=True):
            layer.copy_(bias)
        return drive

    def _add_fields(self, rates: Layers, weights: Sequence[Tensor], onto: Layers) -> None:
        """`W_l ρ_{l−1} + W_{l+1}ᵀ ρ_{l+1}` for every layer."""
        for index, weight in enumerate(weights):
            onto[index + 1].addmm_(rates[index], weight.T)
            self.feed_back(rates[index + 1], weight, onto=onto[index])

    def _settle_free(self, drive: Tensor, weights: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
        """What moves is 2s, pulled to `2 ρ' F(s) = (1 − 4 h²) (2 d + 4 V h)`, with `h = σ(2s) − ½ = ρ/2`,
        the drive d, and V what the weights make of a layer's neighbours."""
        half, square, pull = (self._rows(name, drive) for name in ("rates", "square", "pull"))
        doubled = torch.mul(drive, 2, out=self._rows("doubled", drive))
        s = torch.mul(doubled, self.net.step.step_size, out=places[0])
        halves, pulls, weights = self._layers(half), self._layers(pull), [4 * weight for weight in weights]
        for index in range(1, len(self.net.blocks) + 1):
            torch.sigmoid(s, out=half).sub_(0.5)
            pull.copy_(doubled)
            self._add_fields(halves, weights, onto=pulls)
            pull.addcmul_(torch.mul(half, half, out=square), pull, value=-4)
            s = torch.lerp(s, pull, self.net.step.step_size, out=places[index % len(places)])
        for place in places:
            place.div_(2)
        return s

    def _settle_nudged(
        self, y: Tensor, weights: Sequence[Tensor], rest: Tensor, rates: Tensor, fields: Tensor
    ) -> Tensor:
        """How ρ(s) has changed at +β and, under it, at −β.

        With `c = ρ(s) − ρ(s0)` and `k = ρ'(s0) − ρ'(s) = c (2 ρ(s0) + c)`, and as `F(s) = F(s0) + V c`,
        `ρ'(s) F(s) − ρ'(s0) F(s0) = ρ'(s0) V c − k F(s)`.
        """
        rates, fields = self._twice("both rates", rates), self._twice("both fields", fields)
        rest = self._twice("both rest", rest)
        slope = one_minus_square(rates, out=self._rows("slope", rates))
        drift = torch.mul(slope, fields, out=self._rows("drift", rest)).sub_(rest)
        moved, change, bend, sent, pull = (
            self._rows(name, rest) for name in ("moved", "change", "bend", "sent", "pull")
        )
        changes, sents = self._layers(change), self._layers(sent)
        top, pull_top, moved_top = (self._layers(units)[-1] for units in (rest, pull, moved))
        shown, nudge = (self._rows(name, rest, width=top.shape[1]) for name in ("shown", "nudge"))
        labels, by = y.repeat(2), self.signed_beta(shown)
        moved.zero_()
        for _ in range(self.nudged):
            softmax_error(torch.add(top, moved_top, out=shown), labels, out=nudge).mul_(by)
            tanh_change(moved, rates, out=change, scratch=bend).mul_(slope)
            sent.zero_()
            self._add_fields(changes, weights, onto=sents)
            torch.addcmul(drift, slope, sent, out=pull)
            torch.add(change, rates, alpha=2, out=bend).mul_(change)
            pull.addcmul_(bend, sent.add_(fields), value=-1)
            pull_top.add_(nudge)
            moved.lerp_(pull, self.net.step.step_size)
        return tanh_change(moved, rates, out=change, scratch=bend).mul_(slope)

    def _differentiate(self, x: Tensor, rates: Tensor, up: Tensor, down: Tensor) -> None:
        """`dC/dW_l = −d/dβ ρ_l ρ_{l−1}ᵀ` and `dC/db_l = −d/dβ ρ_l`, by the product rule of differences."""
        middle = torch.add(up, down, out=self._rows("even", rates)).div_(2).add_(rates)
        fall = torch.sub(down, up, out=self._rows("odd", rates)).div_(2 * self.beta * len(x))
        values, falls = [x, *self._layers(middle)], self._layers(fall)
        for index, name in enumerate(self._names()):
            gradient = self._weight_gradient(f"{name}.weight", falls[index], values[index])
            if index:  # the input is clamped, and does not fall
                gradient.addmm_(values[index + 1].T, falls[index - 1])
            self._bias_gradient(f"{name}.bias", falls[index])


def tanh_of_half_(doubled: Tensor) -> Tensor:
    """`tanh(x / 2) = 2 σ(x) − 1` in place: torch's σ takes a fifth of the time of its tanh."""
    return doubled.sigmoid_().mul_(2).sub_(1)


def tanh_change(move: Tensor, t: Tensor, out: Tensor, scratch: Tensor) -> Tensor:
    """`(tanh(a + move) − tanh a) / (1 − t²) = τ / (1 + t τ)`, for `t = tanh a` and `τ = tanh move`.

    Near 0, τ is Lambert's continued fraction `m (15 + m²) / (15 + 6 m²)`: on a CPU a third of the time of
    torch's tanh, and off by no more than a rounding, since the next term is m⁷/1575.
    """
    if move.device.type == "cpu" and within(move, (1575 * torch.finfo(move.dtype).eps) ** (1 / 6)):
        torch.mul(move, move, out=scratch)
        torch.add(scratch, 15, out=out).mul_(move)
        scratch.mul_(6).add_(15)
    else:
        torch.tanh(move, out=out)
        scratch.fill_(1)
    return out.div_(scratch.addcmul_(t, out))


def within(move: Tensor, reach: float) -> bool:
    """Whether no number lies farther than `reach` from 0; with a NaN among them, no."""
    low, high = torch.aminmax(move)
    return -reach <= float(low) and float(high) <= reach


def one_minus_square(rates: Tensor, out: Tensor) -> Tensor:
    """ρ' of ρ = tanh, by its value."""
    return torch.mul(rates, rates, out=out).neg_().add_(1)


def softmax_error(
    logits: Float[Tensor, "rows classes"], y: Int[Tensor, " rows"], out: Float[Tensor, "rows classes"]
) -> Float[Tensor, "rows classes"]:
    """softmax − onehot without cancellation: the label's own is minus the sum of the others.

    Classes go down the columns: along rows as short as these, torch's softmax takes ten times as long.
    """
    index = y.unsqueeze(0)
    error = torch.softmax(logits.T.contiguous(), 0).scatter_(0, index, 0.0)
    return out.copy_(error.scatter_(0, index, error.sum(0, keepdim=True).neg_()).T)
