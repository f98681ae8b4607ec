"""Every net: what it computes, what its states look like, and that each rule's credit reaches all of it."""

from __future__ import annotations

import contextlib
import hashlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.conftest import ready_rule
from walkback.core.errors import BadInput, NotApplicable
from walkback.data.dataset import Dataset
from walkback.data.teacher import TEACHER, draw_teacher
from walkback.measure import measure_light
from walkback.nets import Adapter, nets
from walkback.nets.cnn import CNN
from walkback.nets.images import image_shape
from walkback.nets.near_identity import NearIdentityMLP
from walkback.nets.resmlp import ResMLP
from walkback.nets.small_resnet import SmallResNet
from walkback.nets.student import StudentNet
from walkback.nets.vit import ViT
from walkback.rules import make_rule
from walkback.run.one import run_one
from walkback.run.plan import plan_runs
from walkback.store import Bundle, Store

SIZES = {
    "vit": {"depth": 2, "width": 8, "heads": 2, "patch": 4, "expansion": 2},
    "vit-mean": {"depth": 2, "width": 8, "heads": 2, "patch": 2, "expansion": 2, "pool": "mean"},
    "small-resnet": {"depth": 3, "width": 4, "stages": 3},
    "cnn": {"depth": 4, "width": 4, "stages": 2},
    "student": {"depth": 3, "width": 8, "expansion": 2},
    "near-identity": {"depth": 3, "width": 8},
}
CLASSES = {
    "vit": ViT,
    "vit-mean": ViT,
    "small-resnet": SmallResNet,
    "cnn": CNN,
    "student": StudentNet,
    "near-identity": NearIdentityMLP,
}
STATES = {
    "vit": [(6, 5, 8)] * 3,
    "vit-mean": [(6, 16, 8)] * 3,
    "small-resnet": [(6, 4, 8, 8), (6, 4, 8, 8), (6, 8, 4, 4), (6, 16, 2, 2)],
    "cnn": [(6, 4, 8, 8), (6, 4, 8, 8), (6, 4, 8, 8), (6, 8, 4, 4), (6, 8, 4, 4)],
    "student": [(6, 8)] * 4,
    "near-identity": [(6, 8)] * 4,
}
CONVOLUTIONAL = ("small-resnet", "cnn")
every_net = pytest.mark.parametrize("name", list(SIZES))


def make(name, features=3 * 8 * 8, classes=5):
    torch.manual_seed(0)
    return Adapter(CLASSES[name](features, classes, **SIZES[name]).double())


