"""Layer feedback in convolutions: against autograd with the other kernel, and a loop over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import ready_rule
from tests.rules.test_rules import gradients, relative
from walkback.core.errors import NotApplicable
from walkback.nets import Adapter
from walkback.nets.cnn import CNN
from walkback.nets.small_resnet import SmallResNet
from walkback.rules.patching import CreditLayer, layers_in_blocks, transposed

RULES = ("fa", "sign-symmetry", "sign-symmetry(form=frsf)", "kolen-pollack", "weight-mirror")


@pytest.fixture(params=["cnn", "small-resnet"])
def net(request):
    torch.manual_seed(0)
    features = 3 * 8 * 8
    if request.param == "cnn":
        return Adapter(CNN(features, 4, depth=2, width=4, stages=2).double())
    return Adapter(SmallResNet(features, 4, depth=3, width=4, stages=3).double())


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.normal(size=(6, 192))), torch.from_numpy(rng.integers(0, 4, 6))


@pytest.mark.parametrize("name", ["fa", "kolen-pollack", "weight-mirror"])
def test_with_the_kernels_themselves_as_feedback_a_rule_is_backprop(net, batch, name):
    rule, bp = ready_rule(name, net, *batch), ready_rule("bp", net, *batch)
    exact = gradients(bp, net, *batch)
    other = gradients(rule, net, *batch)
    assert max(relative(other[key], exact[key]) for key in exact if key.startswith("stem")) > 0.1
    for path, layer in rule.layers(net).items():
        rule.feedback(path, layer).copy_(layer.weight.detach())
    found = gradients(rule, net, *batch)
    assert set(found) == set(exact)
    assert max(relative(found[key], exact[key]) for key in exact) < 1e-11


@pytest.mark.parametrize("name", RULES)
def test_credits_go_down_by_the_feedback_and_by_nothing_else(batch, name):
    """A CNN has nothing but kernels and ReLUs, so its credits can be written out."""
    torch.manual_seed(1)
    net = Adapter(CNN(192, 4, depth=2, width=4, stages=2).double())
    rule, trace = ready_rule(name, net, *batch), net.probe(*batch)
    credits = rule.credits(trace)
    for layer, block in enumerate(net.blocks):
        h, kernel = trace.states[layer], rule.feedback(f"blocks.{layer}.conv", block.conv)
        after = (block.conv(h) > 0) * credits[layer + 1]
        stride = block.conv.stride[0]
        spare = (h.shape[-1] + 2 - 3) % stride
        expected = F.conv_transpose2d(after, kernel, stride=stride, padding=1, output_padding=spare)
        assert relative(credits[layer], expected) < 1e-12


def test_what_is_sent_is_what_a_loop_over_pixels_sends():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1).double()
    x, delta = torch.randn(1, 2, 5, 5).double(), torch.randn(1, 3, 3, 3).double()
    feedback = torch.randn(3, 2, 3, 3).double()
    expected = torch.zeros(1, 2, 7, 7).double()
    for out in range(3):
        for row in range(3):
            for column in range(3):
                patch = expected[0, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
                patch += delta[0, out, row, column] * feedback[out]
    assert relative(transposed(layer, feedback, delta, x), expected[:, :, 1:-1, 1:-1]) < 1e-14


@settings(max_examples=40, deadline=None)
@given(
    dims=st.integers(1, 3),
    kernel=st.sampled_from([1, 2, 3]),
    stride=st.integers(1, 2),
    padding=st.sampled_from([0, 1, "valid", "same"]),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
)
def test_every_kind_of_convolution_is_sent_through_as_autograd_would(
    dims, kernel, stride, padding, dilation, groups, bias
):
    if padding == "same":
        stride, kernel = 1, 2 * (kernel // 2) + 1
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    layer = kind(2, 4, kernel, stride, padding, dilation, groups, bias).double()
    other = kind(2, 4, kernel, stride, padding, dilation, groups, bias).double()
    x = torch.randn(2, 2, *[7] * dims, dtype=torch.float64, requires_grad=True)
    y = CreditLayer.apply(
        x, layer.weight, layer.bias, layer, lambda d, h: transposed(layer, other.weight.detach(), d, h)
    )
    assert torch.equal(y, layer(x))
    delta = torch.randn_like(y)
    inputs = (x, *layer.parameters())
    down, *own = torch.autograd.grad(y, inputs, delta)
    (expected,) = torch.autograd.grad(other(x), x, delta)
    assert relative(down, expected) < 1e-12
    exact = torch.autograd.grad(layer(x), tuple(layer.parameters()), delta)
    assert all(relative(a, b) < 1e-12 for a, b in zip(own, exact, strict=True))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 2, padding="same"),
        nn.ConvTranspose2d(4, 4, 3, padding=1),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1)),
    ],
)
def test_a_convolution_that_cannot_be_given_feedback_is_refused_by_name(layer):
    model = CNN(192, 4, depth=2, width=4, stages=1)
    model.blocks[1].conv = layer
    with pytest.raises(NotApplicable, match=r"cannot replace the transpose of 'blocks\.1\.conv"):
        layers_in_blocks(Adapter(model), "fa(form=layer)")


def test_a_weight_mirror_turns_to_the_kernels(net, batch):
    torch.manual_seed(0)
    rule = ready_rule("weight-mirror(samples=256)", net, *batch)
    trace = net.probe(*batch)
    for _ in range(200):
        rule.learn(trace)
    for path, layer in rule.layers(net).items():
        cosine = F.cosine_similarity(
            rule.feedback(path, layer).flatten(), layer.weight.detach().flatten(), dim=0
        )
        assert float(cosine) > 0.98


def test_kolen_pollack_forgets_its_start_in_kernels_too(net, batch):
    rate, decay, steps = 0.01, 0.5, 20
    rule = ready_rule("kolen-pollack", net, *batch)
    optimizer = torch.optim.AdamW(rule.trained(net).values(), lr=rate, weight_decay=decay)
    apart = {p: (w.weight - rule.feedback(p, w)).detach().clone() for p, w in rule.layers(net).items()}
    for _ in range(steps):
        optimizer.zero_grad()
        rule.learn(rule.deposit_gradients(net, *batch))
        optimizer.step()
    for path, layer in rule.layers(net).items():
        left = (layer.weight - rule.feedback(path, layer)).detach()
        assert relative(left, apart[path] * (1 - rate * decay) ** steps) < 1e-9


class Backward(TorchDispatchMode):
    """Notes the order in memory of what goes back through maps, and what convolutions are asked for."""

    KINDS = ("convolution_backward", "threshold_backward", "native_batch_norm_backward")

    def __init__(self):
        super().__init__()
        self.inputs_asked, self.maps = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.KINDS:
            self.maps += [(name, arg) for arg in args[:2] if arg.dim() == 4]
        if name == "convolution_backward":
            self.inputs_asked.append(args[-1][0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["bp", "dfa", "drtp", "frozen"])
def test_no_map_changes_its_order_in_memory_on_the_way_back(net, batch, name):
    """Mixed orders cost more than the convolutions: a step of the CNN under DFA took twice the time."""
    rule = ready_rule(name, net, *batch)
    with Backward() as seen:
        rule.deposit_gradients(net, *batch)
    assert seen.maps
    assert [kind for kind, m in seen.maps if not m.is_contiguous(memory_format=torch.channels_last)] == []


def test_a_block_that_learns_alone_is_asked_for_no_gradient_below_it(batch):
    """A cut state is a leaf, and its gradient would be a third of a CNN's step, for nobody."""
    net = Adapter(CNN(192, 4, depth=2, width=4, stages=2).double())
    for name, below in (("dfa", 0), ("bp", 2)):
        rule = ready_rule(name, net, *batch)
        with Backward() as seen:
            trace = rule.deposit_gradients(net, *batch)
        assert (len(seen.inputs_asked), sum(seen.inputs_asked)) == (3, below)
        assert all(h.grad is None for h in trace.states if h.is_leaf)


def test_a_net_reads_the_same_from_images_in_any_order_of_memory(net, batch):
    """And hands the caller's images back as they were."""
    images = batch[0].reshape(6, 3, 8, 8)
    turned = images.contiguous(memory_format=torch.channels_last)
    strides = images.stride()
    torch.testing.assert_close(net.model(images), net.model(turned), rtol=0, atol=0)
    torch.testing.assert_close(net.model(images), net.model(batch[0]), rtol=0, atol=0)
    assert images.stride() == strides
