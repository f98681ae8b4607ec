"""The metric battery: what people read off a trained net to predict how well it generalises, all at once.

    row = metric_battery(model, x, y, init=state_at_step_0, val=(x_val, y_val))

Definitions follow the published run tables where those settle them, and say (ours) where they are silent.
Everything is computed in float64 and evaluation mode; the model comes back as it was.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from walkback.core.errors import BadInput, UnknownName
from walkback.core.streams import stream_seed
from walkback.measure.probe import (
    Batch,
    Loss,
    Probe,
    hutchinson_trace,
    lanczos_top,
    second_order,
    untouched,
)
from walkback.measure.rows import correct_rows
from walkback.nets.wrappers import unwrap

NAN = math.nan
SAM_RHO = 0.05  # published sharpness over gradient norm: .050–.055 in 1,000 runs
ASAM_RHO, ASAM_ETA = 0.5, 0.01  # Kwon et al. 2021
ECE_BINS = 15  # Guo et al. 2017


def metric_battery(
    model: nn.Module,
    x: Batch,
    y: Tensor,
    *,
    init: nn.Module | Mapping[str, Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    seed: int = 0,
    train: tuple[Batch, Tensor] | None = None,
    val: tuple[Batch, Tensor] | None = None,
    loss: Loss | None = None,
    metrics: Iterable[str] | None = None,
    hessian_probes: int = 8,
    hessian_steps: int = 30,
) -> dict[str, float]:
    """Every metric of `METRICS` (or those named) for one net on the batch (x, y) of N samples.

    `init` is the state at step 0, `train` and `val` are data sets for their losses, `loss` maps logits and
    labels to one loss per row (default: cross-entropy). A metric whose input is not given, or that is not
    defined for this net, is NaN. Keep N the same for all nets that are compared: the Fisher metrics fall
    mechanically as N grows.
    """
    names = list(METRICS if metrics is None else metrics)
    for name in names:
        if name not in METRICS:
            raise UnknownName(f"Unknown metric {name!r}.", f"Available: {', '.join(METRICS)}.")
    with untouched(model):
        probe = Probe(
            model,
            x,
            y,
            init=init,
            optimizer=optimizer,
            train=train,
            val=val,
            loss=loss,
            seed=seed,
            hessian_probes=hessian_probes,
            hessian_steps=hessian_steps,
        )
        return {name: float(METRICS[name].function(probe)) for name in names}


def fim_norm(model: nn.Module, x: Batch, y: Tensor, *, loss: Loss | None = None) -> float:
    """`FIM_norm = exp(H(λ/Σλ))/N`, λ the eigenvalues of GGᵀ/N, G the per-sample gradients; 1/N … 1.

    With the observed labels y, in float64. Multiplying the loss by a constant does not change it; without
    any gradient it is NaN.
    """
    return metric_battery(model, x, y, loss=loss, metrics=["fim_norm"])["fim_norm"]


class BatteryCallback:
    """Collects one row of metrics every so many steps of anyone's training loop.

    >>> watch = BatteryCallback(x, y, every=100, metrics=["fim_norm", "grad_norm"])  # doctest: +SKIP
    >>> watch(model, step)  # in the loop; watch.frame() afterwards  # doctest: +SKIP

    Without `init`, the weights of a call at step 0 are taken as those at initialisation.
    """

    def __init__(
        self,
        x: Batch,
        y: Tensor,
        *,
        every: int = 1,
        init: nn.Module | Mapping[str, Tensor] | None = None,
        **options: Any,
    ) -> None:
        if every < 1:
            raise BadInput(f"every must be at least 1, not {every}.")
        self.x, self.y, self.every, self.options = x, y, every, options
        self.init = init
        self.rows: list[dict[str, Any]] = []

    def __call__(self, model: nn.Module, step: int, **columns: Any) -> dict[str, Any] | None:
        """Measure if it is time; the new row, with `columns` of one's own in front."""
        if step == 0 and self.init is None:
            now = unwrap(model).state_dict()
            self.init = {name: tensor.detach().clone() for name, tensor in now.items()}
        if step % self.every:
            return None
        found = metric_battery(model, self.x, self.y, init=self.init, **self.options)
        self.rows.append({"step": step, **columns, **found})
        return self.rows[-1]

    def frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows)


