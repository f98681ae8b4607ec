"""The EP kernels against the NumPy reference, the reference against autograd, and what mutants do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from walkback.core.errors import BadInput
from walkback.nets import hopfield, looped
from walkback.nets.ep_kernel import EPKernel, HopfieldKernel, LoopedKernel, softmax_error, tanh_change
from walkback.nets.hopfield import HopfieldMLP
from walkback.nets.looped import LoopedMLP
from walkback.tracks import reference

NETS = {
    "looped": lambda steps: LoopedMLP(12, 4, width=16, steps=steps),
    "hopfield": lambda steps: HopfieldMLP(12, 4, width=16, steps=steps),
    "deep hopfield": lambda steps: HopfieldMLP(12, 4, depth=3, width=16, steps=steps, step_size=0.7),
}


def net_of(name: str, steps: int = 30) -> nn.Module:
    torch.manual_seed(0)
    net = NETS[name](steps).double()
    for parameter in net.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)
    return net


def kernel_of(net: nn.Module, **params) -> EPKernel:
    return (LoopedKernel if isinstance(net, LoopedMLP) else HopfieldKernel)(net, **params)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 3, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (24,), generator=generator)


def written_out(kind: str, net: nn.Module, batch, **params) -> reference.Step:
    """What the reference makes of a net; `kind` is step or bptt."""
    weights = {name: parameter.detach().numpy() for name, parameter in net.named_parameters()}
    x, y = batch[0].flatten(1).numpy(), batch[1].numpy()
    if isinstance(net, LoopedMLP):
        work = {"step": reference.looped_step, "bptt": reference.looped_bptt}[kind]
        return work(weights, x, y, steps=len(net.blocks) + 1, **params)
    work = {"step": reference.hopfield_step, "bptt": reference.hopfield_bptt}[kind]
    return work(weights, x, y, steps=len(net.blocks) + 1, step_size=net.step.step_size, **params)


def apart(found: torch.Tensor, exact) -> float:
    """The largest difference, relative to the largest entry."""
    exact = np.asarray(exact)
    return float(np.abs(found.double().numpy() - exact).max() / np.abs(exact).max())


def check_kernel(net: nn.Module, batch, within: float, kind=kernel_of) -> None:
    gold = written_out("step", net, batch, nudged=10, beta=0.1)
    dtype = torch.float64 if within < 1e-9 else torch.float32
    found = kind(net.to(dtype), nudged=10, beta=0.1).step(batch[0].to(dtype), batch[1], keep=True)
    assert len(found.states) == len(gold.states)
    assert apart(found.states, gold.states) < within
    assert apart(found.logits, gold.logits) < within
    assert found.gradients.keys() == gold.gradients.keys() == dict(net.named_parameters()).keys()
    for name, exact in gold.gradients.items():
        assert apart(found.gradients[name], exact) < within, name


@pytest.mark.parametrize("within", [1e-12, 2e-5], ids=["float64", "float32"])
@pytest.mark.parametrize("steps", [30, 3], ids=["at rest", "drifting"])
@pytest.mark.parametrize("name", NETS)
def test_states_output_and_gradients_are_those_of_the_reference(name, batch, steps, within):
    check_kernel(net_of(name, steps), batch, within)


@pytest.mark.parametrize("name", NETS)
def test_a_small_beta_is_not_lost_in_single_precision(name, batch):
    net, gold = net_of(name), written_out("step", net_of(name), batch, nudged=10, beta=0.01)
    found = kernel_of(net.float(), nudged=10, beta=0.01).step(batch[0].float(), batch[1])
    for key, exact in gold.gradients.items():
        assert apart(found.gradients[key], exact) < 1e-5, key


# The reference itself: its backprop through time against autograd, its EP against its backprop.


def by_autograd(net: nn.Module, batch, last: int) -> dict[str, torch.Tensor]:
    """Gradients through the last steps of the net's own forward pass."""
    drive = net.stem(batch[0].flatten(1))
    h = drive.tanh() if isinstance(net, LoopedMLP) else net.step(torch.zeros_like(drive), drive)
    for index, block in enumerate(net.blocks):
        if len(net.blocks) - index == last:
            h = h.detach()
        h = block(h, drive if len(net.blocks) - index <= last else drive.detach())
    loss = F.cross_entropy(net.out_head(h), batch[1])
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize("last", [1, 10, None])
@pytest.mark.parametrize("name", NETS)
def test_the_references_backprop_through_time_is_autograds(name, batch, last):
    net = net_of(name)
    found = written_out("bptt", net, batch, last=last)
    for key, exact in by_autograd(net, batch, last or 99).items():
        exact = exact.numpy()
        assert np.abs(found.gradients[key] - exact).max() <= 1e-14, key
    assert apart(net(batch[0]).detach(), found.logits) < 1e-13


@pytest.mark.parametrize("nudged", [1, 3, 10])
@pytest.mark.parametrize("name", NETS)
def test_nudged_steps_from_rest_are_backprop_through_as_many_last_steps(name, batch, nudged):
    net = net_of(name, steps=150)
    found = kernel_of(net, nudged=nudged, beta=1e-4).step(*batch)
    exact = written_out("bptt", net, batch, last=nudged).gradients
    for key, gradient in exact.items():
        # A nudge needs a step per layer to arrive; below that both are nothing at all.
        small = np.abs(gradient).max() <= 1e-15
        assert (
            found.gradients[key].abs().max() < 1e-15
            if small
            else apart(found.gradients[key], gradient) < 1e-6
        ), key