def images(count=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(5, (count,), generator=generator)


def gradients(rule, net, x, y):
    net.model.zero_grad(set_to_none=True)
    rule.deposit_gradients(net, x, y)
    found = {name: p.grad for name, p in net.model.named_parameters()}
    net.model.zero_grad(set_to_none=True)
    return found


@every_net
def test_a_net_is_its_blocks_one_after_the_other_and_then_its_head(name):
    net = make(name)
    with net.evaluating():
        trace = net.probe(*images())
        assert trace.contiguous and trace.sequential
        for layer in range(net.depth + 1):
            assert torch.allclose(trace.tail(layer, trace.states[layer]), trace.logits)
    assert [tuple(h.shape) for h in trace.states] == STATES[name]
    assert trace.logits.shape == (6, 5)


@every_net
def test_flat_rows_are_read_as_the_images_they_are(name):
    net, (x, _) = make(name), images()
    net.model.eval()
    assert torch.equal(net.model(x), net.model(x.flatten(1)))


@every_net
def test_defaults_are_the_constructors(name):
    net = CLASSES[name]
    plain, written = net(3072, 10), net(3072, 10, **net.defaults)
    assert [p.shape for p in plain.parameters()] == [p.shape for p in written.parameters()]


@every_net
def test_bp_gives_the_gradient_of_the_summed_loss_at_every_state(name):
    net, (x, y) = make(name), images()
    with net.evaluating():
        trace = net.probe(x, y)
        credits = make_rule("bp").credits(trace)
        for layer, credit in enumerate(credits):
            h = trace.states[layer].detach().requires_grad_()
            loss = F.cross_entropy(trace.tail(layer, h), y, reduction="sum")
            assert torch.allclose(credit, torch.autograd.grad(loss, h)[0], rtol=1e-9, atol=1e-12)


@every_net
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_bp_trains_with_the_gradient_of_the_mean_loss(name, mode):
    net, (x, y) = make(name), images()
    net.model.train(mode == "train")
    names, parameters = zip(*net.model.named_parameters(), strict=True)
    exact = torch.autograd.grad(F.cross_entropy(net.model(x), y), parameters)
    found = gradients(make_rule("bp"), net, x, y)
    for parameter, gradient in zip(names, exact, strict=True):
        assert torch.allclose(found[parameter], gradient, rtol=1e-9, atol=1e-12), parameter


@every_net
@pytest.mark.parametrize("rule", ["bp", "dfa", "fa(form=block)", "drtp"])
def test_every_parameter_receives_a_gradient(name, rule):
    net, (x, y) = make(name), images()
    with net.evaluating():
        ready = ready_rule(rule, net, x, y)
    net.model.train()
    for parameter, gradient in gradients(ready, net, x, y).items():
        assert gradient is not None and gradient.abs().max() > 1e-9, parameter


@every_net
def test_frozen_fixes_the_blocks_and_trains_what_lies_around_them(name):
    net, (x, y) = make(name), images()
    rule = make_rule("frozen")
    trained = rule.trained(net)
    assert {path.split(".")[0] for path in trained} <= {"stem", "out_ln", "out_head"}
    assert not any(path in trained for path in net.block_parameters())
    for path, parameter in net.model.named_parameters():
        parameter.requires_grad_(path in trained)
    for path, gradient in gradients(rule, net, x, y).items():
        assert (gradient is not None) == (path in trained), path


@every_net
@pytest.mark.parametrize("training", [True, False])
def test_a_measured_net_comes_back_as_it_was(name, training):
    from tests.nets.test_trace import assert_same, snapshot
    from walkback.protocol import FAProtocol

    net, (x, y) = make(name), images()
    net.model.train(training)
    with net.evaluating():
        rule = ready_rule("dfa", net, x, y)
    before = snapshot(net.model)
    FAProtocol(net.model, x, y, rule=rule, baseline=0.1).run()
    assert_same(before, snapshot(net.model))


def test_in_eval_mode_a_gradient_belongs_to_its_own_sample():
    """In training mode BatchNorm mixes them: the two modes must not be confused."""
    net, (x, y) = make("small-resnet"), images()
    net.model.train()
    net.model(x)

    def first_reference(rows):
        return net.probe(x[rows], y[rows]).reference[1][0]

    with net.evaluating():
        assert torch.allclose(first_reference(slice(0, 6)), first_reference(slice(0, 3)))
    assert not torch.allclose(first_reference(slice(0, 6)), first_reference(slice(0, 3)))


@every_net
def test_nothing_explodes_at_initialisation_and_down_sampling_is_not_growth(name):
    net = make(name)
    with net.evaluating():
        table = measure_light(net.probe(*images()), None, 0)
    assert 0.3 < table.number("scale.growth_max@1", 0) < 3
    assert 0.1 < table.number("scale.growth_total@1", 0) < 10


def test_a_map_that_only_shrinks_does_not_grow():
    """Halving a constant map keeps its RMS, though its norm falls to a half."""
    net = make("cnn")
    net.model.blocks = nn.ModuleList(nn.AvgPool2d(2) for _ in range(2))
    net.model.stem = nn.Conv2d(3, 8, 1).double()
    x, y = images()
    trace = Adapter(net.model).probe(torch.ones_like(x), y)
    table = measure_light(trace, None, 0)
    norms = [table.number("scale.state_norm@1", 0, layer) for layer in range(3)]
    assert norms[0] == pytest.approx(2 * norms[1]) and norms[1] == pytest.approx(2 * norms[2])
    assert table.number("scale.growth_max@1", 0) == pytest.approx(1)
    assert table.number("scale.growth_total@1", 0) == pytest.approx(1)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_direct_feedback_to_layers_refuses_kernels(name):
    net, (x, y) = make(name), images()
    with (
        net.evaluating(),
        pytest.raises(NotApplicable, match=r"cannot replace the transpose of 'blocks\.0"),
    ):
        ready_rule("dfa(form=layer)", net, x, y)


@pytest.mark.parametrize("name", ["vit", "vit-mean", "student"])
def test_layer_fa_with_b_equal_to_w_is_backprop_through_attention_too(name):
    net, (x, y) = make(name), images()
    rule = ready_rule("fa", net, x, y)
    different = gradients(rule, net, x, y)
    for path, linear in net.model.named_modules():
        if isinstance(linear, nn.Linear) and not path.startswith("stem"):
            key = "head" if path == "out_head" else path.replace(".", "_")
            rule.get_buffer(f"feedback_{key}").copy_(linear.weight.detach())
    found, exact = gradients(rule, net, x, y), gradients(make_rule("bp"), net, x, y)
    for path, gradient in exact.items():
        assert torch.allclose(found[path], gradient, rtol=1e-9, atol=1e-12), path
    assert not torch.allclose(different["blocks.0.fc1.weight"], exact["blocks.0.fc1.weight"])


@pytest.mark.parametrize("name", ["vit", "vit-mean"])
def test_layer_dfa_reaches_every_matrix_of_attention(name):
    net, (x, y) = make(name), images()
    rule = ready_rule("dfa(form=layer)", net, x, y)
    before = gradients(rule, net, x, y)
    rule.get_buffer("direct_blocks_1_attention_out").mul_(-1)
    after = gradients(rule, net, x, y)
    changed = {path for path in before if not torch.equal(before[path], after[path])}
    assert changed == {"blocks.1.attention.qkv.weight", "blocks.1.attention.qkv.bias"}


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_a_map_receives_one_credit_per_channel_at_every_position(name):
    net, (x, y) = make(name), images()
    with net.evaluating():
        trace = net.probe(x, y)
        direct, chained = ready_rule("dfa", net, x, y), ready_rule("fa(form=block)", net, x, y)
    sent = trace.error
    for layer in range(net.depth, -1, -1):
        h = trace.states[layer]
        assert direct.get_buffer(f"feedback_{layer}").shape == (5, h.shape[1])
        sent = sent @ chained.get_buffer(f"feedback_{layer}")
        credit = direct.credits(trace)[layer]
        assert credit.shape == h.shape
        for row, column in np.ndindex(*h.shape[2:]):
            slow = trace.error @ direct.get_buffer(f"feedback_{layer}")
            assert torch.allclose(credit[:, :, row, column], slow)
            assert torch.allclose(chained.credits(trace)[layer][:, :, row, column], sent)


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_perturbing_dfa_feedback_of_a_map_changes_that_block_and_no_other(layer):
    net, (x, y) = make("small-resnet"), images()
    with net.evaluating():
        rule = ready_rule("dfa", net, x, y)
    net.model.eval()
    before = gradients(rule, net, x, y)
    rule.get_buffer(f"feedback_{layer}").mul_(-1)
    after = gradients(rule, net, x, y)
    prefix = "stem." if layer == 0 else f"blocks.{layer - 1}."
    assert {p for p in before if not torch.equal(before[p], after[p])} == {
        path for path in before if path.startswith(prefix)
    }


def test_a_credit_that_the_skip_cannot_carry_is_refused():
    net, (x, y) = make("small-resnet"), images()
    with net.evaluating(), pytest.raises(NotApplicable, match=r"dfa\(skip=sum\) needs states of one shape"):
        ready_rule("dfa(skip=sum)", net, x, y)
    ready_rule("dfa(skip=sum)", make("vit"), x, y)


def test_a_state_of_five_axes_has_no_feedback():
    class Film(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.out_head = nn.ModuleList([nn.Conv3d(1, 1, 1)]), nn.Linear(8, 3)

        def forward(self, x):
            return self.out_head(self.blocks[0](x).flatten(1))

    with pytest.raises(NotApplicable, match=r"\[batch, channels, height, width\]"):
        ready_rule("dfa", Adapter(Film()), torch.randn(2, 1, 2, 2, 2), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("features", "channels", "size"),
    [(3072, 3, 32), (784, 1, 28), (64, 1, 8), (128, 2, 8), (192, 3, 8), (1, 1, 1)],
)
def test_an_image_has_one_shape_for_its_number_of_features(features, channels, size):
    shape = image_shape(features, "cnn")
    assert (shape.channels, shape.size, shape.features) == (channels, size, features)


@pytest.mark.parametrize("net", [ViT, SmallResNet, CNN])
@pytest.mark.parametrize("features", [30, 20, 0])
def test_inputs_that_are_no_square_image_are_refused(net, features):
    with pytest.raises(BadInput, match=rf"square images, and {features} numbers"):
        net(features, 10)


@pytest.mark.parametrize("name", ["vit", "small-resnet", "cnn"])
def test_an_image_with_its_channels_last_is_refused_not_scrambled(name):
    net, (x, y) = make(name), images()
    with pytest.raises(BadInput, match=r"reads images \(3, 8, 8\) or rows of 192 numbers"):
        net.probe(x.permute(0, 2, 3, 1), y)


def test_a_grey_image_needs_no_channel_axis():
    model = CNN(64, 10).eval()
    x = torch.randn(3, 8, 8)
    assert torch.equal(model(x), model(x[:, None])) and torch.equal(model(x), model(x.flatten(1)))


@pytest.mark.parametrize(
    ("net", "params", "words"),
    [
        (ViT, {"heads": 3, "width": 8}, "cannot be shared equally by 3 heads"),
        (ViT, {"patch": 3}, "do not tile an image of 8×8"),
        (ViT, {"pool": "max"}, "pool is 'token' or 'mean', not 'max'"),
        (ViT, {"depth": 0}, "at least 1"),
        (SmallResNet, {"depth": 4, "stages": 3}, "4 blocks cannot be shared equally by 3 stages"),
        (SmallResNet, {"depth": 4, "stages": 4}, "nothing is left of an image of 8×8. Use fewer stages"),
        (SmallResNet, {"stages": 0}, "at least 1"),
        (CNN, {"width": 0}, "at least 1"),
        (StudentNet, {"expansion": 0}, "at least 1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(net, params, words):
    with pytest.raises(BadInput, match=words):
        net(64, 10, **params)


def test_attention_is_torchs_own():
    net, h = make("vit").model.blocks[0].attention, torch.randn(3, 5, 8, dtype=torch.float64)
    slow = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        slow.in_proj_weight.copy_(net.qkv.weight)
        slow.in_proj_bias.copy_(net.qkv.bias)
        slow.out_proj.load_state_dict(net.out.state_dict())
    assert torch.allclose(net(h), slow(h, h, h)[0])


def test_patches_are_squares_of_the_image_in_reading_order():
    stem, (x, _) = make("vit-mean").model.stem, images()
    for token, (down, right) in enumerate(np.ndindex(4, 4)):
        square = x[:, :, 2 * down : 2 * down + 2, 2 * right : 2 * right + 2].flatten(1)
        assert torch.allclose(stem(x)[:, token], stem.fc(square) + stem.positions[token])


def test_only_the_class_token_is_read():
    """With `pool=token` the reference at the last state is zero on every patch."""
    net, (x, y) = make("vit"), images()
    top = net.probe(x, y).reference[-1]
    assert top[:, 0].abs().min() > 0 and top[:, 1:].abs().max() == 0
    assert make("vit-mean").probe(x, y).reference[-1].abs().sum(-1).min() > 0


def test_only_the_nets_that_should_have_a_norm_have_one():
    kinds = {
        name: {type(m) for m in make(name).model.modules()} & {nn.LayerNorm, nn.BatchNorm2d}
        for name in SIZES
    }
    none = set()
    assert kinds == {
        "vit": {nn.LayerNorm},
        "vit-mean": {nn.LayerNorm},
        "small-resnet": {nn.BatchNorm2d},
        "cnn": none,
        "student": none,
        "near-identity": {nn.LayerNorm},
    }


def test_the_student_can_be_its_teacher():
    """The same formula in numpy and in torch: the labels are those of a StudentNet."""
    from walkback.core.streams import stream_seed

    data = TEACHER.load()
    assert data.x_train.shape == (20_000, 16) and data.x_test.shape == (5_000, 16)
    teacher = draw_teacher(np.random.default_rng(stream_seed(0, "teacher", "weights")))
    student = StudentNet(16, 10, depth=2, width=32, expansion=1).double()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.zero_()
        student.stem.weight.copy_(torch.from_numpy(teacher.stem))
        for block, branch in zip(student.blocks, teacher.branches, strict=True):
            block.fc1.weight.copy_(torch.from_numpy(branch.w1))
            block.fc1.bias.copy_(torch.from_numpy(branch.b1))
            block.fc2.weight.copy_(torch.from_numpy(branch.w2))
        student.out_head.weight.copy_(torch.from_numpy(teacher.head))
        student.out_head.bias.copy_(torch.from_numpy(-teacher.centre))
        said = student(torch.from_numpy(data.x_test).double()).argmax(1)
    assert (said.numpy() == data.y_test).all()


def test_the_teacher_is_fixed_balanced_and_not_linear():
    one, again, other = TEACHER.load(), TEACHER.load(seed=0), TEACHER.load(seed=1)
    assert one.identity == again.identity != other.identity
    for data in (one, other):
        share = np.bincount(data.y_train, minlength=10) / len(data.y_train)
        assert share.min() > 0.005 and share.max() < 0.35
        targets = np.eye(10)[data.y_train]
        plain = np.c_[data.x_train, np.ones(len(data.x_train))]
        weights = np.linalg.lstsq(plain, targets, rcond=None)[0]
        linear = (np.c_[data.x_test, np.ones(5_000)] @ weights).argmax(1) == data.y_test
        assert linear.mean() < 0.6, "a linear readout must leave room for depth"


class Stopped(Exception):
    pass


@contextlib.contextmanager
def registered(name):
    nets.register(f"{name}-in-test")(CLASSES[name])
    try:
        yield f"{name}-in-test"
    finally:
        del nets._entries[f"{name}-in-test"]


def hashes(folder):
    files = [file for file in folder.rglob("*") if file.is_file() and ".locks" not in file.parts]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def tiny_data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((72, 3, 8, 8)).astype(np.float32)
    y = rng.integers(5, size=72)
    return Dataset("tiny", x[:49], y[:49], x[49:], y[49:], classes=5)  # the last batch holds one item


@every_net
@pytest.mark.parametrize("rule", ["bp", "dfa"])
def test_a_stopped_run_resumes_to_the_same_bytes(name, rule, tmp_path):
    data = tiny_data()
    with registered(name) as registered_name:
        (spec,) = plan_runs(
            net=registered_name,
            net_options=SIZES[name],
            rules=[rule],
            seeds=[1],
            data="digits",
            dataset=data,
            epochs=2,
            batch=16,
        )
        whole = run_one(spec, data, Store(tmp_path / "whole"))
        assert whole.status["state"] == "finished" and whole.measurements().epochs == [0, 1, 2]

        def stop(progress):
            if progress.step == 6:
                raise Stopped

        with pytest.raises(Stopped):
            run_one(spec, data, Store(tmp_path / "parts"), on_progress=stop)
        assert not Bundle.open(tmp_path / "parts" / spec.name).finished
        run_one(spec, data, Store(tmp_path / "parts"))
    assert hashes(tmp_path / "whole") == hashes(tmp_path / "parts")


def test_training_moves_every_parameter_and_the_running_moments(tmp_path):
    data = tiny_data()
    with registered("small-resnet") as name:
        (spec,) = plan_runs(
            net=name,
            net_options=SIZES["small-resnet"],
            rules=["dfa"],
            seeds=[1],
            data="digits",
            dataset=data,
            epochs=1,
            batch=16,
        )
        bundle = run_one(spec, data, Store(tmp_path))
    first, last = (bundle.arrays(bundle.checkpoint_epochs()[epoch]) for epoch in (0, 1))
    still = {key for key in first if (first[key] == last[key]).all()}
    assert still == {key for key in first if key.startswith("rule/")}
    assert last["net/stem.norm.num_batches_tracked"] == 4, "one forward pass a step"


def test_blocks_near_the_identity_begin_with_a_branch_of_the_length_that_their_start_gives():
    """`‖f‖² ≈ start² · width · ‖gelu(W1 LN(h) + b1)‖²` for a fresh normal W2; nothing else is another's."""
    torch.manual_seed(0)
    net = Adapter(NearIdentityMLP(30, 5, depth=2, width=256))
    trace = net.probe(torch.randn(64, 30), torch.arange(64) % 5)
    for block, below, above in zip(net.blocks, trace.states, trace.states[1:], strict=False):
        hidden = F.gelu(block.fc1(block.ln(below)))
        expected = (0.01**2 * 256 * hidden.square().sum(1)).sqrt()
        assert torch.allclose((above - below).norm(dim=1), expected, rtol=0.25)
    torch.manual_seed(0)
    plain = ResMLP(30, 5, depth=2, width=256, expansion=1).state_dict()
    same = {name for name, p in net.model.state_dict().items() if torch.equal(p, plain[name])}
    assert set(plain) - same == {f"blocks.{n}.fc2.{p}" for n in range(2) for p in ("weight", "bias")}
    assert not any(block.fc2.bias.any() for block in net.blocks)


def test_a_negative_start_is_refused():
    with pytest.raises(BadInput, match="deviation of 0 or more"):
        NearIdentityMLP(30, 5, start=-0.1)
