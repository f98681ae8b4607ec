"""The metric battery against slow versions, closed forms and the identities of the published tables."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from walkback.core.errors import BadInput, UnknownName
from walkback.measure import probe as probing
from walkback.measure.battery import METRICS, BatteryCallback, fim_norm, metric_battery
from walkback.measure.probe import Probe, stable_cross_entropy, untouched
from walkback.run.knockout import _accuracy

# Two rows of a published table of image runs (N = 16), to see that our definitions are theirs.
PUBLISHED = [
    {
        "weight_l2": 26.213472366333008,
        "distance_from_init_l2": 7.47885274887085,
        "update_to_weight_ratio": 0.2853056788444519,
        "grad_norm": 32.31388854980469,
        "fisher_trace": 21769.220703125,
        "fisher_spectral": 8385.6845703125,
        "fisher_stable_rank": 2.595998039348354,
        "fisher_entropy": 1.808416485786438,
        "fim_erank": 6.100778560064891,
        "fim_norm": 0.3812986600040557,
        "grad_noise_scale": 19.847993850708008,
        "per_sample_grad_norm_mean": 116.7396240234375,
        "per_sample_grad_norm_std": 90.2279052734375,
        "confidence_mean": 0.6512718200683594,
        "margin_mean": 0.4700573682785034,
    },
    {
        "weight_l2": 104.55553436279297,
        "distance_from_init_l2": 100.4271469116211,
        "update_to_weight_ratio": 0.9605149030685425,
        "grad_norm": 6.630299091339111,
        "fisher_trace": 413.57000732421875,
        "fisher_spectral": 178.35205078125,
        "fisher_stable_rank": 2.3188407731372984,
        "fisher_entropy": 1.5924406051635742,
        "fim_erank": 4.915731845279972,
        "fim_norm": 0.30723324032999827,
        "grad_noise_scale": 8.40769100189209,
        "per_sample_grad_norm_mean": 13.601855278015137,
        "per_sample_grad_norm_std": 15.118188858032227,
        "confidence_mean": 0.7433305978775024,
        "margin_mean": 0.5999453663825989,
    },
]
PUBLISHED_COLUMNS = re.findall(
    r"\w+",
    """
    train_loss train_acc val_loss confidence_mean entropy_mean margin_mean brier ece logit_norm_mean
    metric_batch_acc metric_batch_loss feature_erank feature_erank_norm feature_norm_mean
    feature_cosine_mean weight_l2 weight_l1 weight_linf weight_rms distance_from_init_l2
    relative_distance_from_init update_to_weight_ratio grad_norm grad_l1 grad_linf
    grad_mean_abs fisher_trace
    fisher_spectral fisher_stable_rank fisher_entropy fim_erank fim_norm fisher_condition grad_noise_scale
    per_sample_grad_norm_mean per_sample_grad_norm_std sam_sharpness asam_sharpness
    hessian_trace_hutchinson hessian_top_eig_power random_metric
    """,
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(14, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (14,), generator=generator)


def slow_gradients(model, x, y, reduce=lambda loss: loss):
    """One backward pass per sample, in evaluation mode."""
    rows = []
    for i in range(len(y)):
        loss = reduce(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]))
        found = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows).numpy()


def slow_fim_norm(gradients):
    """By singular values of G, not by eigenvalues of its Gram matrix."""
    values = np.linalg.svd(gradients, compute_uv=False) ** 2 / len(gradients)
    shares = values / values.sum()
    return math.exp(-sum(s * math.log(s) for s in shares if s > 0)) / len(gradients)


def explicit_hessian(model, x, y):
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    sizes = [p.numel() for p in model.parameters()]

    def loss(w):
        parts = [t.view(p.shape) for t, p in zip(w.split(sizes), model.parameters(), strict=True)]
        named = dict(zip((n for n, _ in model.named_parameters()), parts, strict=True))
        return F.cross_entropy(torch.func.functional_call(model, named, (x,)), y)

    return torch.autograd.functional.hessian(loss, flat)


def image_net():
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(36, 3),
    ]
    return nn.Sequential(*layers), torch.randn(7, 1, 5, 5)


def attention_net():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(32, 3)), torch.randn(7, 4, 8)


def test_the_battery_has_every_metric_of_the_published_tables_each_with_its_meaning():
    assert len(PUBLISHED_COLUMNS) == 41 and set(PUBLISHED_COLUMNS) <= set(METRICS)
    assert all(metric.meaning and "\n" not in metric.meaning for metric in METRICS.values())


def test_fim_norm_equals_an_explicit_loop_over_samples(model, data):
    assert fim_norm(model, *data) == pytest.approx(slow_fim_norm(slow_gradients(model, *data)), rel=1e-8)


@pytest.mark.parametrize("make", [image_net, attention_net])
def test_fim_norm_and_curvature_are_right_for_nets_with_batch_norm_dropout_and_attention(make):
    net, x = make()
    y = torch.arange(7) % 3
    found = metric_battery(net, x, y, metrics=["fim_norm", "hessian_top_eig_power"])
    net = net.double().eval()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        eigen = torch.linalg.eigvalsh(explicit_hessian(net, x.double(), y))
    top = float(eigen[eigen.abs().argmax()])
    assert found["hessian_top_eig_power"] == pytest.approx(top, rel=1e-4)
    assert found["fim_norm"] == pytest.approx(slow_fim_norm(slow_gradients(net, x.double(), y)), rel=1e-8)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6, 1e-200])
def test_fim_norm_does_not_change_with_the_scale_of_the_loss(model, data, scale):
    found = fim_norm(model.float(), *data, loss=lambda z, y: scale * stable_cross_entropy(z, y))
    assert found == pytest.approx(fim_norm(model, *data), rel=1e-10)


def test_fim_norm_is_one_for_orthogonal_gradients_and_one_over_n_for_equal_ones():
    net, y = nn.Linear(4, 2, bias=False), torch.zeros(4, dtype=torch.long)
    nn.init.zeros_(net.weight)
    assert fim_norm(net, torch.eye(4), y) == pytest.approx(1.0)
    assert fim_norm(net, torch.ones(4, 4), y) == pytest.approx(0.25)


def test_without_any_gradient_fim_norm_is_nan_and_the_trace_is_zero(data):
    net = nn.Linear(6, 3, bias=False)
    row = metric_battery(net, torch.zeros(5, 6), torch.zeros(5, dtype=torch.long))
    shape = ("fim_norm", "fim_erank", "fisher_stable_rank", "fisher_entropy", "fisher_condition")
    assert row["fisher_trace"] == row["grad_norm"] == 0.0
    for name in (*shape, "grad_noise_scale", "gradient_coherence", "sam_sharpness", "asam_sharpness"):
        assert math.isnan(row[name]), name


def test_the_error_of_a_fitted_sample_is_not_lost_to_rounding(data):
    """An error sums to 0 over classes; through p_y − 1 its largest part is 0 here, the others e^−60."""
    x, y = data[0], torch.zeros_like(data[1])
    net = nn.Linear(6, 3).double()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.copy_(torch.tensor([60.0, 0.0, 0.0]))
    naive = slow_gradients(net, x, y)[:, -3:]
    assert (naive[:, 0] == 0).all() and (naive[:, 1:] != 0).all()
    with untouched(net):
        exact = Probe(net, x, y).gradients[:, -3:].numpy()
    assert np.allclose(exact[:, 0], -exact[:, 1:].sum(1), rtol=1e-10, atol=0) and (exact[:, 0] != 0).all()


def test_per_sample_gradients_take_the_fast_path_and_the_loop_gives_the_same(model, data, monkeypatch):
    with untouched(model):
        fast = Probe(model, *data).gradients
    calls, real = [], probing.grad
    monkeypatch.setattr(probing, "grad", lambda f: calls.append(1) or real(f))
    with untouched(model):
        Probe(model, *data).gradients
    assert len(calls) == 1, "one vectorised call, not a loop"

    def refuse(*args, **kwargs):
        raise RuntimeError("no batching rule")

    monkeypatch.setattr(probing, "vmap", refuse)
    with untouched(model):
        slow = Probe(model, *data).gradients
    assert torch.allclose(fast, slow, rtol=1e-12, atol=1e-15)
    assert np.allclose(fast, slow_gradients(model, *data), rtol=1e-10, atol=1e-14)


def test_gradient_and_fisher_metrics_equal_their_slow_versions(model, data):
    row, g = metric_battery(model, *data), slow_gradients(model, *data)
    norms, mean, n = np.linalg.norm(g, axis=1), g.mean(0), len(g)
    eigen = np.linalg.eigvalsh(g.T @ g / n)[::-1][:n]
    cosines = (g / norms[:, None]) @ (g / norms[:, None]).T
    slow = {
        "grad_norm": np.linalg.norm(mean),
        "grad_l1": np.abs(mean).sum(),
        "grad_linf": np.abs(mean).max(),
        "grad_mean_abs": np.abs(mean).mean(),
        "fisher_trace": (norms**2).mean(),
        "fisher_spectral": eigen[0],
        "fisher_stable_rank": (norms**2).mean() / eigen[0],
        "fisher_condition": eigen[0] / eigen[-1],
        "grad_noise_scale": np.cov(g.T, bias=True).trace() / (mean @ mean),
        "per_sample_grad_norm_mean": norms.mean(),
        "per_sample_grad_norm_std": norms.std(),
        "gradient_coherence": cosines[np.triu_indices(n, 1)].mean(),
        "metric_n": n,
    }
    for name, value in slow.items():
        assert row[name] == pytest.approx(value, rel=1e-7), name
    assert row["fim_norm"] == pytest.approx(math.exp(row["fisher_entropy"]) / n)


@pytest.mark.parametrize("row", PUBLISHED)
def test_published_rows_obey_the_definitions_used_here(row):
    squares = row["per_sample_grad_norm_mean"] ** 2 + row["per_sample_grad_norm_std"] ** 2
    assert row["fisher_trace"] == pytest.approx(squares, rel=1e-5)
    assert row["fisher_stable_rank"] == pytest.approx(
        row["fisher_trace"] / row["fisher_spectral"], rel=1e-5
    )
    assert row["fim_erank"] == pytest.approx(math.exp(row["fisher_entropy"]), rel=1e-5)
    assert row["fim_norm"] == pytest.approx(row["fim_erank"] / 16, rel=1e-9)
    assert row["grad_noise_scale"] == pytest.approx(
        row["fisher_trace"] / row["grad_norm"] ** 2 - 1, rel=1e-4
    )
    moved = row["distance_from_init_l2"] / row["weight_l2"]
    assert row["update_to_weight_ratio"] == pytest.approx(moved, rel=1e-5)
    # A margin between the two largest probabilities lies here; one of the true label need not.
    assert 2 * row["confidence_mean"] - 1 <= row["margin_mean"] <= row["confidence_mean"]


def test_prediction_metrics_equal_their_slow_versions(model, data):
    x, y = data
    row, p = metric_battery(model, x, y), model(x).softmax(-1).detach().numpy()
    z, labels = model(x).detach().numpy(), y.numpy()
    top = np.sort(p, axis=1)[:, ::-1]
    right = p.argmax(1) == labels
    edges, ece = np.linspace(0, 1, 16), 0.0
    for low, high in pairwise(edges):
        inside = (top[:, 0] > low) & (top[:, 0] <= high)
        if inside.any():
            ece += inside.mean() * abs(right[inside].mean() - top[inside, 0].mean())
    slow = {
        "confidence_mean": top[:, 0].mean(),
        "entropy_mean": -(p * np.log(p)).sum(1).mean(),
        "margin_mean": (top[:, 0] - top[:, 1]).mean(),
        "brier": ((p - np.eye(3)[labels]) ** 2).sum(1).mean(),
        "ece": ece,
        "logit_norm_mean": np.linalg.norm(z, axis=1).mean(),
        "metric_batch_acc": right.mean(),
        "metric_batch_loss": -np.log(p[np.arange(len(y)), labels]).mean(),
    }
    for name, value in slow.items():
        assert row[name] == pytest.approx(value, rel=1e-9), name


def test_feature_and_weight_metrics_equal_their_slow_versions(model, data):
    init = {name: p + 0.1 for name, p in model.state_dict().items()}
    row = metric_battery(model, *data, init=init)
    features = model[1](model[0](data[0])).detach().numpy()
    values = np.linalg.svd(features, compute_uv=False)
    shares = values / values.sum()
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    w = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    slow = {
        "feature_erank": math.exp(-(shares * np.log(shares)).sum()),
        "feature_erank_norm": math.exp(-(shares * np.log(shares)).sum()) / 8,
        "feature_norm_mean": np.linalg.norm(features, axis=1).mean(),
        "feature_cosine_mean": (unit @ unit.T)[np.triu_indices(14, 1)].mean(),
        "weight_l2": np.linalg.norm(w),
        "weight_l1": np.abs(w).sum(),
        "weight_linf": np.abs(w).max(),
        "weight_rms": math.sqrt((w**2).mean()),
        "distance_from_init_l2": 0.1 * math.sqrt(len(w)),
        "relative_distance_from_init": 0.1 * math.sqrt(len(w)) / np.linalg.norm(w + 0.1),
        "update_to_weight_ratio": 0.1 * math.sqrt(len(w)) / np.linalg.norm(w),
    }
    for name, value in slow.items():
        assert row[name] == pytest.approx(value, rel=1e-9), name


def test_sharpness_is_the_rise_of_the_loss_after_the_step_that_defines_it(model, data):
    x, y = data
    row, g = metric_battery(model, x, y), torch.from_numpy(slow_gradients(model, x, y).mean(0))
    w = torch.cat([p.detach().flatten() for p in model.parameters()])
    t = w.abs() + 0.01
    steps = {"sam_sharpness": 0.05 * g / g.norm(), "asam_sharpness": 0.5 * t**2 * g / (t * g).norm()}
    before = F.cross_entropy(model(x), y).item()
    for name, step in steps.items():
        nn.utils.vector_to_parameters(w + step, model.parameters())
        assert row[name] == pytest.approx(F.cross_entropy(model(x), y).item() - before, rel=1e-8), name


def test_hessian_metrics_agree_with_the_explicit_hessian(model, data):
    hessian = explicit_hessian(model, *data)
    eigen = torch.linalg.eigvalsh(hessian)
    row = metric_battery(
        model, *data, metrics=["hessian_top_eig_power", "hessian_trace_hutchinson"], hessian_probes=600
    )
    assert row["hessian_top_eig_power"] == pytest.approx(float(eigen[eigen.abs().argmax()]), rel=1e-6)
    # Var(vᵀHv) = 2 Σ_{i≠j} H_ij² for random signs.
    se = math.sqrt(2 * float(hessian.square().sum() - hessian.diag().square().sum()) / 600)
    assert row["hessian_trace_hutchinson"] == pytest.approx(float(hessian.trace()), abs=4 * se)
    assert se < 0.1 * float(hessian.trace()), "the check can tell"
    with untouched(model):
        probe, v = Probe(model, *data), torch.randn(len(hessian), dtype=torch.float64)
        assert torch.allclose(probe.hessian_times(v), hessian @ v, rtol=1e-8, atol=1e-12)


def test_the_top_eigenvalue_keeps_its_sign_where_the_most_curved_direction_bends_down():
    net, (x, y) = nn.Linear(2, 2, bias=False).double(), (torch.eye(2).double(), torch.tensor([0, 1]))

    def saddle(z, y):
        return z[..., 0].square() - 3 * z[..., 1].square()

    row = metric_battery(net, x, y, metrics=["hessian_top_eig_power"], loss=saddle)
    assert row["hessian_top_eig_power"] == pytest.approx(-3.0)


def test_losses_on_data_sets_and_on_disjoint_halves(model, data):
    x, y = data
    row = metric_battery(model, x[:4], y[:4], train=(x[:6], y[:6]), val=(x[6:], y[6:]))
    losses = F.cross_entropy(model(x), y, reduction="none").detach()
    assert row["train_loss"] == pytest.approx(float(losses[:6].mean()))
    assert row["train_acc"] == pytest.approx(float((model(x[:6]).argmax(1) == y[:6]).double().mean()))
    assert row["val_loss"] == pytest.approx(float(losses[6:].mean()))
    assert row["val_loss_a"] == pytest.approx(float(losses[6::2].mean()))
    assert row["val_loss_b"] == pytest.approx(float(losses[7::2].mean()))


def test_what_is_not_given_is_nan_never_zero(model, data):
    row = metric_battery(model, *data)
    absent = {name for name, value in row.items() if math.isnan(value)}
    moved = {"distance_from_init_l2", "relative_distance_from_init", "update_to_weight_ratio"}
    losses = {"train_loss", "train_acc", "val_loss", "val_loss_a", "val_loss_b"}
    assert absent == moved | losses | {"next_step_ratio"}
    convolutional = nn.Sequential(nn.Conv2d(1, 3, 5), nn.Flatten())
    row = metric_battery(convolutional, torch.randn(4, 1, 5, 5), torch.zeros(4, dtype=torch.long))
    assert all(math.isnan(row[name]) for name in row if name.startswith("feature_"))


def test_a_net_that_left_the_numbers_reads_nan_everywhere(model, data):
    with torch.no_grad():
        model[2].bias[0] = math.nan
    row = metric_battery(model, *data)
    known = {"metric_batch_acc", "metric_n", "random_metric"} | {n for n in row if n.startswith("feature_")}
    assert row["metric_batch_acc"] == 0.0, "rows without finite logits are not correct"
    assert {name for name, value in row.items() if not math.isnan(value)} == known


@pytest.mark.parametrize(("fill", "right"), [(-math.inf, True), (math.nan, False), (math.inf, False)])
def test_a_class_that_is_ruled_out_leaves_the_others_right_and_no_number_never_is(data, fill, right):
    class Filled(nn.Linear):
        def forward(self, x):
            return super().forward(x).masked_fill(torch.arange(3) == 2, fill)

    torch.manual_seed(0)
    model, (x, y) = Filled(6, 3).double(), data
    logits = nn.functional.linear(x, model.weight, model.bias)[:, :2]
    expected = (logits.argmax(1) == y).double().mean().item() if right else 0.0
    row = metric_battery(model, x, y, train=(x, y), metrics=["metric_batch_acc", "train_acc"])
    assert row == pytest.approx({"metric_batch_acc": expected, "train_acc": expected})
    assert _accuracy(model, x, y) == (pytest.approx(expected) if right else None)


def test_the_next_step_is_the_optimizers_own_and_is_not_taken(model, data):
    x, y = data
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    row = metric_battery(model, x, y, optimizer=optimizer, metrics=["next_step_ratio"])
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    moved = torch.cat([(p - before[n]).flatten() for n, p in model.state_dict().items()]).norm()
    norm = torch.cat([p.flatten() for p in before.values()]).norm()
    assert row["next_step_ratio"] == pytest.approx(float(moved / norm), rel=1e-8)


class Noise(nn.Module):
    """Draws from the global generator, whatever the mode."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