@pytest.mark.parametrize("name", NETS)
def test_settled_kernels_give_the_gradients_of_the_nets_own_ep(name, batch):
    net = net_of(name, steps=121)
    module = looped if isinstance(net, LoopedMLP) else hopfield
    exact = module.ep_gradients(net, batch[0].flatten(1), batch[1], 0.1, "symmetric", steps=120)
    found = kernel_of(net, nudged=120, beta=0.1).step(*batch).gradients
    for key, gradient in exact.items():
        assert apart(found[key], gradient / len(batch[1])) < 1e-10, key


# The kernel in use.


@pytest.mark.parametrize("name", NETS)
def test_a_kernel_serves_batches_of_any_size(name, batch):
    net = net_of(name)
    used = kernel_of(net)
    for count in (5, 24, 7):
        few = batch[0][:count], batch[1][:count]
        fresh = kernel_of(net).step(*few).gradients
        for key, gradient in used.step(*few).gradients.items():
            assert torch.equal(gradient, fresh[key])


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_deposited_where_optimizers_look(name, batch):
    net = net_of(name)
    for _ in range(2):  # a second time replaces, and does not add
        done = kernel_of(net).deposit_gradients(*batch)
    for key, parameter in net.named_parameters():
        assert torch.equal(parameter.grad, done.gradients[key])
        assert not done.gradients[key].requires_grad


def test_a_normed_loop_learns_through_its_norm(batch):
    torch.manual_seed(0)
    net = LoopedMLP(12, 4, width=16, steps=200, spectral_norm=True).double()
    exact = by_autograd(net, batch, 999)
    kernel_of(net, nudged=200, beta=1e-3).deposit_gradients(*batch)
    for key, parameter in net.named_parameters():
        assert apart(parameter.grad, exact[key]) < 1e-5, key


@pytest.mark.parametrize("name", NETS)
def test_nothing_is_made_on_another_device_than_the_nets(name, batch):
    """On the meta device there is no data, and tensors of another device are refused."""
    net, (x, y) = net_of(name).to("meta"), batch
    done = kernel_of(net).step(x.to("meta"), y.to("meta"), keep=True)
    assert done.states.device.type == "meta"
    assert {gradient.device.type for gradient in done.gradients.values()} == {"meta"}


@pytest.mark.parametrize("name", NETS)
def test_the_memory_of_a_kernel_does_not_grow_with_its_steps(name, batch):
    few, many = kernel_of(net_of(name, 5), nudged=2), kernel_of(net_of(name, 200), nudged=100)
    few.step(*batch)
    many.step(*batch)
    assert few.buffer_bytes == many.buffer_bytes > 0


@pytest.mark.parametrize("size", [1e-30, 1e-4, 8e-3, 9e-3, 0.05, 0.23, 0.25, 1.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_change_of_tanh_is_right_to_a_few_roundings_however_small(size, dtype):
    generator = torch.Generator().manual_seed(0)
    move = (size * (2 * torch.rand(64, 9, generator=generator) - 1)).to(dtype)
    t = torch.tanh(torch.randn(64, 9, generator=generator)).to(dtype)
    found = tanh_change(move, t, out=torch.empty_like(move), scratch=torch.empty_like(move))

    far, at = np.tanh(move.numpy().astype(np.longdouble)), t.numpy().astype(np.longdouble)
    exact = far / (1 + at * far)
    assert np.abs(found.numpy() / exact - 1).max() < 20 * torch.finfo(dtype).eps


def test_a_change_of_tanh_lets_nan_through():
    move = torch.tensor([[0.0, float("nan")]])
    found = tanh_change(move, torch.zeros(1, 2), out=torch.empty(1, 2), scratch=torch.empty(1, 2))
    assert found.isnan().tolist() == [[False, True]]


def test_the_softmax_error_of_a_sure_answer_is_not_lost_to_rounding():
    logits = torch.tensor([[30.0, 0.0, -5.0], [0.0, 1.0, 2.0]])
    found = softmax_error(logits, torch.tensor([0, 1]), out=torch.empty(2, 3))
    exact = F.softmax(logits.double(), 1) - F.one_hot(torch.tensor([0, 1]), 3)
    exact[0, 0] = -exact[0, 1:].sum()
    assert torch.allclose(found.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("params", [{"nudged": 0}, {"beta": 0.0}, {"beta": -1.0}, {"beta": float("nan")}])
def test_a_step_without_a_nudge_is_refused(params):
    with pytest.raises(BadInput):
        kernel_of(net_of("looped"), **params)


# Mutations of the kernels.


def times_minus_seven(kind: type[EPKernel]) -> type[EPKernel]:
    class Mutant(kind):
        def feed_back(self, above, weight, onto):
            super().feed_back(-7 * above, weight, onto)

    return Mutant


def without_biases(kind: type[EPKernel]) -> type[EPKernel]:
    class Mutant(kind):
        def _bias_gradient(self, name, credit):
            return super()._bias_gradient(name, credit).zero_()

    return Mutant


def noise_for_the_transpose(kind: type[EPKernel]) -> type[EPKernel]:
    class Mutant(kind):
        def feed_back(self, above, weight, onto):
            drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
            super().feed_back(above, (drawn * weight.std()).to(weight), onto)

    return Mutant


def one_sign_for_both(kind: type[EPKernel]) -> type[EPKernel]:
    class Mutant(kind):
        def signed_beta(self, error):
            return super().signed_beta(error).abs_()

    return Mutant


@pytest.mark.parametrize(
    "mutate", [times_minus_seven, without_biases, noise_for_the_transpose, one_sign_for_both]
)
@pytest.mark.parametrize("name", NETS)
def test_a_mutated_kernel_is_caught(name, batch, mutate):
    net = net_of(name)
    mutant = mutate(LoopedKernel if name == "looped" else HopfieldKernel)
    with pytest.raises(AssertionError):
        check_kernel(net, batch, 1e-5, mutant)