@dataclass(frozen=True)
class Metric:
    """One line of the table: the function of a probe, and what it is in words."""

    function: Callable[[Probe], float]
    meaning: str


def _mean(values: Tensor | None) -> float:
    return NAN if values is None or not len(values) else float(values.mean())


def _spread(values: Tensor) -> float:
    return float(values.std(correction=0))


def _finite(values: Tensor) -> Tensor:
    """The values, or NaN for all of them: a comparison with NaN would count it as a number."""
    return values if bool(torch.isfinite(values).all()) else torch.full_like(values, NAN)


def _log_p(p: Probe) -> Tensor:
    return _finite(p.logits.reshape(-1, p.logits.shape[-1])).log_softmax(-1)


def _labels(p: Probe) -> Tensor:
    return p.y.reshape(-1).cpu()


def _confidence(p: Probe) -> Tensor:
    return _log_p(p).exp().max(-1).values


def _right(p: Probe) -> Tensor:
    return correct_rows(p.logits.reshape(-1, p.logits.shape[-1]), _labels(p)).double()


def _margin(p: Probe) -> float:
    if p.logits.shape[-1] < 2:
        return NAN
    top = _log_p(p).exp().topk(2).values
    return _mean(top[:, 0] - top[:, 1])


def _brier(p: Probe) -> float:
    found = _log_p(p).exp()
    return _mean((found - nn.functional.one_hot(_labels(p), found.shape[-1])).square().sum(-1))


def _ece(p: Probe) -> float:
    confidence, right = _confidence(p), _right(p)
    if bool(confidence.isnan().any()):
        return NAN
    bins = (confidence * ECE_BINS).ceil().clamp(1, ECE_BINS).long()
    gaps = [(right - confidence)[bins == b].sum().abs() for b in bins.unique()]
    return float(sum(gaps)) / len(bins)


def _feature_shares(p: Probe) -> Tensor:
    if p.features is None or not bool(torch.isfinite(p.features).all()):
        return torch.tensor([NAN])
    values = torch.linalg.svdvals(p.features)
    return values / values.sum()


def _entropy(shares: Tensor) -> float:
    return float(-torch.xlogy(shares, shares).sum())


def _pair_cosine(rows: Tensor | None) -> float:
    """Mean cosine over distinct pairs of rows that have a direction."""
    if rows is None or not bool(torch.isfinite(rows).all()):
        return NAN
    rows = rows / rows.abs().amax(1, keepdim=True)
    unit = rows[rows.isfinite().all(1)]
    unit = unit / unit.norm(dim=1, keepdim=True)
    n = len(unit)
    return float(unit.sum(0).square().sum() - n) / (n * (n - 1)) if n > 1 else NAN


def _ratio(above: Tensor | float, below: Tensor | float) -> float:
    below = float(below)
    return float(above) / below if below else NAN


def _moved(p: Probe) -> float:
    return NAN if p.start is None else float((p.weights - p.start).norm())


def _condition(p: Probe) -> float:
    floor = len(p.spectrum) * torch.finfo(torch.float64).eps * p.spectrum[0]
    kept = p.spectrum[p.spectrum > floor]
    return _ratio(kept[0], kept[-1]) if len(kept) else NAN


def _noise_scale(p: Probe) -> float:
    centred = p.gradients - p.mean_gradient
    return _ratio(centred.square().sum(1).mean(), p.mean_gradient.square().sum())


def _rise(p: Probe, step: Tensor) -> float:
    """How much the loss of the batch rises after a step; NaN where the gradient gives no direction."""
    with torch.no_grad():
        rise = p.loss_at(p.weights + step.to(p.weights)) - p.loss_at(p.weights)
    return float(rise)


def _sam(p: Probe) -> float:
    return _rise(p, SAM_RHO * p.mean_gradient / p.mean_gradient.norm())