def test_the_model_comes_back_as_it_was():
    net, x = image_net()
    net.insert(3, Noise())
    y = torch.arange(7) % 3
    net[0].eval()
    net[6].bias.requires_grad_(False)
    F.cross_entropy(net(x), y).backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    modes = [m.training for m in net.modules()]
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    wanted, rng = [p.requires_grad for p in net.parameters()], torch.get_rng_state()
    metric_battery(net, x, y, optimizer=optimizer, init=net, val=(x, y))
    assert modes == [m.training for m in net.modules()]
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())
    for p, g, w in zip(net.parameters(), grads, wanted, strict=True):
        assert p.requires_grad == w and ((p.grad is None) if g is None else torch.equal(p.grad, g))
    assert torch.equal(rng, torch.get_rng_state())
    assert not optimizer.state and not any(m._forward_pre_hooks for m in net.modules())


def test_a_failing_net_is_put_back_in_its_mode_too(data):
    net = nn.Sequential(nn.Linear(6, 3), nn.Dropout())
    with pytest.raises(RuntimeError):
        metric_battery(net, data[0][:, :5], data[1])
    assert net.training and net[1].training


def test_the_same_call_gives_the_same_row_and_the_random_metric_differs_between_nets(model, data):
    one, two = metric_battery(model, *data), metric_battery(model, *data)
    assert all(one[name] == two[name] or math.isnan(one[name]) for name in one)
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-3
    assert metric_battery(model, *data)["random_metric"] != one["random_metric"]
    assert (
        metric_battery(model, *data, seed=1)["random_metric"]
        != metric_battery(model, *data)["random_metric"]
    )


