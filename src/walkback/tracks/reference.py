"""Equilibrium propagation and backprop through time in plain NumPy: slow, float64, written to be read.

The golden reference of the torch kernels (`nets/ep_kernel.py`) and of track 22. Weights and gradients are
named as the net's parameters are; gradients are batch means. Nothing is shared with the kernels, and
nothing is clever: every line is a formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Step:
    """One training step: every state of the free phase, the logits at its end, all gradients."""

    states: list[Array]
    logits: Array
    gradients: dict[str, Array]


def looped_step(
    weights: Weights, x: Array, y: NDArray[np.int64], steps: int = 30, nudged: int = 10, beta: float = 0.1
) -> Step:
    """EP of the LoopedMLP: `steps` free steps from zero, then `nudged` steps at +β and as many at −β."""
    W_in, b = weights["stem.weight"], weights["stem.bias"]
    W = weights["blocks.0.recurrent.weight"]
    W_out, b_out = weights["out_head.weight"], weights["out_head.bias"]

    # Free phase: h ← tanh(W_in x + b + W h).
    drive = x @ W_in.T + b
    states = looped_states(drive, W, steps)
    rest = states[-1]

    # Nudged phase: h ← tanh(W_in x + b + W h) − (J − Jᵀ)(h − h0) − β ∂C/∂h, J the loop's Jacobian at h0.
    # By itself the nudge would travel along W; the middle term sends it along Wᵀ, as a gradient does.
    slope = 1 - np.tanh(drive + rest @ W.T) ** 2

    def settle(beta: float) -> Array:
        h = rest
        for _ in range(nudged):
            moved = h - rest
            along, back = slope * (moved @ W.T), (slope * moved) @ W
            cost_slope = softmax_error(h @ W_out.T + b_out, y) @ W_out
            h = np.tanh(drive + h @ W.T) - (along - back) - beta * cost_slope
        return h

    # Credit a = −dh/dβ, and dC/dθ = aᵀ ∂tanh(W_in x + b + W h0)/∂θ. The head's gradient is exact.
    credit = (settle(-beta) - settle(+beta)) / (2 * beta)
    logits = rest @ W_out.T + b_out
    inner, error, n = slope * credit, softmax_error(logits, y), len(y)
    gradients = {
        "stem.weight": inner.T @ x / n,
        "stem.bias": inner.sum(0) / n,
        "blocks.0.recurrent.weight": inner.T @ rest / n,
        "out_head.weight": error.T @ rest / n,
        "out_head.bias": error.sum(0) / n,
    }
    return Step(states, logits, gradients)


def looped_states(drive: Array, W: Array, steps: int) -> list[Array]:
    h, states = np.zeros_like(drive), []
    for _ in range(steps):
        h = np.tanh(drive + h @ W.T)
        states.append(h)
    return states


def looped_bptt(
    weights: Weights, x: Array, y: NDArray[np.int64], steps: int = 30, last: int | None = None
) -> Step:
    """Backprop through time of the LoopedMLP; with `last`, through that many of its last steps only.

    EP with K nudged steps is, at rest and up to O(β²), backprop through the last K steps.
    """
    W_in, b = weights["stem.weight"], weights["stem.bias"]
    W = weights["blocks.0.recurrent.weight"]
    W_out, b_out = weights["out_head.weight"], weights["out_head.bias"]
    drive = x @ W_in.T + b
    states = looped_states(drive, W, steps)
    logits = states[-1] @ W_out.T + b_out
    error, n = softmax_error(logits, y), len(y)
    gradients = {name: np.zeros_like(w) for name, w in weights.items()}
    gradients["out_head.weight"] = error.T @ states[-1] / n
    gradients["out_head.bias"] = error.sum(0) / n

    # g_t = ∂C/∂h_t, u_t = (1 − h_t²) g_t before the tanh, and g_{t−1} = Wᵀ u_t.
    g = error @ W_out
    for t in reversed(range(max(0, steps - (last or steps)), steps)):
        u = (1 - states[t] ** 2) * g
        before = states[t - 1] if t else np.zeros_like(u)
        gradients["stem.weight"] += u.T @ x / n
        gradients["stem.bias"] += u.sum(0) / n
        gradients["blocks.0.recurrent.weight"] += u.T @ before / n
        g = u @ W
    return Step(states, logits, gradients)


def hopfield_step(
    weights: Weights,
    x: Array,
    y: NDArray[np.int64],
    steps: int = 30,
    nudged: int = 10,
    beta: float = 0.1,
    step_size: float = 0.5,
) -> Step:
    """EP of the HopfieldMLP: the same two phases, down its energy.

    E = Σ_l ½‖s_l‖² − ρ(s_{l−1}) W_l ρ(s_l) − b_l ρ(s_l), with ρ = tanh and ρ(s_0) = x.
    """
    names, W, b = hopfield_layers(weights)

    def settle(s: list[Array], beta: float, steps: int) -> list[list[Array]]:
        """s_l ← s_l − ε ∂(E + βC)/∂s_l, all layers at once; every state on the way."""
        path = []
        for _ in range(steps):
            slopes = hopfield_slopes(W, b, x, s)
            if beta:
                slopes[-1] = slopes[-1] + beta * softmax_error(s[-1], y)
            s = [part - step_size * slope for part, slope in zip(s, slopes, strict=True)]
            path.append(s)
        return path

    path = settle([np.zeros((len(x), len(row))) for row in b], 0.0, steps)
    rest = path[-1]
    up, down = settle(rest, +beta, nudged)[-1], settle(rest, -beta, nudged)[-1]

    # dC/dθ = d/dβ ∂E/∂θ, with ∂E/∂W_l = −ρ(s_l) ρ(s_{l−1})ᵀ and ∂E/∂b_l = −ρ(s_l).
    above, below = [x, *map(np.tanh, up)], [x, *map(np.tanh, down)]
    gradients = {}
    for index, name in enumerate(names):
        risen, sunk = above[index + 1].T @ above[index], below[index + 1].T @ below[index]
        gradients[f"{name}.weight"] = -(risen - sunk) / (2 * beta * len(y))
        gradients[f"{name}.bias"] = -(above[index + 1] - below[index + 1]).sum(0) / (2 * beta * len(y))
    return Step([np.concatenate(s, axis=1) for s in path], rest[-1], gradients)


def hopfield_bptt(
    weights: Weights,
    x: Array,
    y: NDArray[np.int64],
    steps: int = 30,
    last: int | None = None,
    step_size: float = 0.5,
) -> Step:
    """Backprop through time of the HopfieldMLP; with `last`, through that many of its last steps only."""
    names, W, b = hopfield_layers(weights)
    path = [[np.zeros((len(x), len(row))) for row in b]]
    for _ in range(steps):
        slopes = hopfield_slopes(W, b, x, path[-1])
        path.append([part - step_size * slope for part, slope in zip(path[-1], slopes, strict=True)])
    logits, n = path[-1][-1], len(y)
    gradients = {name: np.zeros_like(w) for name, w in weights.items()}

    # One step is s' = (1 − ε) s + ε ρ'(s) F(s), F_l = W_l ρ(s_{l−1}) + b_l + W_{l+1}ᵀ ρ(s_{l+1}).
    # The credit of F_l is q_l = ε ρ'(s_l) g'_l for g' = ∂C/∂s', and
    # ∂C/∂s_l = (1 − ε) g'_l + ε ρ''(s_l) F_l g'_l + ρ'(s_l) (W_l q_{l−1} + W_{l+1}ᵀ q_{l+1}).
    g = [np.zeros_like(part) for part in path[-1]]
    g[-1] = softmax_error(logits, y)
    for s in reversed(path[:-1][-(last or steps) :]):
        rates, field = [np.tanh(part) for part in s], hopfield_fields(W, b, x, s)
        slope = [1 - rate**2 for rate in rates]
        q = [step_size * k * credit for k, credit in zip(slope, g, strict=True)]
        below = [x, *rates]
        for index, name in enumerate(names):
            gradients[f"{name}.weight"] += q[index].T @ below[index] / n
            gradients[f"{name}.bias"] += q[index].sum(0) / n
            if index:
                gradients[f"{name}.weight"] += rates[index].T @ q[index - 1] / n
        pulled = [np.zeros_like(part) for part in s]
        for index in range(1, len(s)):
            pulled[index - 1] += q[index] @ W[index]
            pulled[index] += q[index - 1] @ W[index].T
        bend = [-2 * rate * k for rate, k in zip(rates, slope, strict=True)]
        g = [
            (1 - step_size) * g[i] + step_size * bend[i] * field[i] * g[i] + slope[i] * pulled[i]
            for i in range(len(s))
        ]
    return Step([np.concatenate(s, axis=1) for s in path[1:]], logits, gradients)


def hopfield_layers(weights: Weights) -> tuple[list[str], list[Array], list[Array]]:
    """Names, weights W_1 … W_L and biases b_1 … b_L, from the input up."""
    names = ["stem.fc", *(f"blocks.0.layers.{index}" for index in range(len(weights) // 2 - 1))]
    return names, [weights[f"{name}.weight"] for name in names], [weights[f"{name}.bias"] for name in names]


def hopfield_fields(W: list[Array], b: list[Array], x: Array, s: list[Array]) -> list[Array]:
    """What arrives at each layer: `W_l ρ(s_{l−1}) + b_l + W_{l+1}ᵀ ρ(s_{l+1})`, nothing above the last."""
    rates = [x, *map(np.tanh, s)]
    fields = [rates[index] @ W[index].T + b[index] for index in range(len(s))]
    for index in range(len(s) - 1):
        fields[index] = fields[index] + rates[index + 2] @ W[index + 1]
    return fields


def hopfield_slopes(W: list[Array], b: list[Array], x: Array, s: list[Array]) -> list[Array]:
    """`∂E/∂s_l = s_l − ρ'(s_l) field_l`."""
    fields = hopfield_fields(W, b, x, s)
    return [part - (1 - np.tanh(part) ** 2) * field for part, field in zip(s, fields, strict=True)]


def softmax_error(logits: Array, y: NDArray[np.int64]) -> Array:
    """∂CE/∂logits per sample: softmax − onehot."""
    grown = np.exp(logits - logits.max(axis=1, keepdims=True))
    return grown / grown.sum(axis=1, keepdims=True) - np.eye(logits.shape[1])[y]