def _asam(p: Probe) -> float:
    scale = p.weights.cpu().double().abs() + ASAM_ETA
    scaled = scale * p.mean_gradient
    return _rise(p, ASAM_RHO * scale * scaled / scaled.norm())


def _next_step(p: Probe) -> float:
    """The optimizer's own next step from the batch gradient, taken on a copy of it and its parameters."""
    if p.optimizer is None:
        return NAN
    memo: dict[int, Any] = {}
    twin = copy.deepcopy(p.optimizer, memo)
    gradients = p.unflatten(p.mean_gradient)
    copies = {name: memo[id(q)] for name, q in p.trainable.items() if id(q) in memo}
    before = {name: q.detach().double().cpu().clone() for name, q in copies.items()}
    for name, q in copies.items():
        q.grad = gradients[name].to(q)
    twin.step()
    moved = sum(float((q.detach().double().cpu() - before[n]).square().sum()) for n, q in copies.items())
    return _ratio(math.sqrt(moved), p.weights.norm()) if copies else NAN


def _random(p: Probe) -> float:
    """A normal draw from the seed and the weights: the same for the same net, unrelated to everything."""
    digest = hashlib.sha256(p.weights.cpu().double().numpy().tobytes()).hexdigest()
    generator = torch.Generator().manual_seed(stream_seed(p.seed, "random metric", digest))
    return float(torch.randn((), generator=generator, dtype=torch.float64))


def _evaluated(data: tuple[Batch, Tensor] | None, p: Probe, which: int) -> float:
    return NAN if data is None else _mean(p.evaluate(data)[which])


def _half(p: Probe, which: int) -> float:
    return NAN if p.val_losses is None else _mean(p.val_losses[which::2])