def test_token_labels_and_named_inputs_are_read():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, ids):
            return self.head(self.table(ids))

    torch.manual_seed(0)
    net, ids = Tagger().double(), torch.arange(12).view(4, 3) % 9
    row = metric_battery(net, {"ids": ids}, ids % 3)
    losses = F.cross_entropy(net(ids).flatten(0, 1), (ids % 3).flatten())
    assert row["metric_batch_loss"] == pytest.approx(losses.item()) and row["metric_n"] == 4


def test_a_net_with_float32_constants_is_read_in_its_own_precision(data):
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x.float() @ torch.eye(6))

    torch.manual_seed(0)
    net = Fixed()
    found = fim_norm(net, *data)
    assert found == pytest.approx(
        slow_fim_norm(slow_gradients(net.head, data[0].float(), data[1])), rel=1e-4
    )


def test_a_net_without_a_second_derivative_has_nan_and_a_warning_and_all_the_rest(data):
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            z = self.head(x)
            return z + Once.apply(z)  # one way round has a second derivative: half a Hessian is none

    with pytest.warns(UserWarning, match="Hessian of this net cannot be measured"):
        row = metric_battery(Net(), *data, metrics=["hessian_top_eig_power", "weight_l2"])
    assert math.isnan(row["hessian_top_eig_power"]) and row["weight_l2"] > 0