METRICS: dict[str, Metric] = {
    "train_loss": Metric(lambda p: _evaluated(p.train, p, 0), "mean loss on the training data given"),
    "train_acc": Metric(
        lambda p: _evaluated(p.train, p, 1), "share of the training data classified correctly"
    ),
    "val_loss": Metric(lambda p: _mean(p.val_losses), "mean loss on the validation data given"),
    "val_loss_a": Metric(
        lambda p: _half(p, 0), "the same on its even rows: half of an errors-in-variables pair (ours)"
    ),
    "val_loss_b": Metric(
        lambda p: _half(p, 1), "the same on its odd rows, which share no sample with the other half (ours)"
    ),
    "confidence_mean": Metric(lambda p: _mean(_confidence(p)), "mean largest predicted probability"),
    "entropy_mean": Metric(
        lambda p: _mean(torch.special.entr(_log_p(p).exp()).sum(-1)),
        "mean entropy of the predicted distribution, in nats",
    ),
    "margin_mean": Metric(_margin, "mean difference of the two largest probabilities, whatever the label"),
    "brier": Metric(
        _brier, "mean squared distance from probabilities to the one-hot label, summed over classes"
    ),
    "ece": Metric(_ece, "expected calibration error, 15 equal bins of confidence (bins: ours)"),
    "logit_norm_mean": Metric(
        lambda p: _mean(p.logits.norm(dim=-1).flatten()), "mean L2 norm of the logits"
    ),
    "metric_batch_acc": Metric(
        lambda p: _mean(_right(p)), "share of the metric batch classified correctly"
    ),
    "metric_batch_loss": Metric(lambda p: float(p.loss_at(p.weights)), "mean loss on the metric batch"),
    "metric_n": Metric(
        lambda p: float(len(p.y)), "N, the samples of the metric batch: the Fisher metrics depend on it"
    ),
    "feature_erank": Metric(
        lambda p: math.exp(_entropy(_feature_shares(p))),
        "exp entropy of the normalised singular values of the last linear layer's inputs, uncentred (ours)",
    ),
    "feature_erank_norm": Metric(
        lambda p: (
            NAN if p.features is None else math.exp(_entropy(_feature_shares(p))) / min(p.features.shape)
        ),
        "feature_erank over min(N, width)",
    ),
    "feature_norm_mean": Metric(
        lambda p: NAN if p.features is None else _mean(p.features.norm(dim=1)),
        "mean L2 norm of those features",
    ),
    "feature_cosine_mean": Metric(
        lambda p: _pair_cosine(p.features), "mean cosine over pairs of samples' features"
    ),
    "weight_l2": Metric(lambda p: float(p.weights.norm()), "‖w‖ of the trainable parameters"),
    "weight_l1": Metric(lambda p: float(p.weights.abs().sum()), "Σ|w|"),
    "weight_linf": Metric(lambda p: float(p.weights.abs().max()), "max |w|"),
    "weight_rms": Metric(lambda p: float(p.weights.square().mean().sqrt()), "‖w‖/√P"),
    "distance_from_init_l2": Metric(_moved, "‖w − w_0‖"),
    "relative_distance_from_init": Metric(
        lambda p: NAN if p.start is None else _ratio(_moved(p), p.start.norm()), "‖w − w_0‖/‖w_0‖"
    ),
    "update_to_weight_ratio": Metric(
        lambda p: _ratio(_moved(p), p.weights.norm()), "‖w − w_0‖/‖w‖, as in the published tables"
    ),
    "next_step_ratio": Metric(
        _next_step, "norm of the optimizer's next step on this batch over ‖w‖ (ours)"
    ),
    "grad_norm": Metric(lambda p: float(p.mean_gradient.norm()), "‖ḡ‖ of the mean loss of the batch"),
    "grad_l1": Metric(lambda p: float(p.mean_gradient.abs().sum()), "Σ|ḡ|"),
    "grad_linf": Metric(lambda p: float(p.mean_gradient.abs().max()), "max |ḡ|"),
    "grad_mean_abs": Metric(lambda p: float(p.mean_gradient.abs().mean()), "Σ|ḡ|/P"),
    "fisher_trace": Metric(
        lambda p: float(p.spectrum.sum()), "Σλ = mean ‖g_i‖², λ the eigenvalues of GGᵀ/N"
    ),
    "fisher_spectral": Metric(lambda p: float(p.spectrum[0]), "λ_max"),
    "fisher_stable_rank": Metric(lambda p: _ratio(p.spectrum.sum(), p.spectrum[0]), "Σλ/λ_max"),
    "fisher_entropy": Metric(lambda p: _entropy(p.spectrum_shares), "H(λ/Σλ), in nats"),
    "fim_erank": Metric(lambda p: math.exp(_entropy(p.spectrum_shares)), "exp H(λ/Σλ)"),
    "fim_norm": Metric(lambda p: math.exp(_entropy(p.spectrum_shares)) / len(p.y), "exp H(λ/Σλ)/N"),
    "fisher_condition": Metric(_condition, "λ_max over the smallest λ above N·eps·λ_max (floor: ours)"),
    "grad_noise_scale": Metric(_noise_scale, "trace of the per-sample gradients' covariance over ‖ḡ‖²"),
    "per_sample_grad_norm_mean": Metric(lambda p: _mean(p.gradients.norm(dim=1)), "mean ‖g_i‖"),
    "per_sample_grad_norm_std": Metric(
        lambda p: _spread(p.gradients.norm(dim=1)), "their standard deviation, over N"
    ),
    "gradient_coherence": Metric(
        lambda p: _pair_cosine(p.gradients), "mean cosine over pairs of g_i (ours)"
    ),
    "sam_sharpness": Metric(_sam, "L(w + ρ ḡ/‖ḡ‖) − L(w), ρ = .05"),
    "asam_sharpness": Metric(
        _asam, "L(w + ρ T²ḡ/‖Tḡ‖) − L(w), T = |w| + .01, ρ = .5 (ρ, η: ours, from Kwon 2021)"
    ),
    "hessian_trace_hutchinson": Metric(
        second_order(hutchinson_trace),
        "trace of the Hessian of the mean loss, from 8 random sign vectors (8: ours)",
    ),
    "hessian_top_eig_power": Metric(
        second_order(lanczos_top),
        "its eigenvalue of largest magnitude, by 30 Lanczos steps (ours; published: power)",
    ),
    "random_metric": Metric(_random, "a normal draw that knows nothing: the negative control"),
}