def test_a_callback_collects_rows_in_anyones_loop(model, data):
    x, y = data
    watch = BatteryCallback(x, y, every=2, metrics=["grad_norm", "distance_from_init_l2"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        watch(model, step, lr=0.1)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    frame = watch.frame()
    assert list(frame.step) == [0, 2, 4] and set(frame.lr) == {0.1}
    assert frame.distance_from_init_l2[0] == 0 < frame.distance_from_init_l2[1]


def test_wrong_input_is_said_in_words(model, data):
    x, y = data
    with pytest.raises(UnknownName, match="fim_nrom"):
        metric_battery(model, x, y, metrics=["fim_nrom"])
    with pytest.raises(BadInput, match="14 inputs"):
        fim_norm(model, x, y[:3])
    with pytest.raises(BadInput, match="0…2"):
        fim_norm(model, x, y + 1)
    with pytest.raises(BadInput, match="whole numbers"):
        fim_norm(model, x, y.double())
    with pytest.raises(BadInput, match="empty"):
        fim_norm(model, x[:0], y[:0])
    with pytest.raises(BadInput, match="no trainable"):
        fim_norm(model.requires_grad_(False), x, y)
    with pytest.raises(BadInput, match=r"0\.weight"):
        metric_battery(model.requires_grad_(True), x, y, init={})
    with pytest.raises(BadInput, match="every"):
        BatteryCallback(x, y, every=0)
