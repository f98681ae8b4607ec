"""Compiled and wrapped models: opened or run eagerly, so that hooks fire; refused where they cannot."""

from __future__ import annotations

import contextlib
import copy
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.cli.test_cli import answer
from tests.conftest import ready_rule
from tests.nets.test_trace import TokenNet, assert_same, snapshot
from walkback import FAProtocol, freeze_blocks, metric_battery
from walkback.core.errors import BadInput, NotApplicable
from walkback.measure.full import measure_full
from walkback.nets import Adapter

# torch's own: on importing its compiler, and on compiling a block that receives a computed tensor
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Net(nn.Module):
    """Blocks and then head(out_ln(h)). Not one of walkback's own: in tests their shapes are checked at each
    call, which cannot be compiled."""

    def __init__(self):
        super().__init__()
        self.stem, self.out_ln, self.out_head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.out_head(self.out_ln(h))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, h):
        return h + torch.tanh(self.linear(h))


class Counting:
    """A backend that runs the graph as it is, and counts how often."""

    def __init__(self):
        self.runs = 0

    def __call__(self, graph, inputs):
        def run(*args):
            self.runs += 1
            return graph.forward(*args)

        return run


def wrapper(model, backend):
    return torch.compile(model, backend=backend)


def in_place(model, backend):
    model.compile(backend=backend)
    return model


def blocks_in_place(model, backend):
    for block in blocks_of(model):
        block.compile(backend=backend)
    return model


def wrapped_blocks(model, backend):
    blocks = blocks_of(model)
    for index, block in enumerate(blocks):
        blocks[index] = torch.compile(block, backend=backend)
    return model


def inside_a_block(model, backend):
    block = blocks_of(model)[1]
    name = next(name for name, part in block.named_children() if isinstance(part, nn.Linear))
    setattr(block, name, torch.compile(getattr(block, name), backend=backend))
    return model


def forward_method(model, backend):
    model.forward = torch.compile(model.forward, backend=backend)
    return model


def blocks_of(model):
    return model.blocks if isinstance(model, Net) else model.layers


COMPILED = [wrapper, in_place, blocks_in_place, wrapped_blocks, inside_a_block, forward_method]
NETS = {
    # One whose tail is its blocks and head, and one whose tail is a pass of the model with a state swapped.
    "sequential": (Net, torch.randn, {}),
    "pooled": (TokenNet, lambda *size: torch.randint(20, size), {"blocks": "layers", "head": "classifier"}),
}


def audit(model, x, y, rule, parts, full) -> list[tuple]:
    """Every number of the light tier, what the tails make of other states, and the full tier if asked."""
    table = FAProtocol(model, x, y, rule=rule, **parts).measure().table
    net = Adapter(model, **parts)
    with net.evaluating(), torch.no_grad():
        trace = net.probe(x, y)
        tails = [(layer, trace.tail(layer, h + 1).tolist()) for layer, h in enumerate(trace.states)]
    readings = list(table.readings)
    if full:
        with net.evaluating():
            trace = net.probe(x, y)
            readings += measure_full(trace, rule, 0, torch.Generator().manual_seed(0), draws=3).readings
    return tails + [(r.quantity, r.layer, None if math.isnan(r.value) else r.value) for r in readings]


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("compiled", COMPILED)
def test_a_compiled_model_gives_the_numbers_of_the_plain_one(compiled, kind):
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, draw, parts = NETS[kind]
    plain, x, y = make().eval(), draw(6, 6), torch.randint(3, (6,))
    rule = ready_rule("dfa", Adapter(plain, **parts), x, y)
    full = compiled is in_place
    expected = audit(plain, x, y, rule, parts, full)
    backend = Counting()
    model = compiled(copy.deepcopy(plain), backend)
    with torch.no_grad():
        model(x)
    model(x)  # compiled code that knows no hooks now exists for both modes
    before, ran = snapshot(model), backend.runs
    assert ran > 0
    found = audit(model, x, y, rule, parts, full)
    if compiled is forward_method:  # a copy of the model would still call the original
        found, expected = ([r for r in side if "float64" not in str(r[0])] for side in (found, expected))
    assert found == expected
    assert backend.runs == ran, "nothing compiled took part"
    assert_same(before, snapshot(model))
    model(x)
    assert backend.runs > ran, "and the model is still compiled"


def test_a_pass_whose_hooks_do_not_fire_is_refused_not_measured(monkeypatch):
    """What would happen if the compiler could not be kept out: torch itself would not say a word."""
    torch._dynamo.reset()
    model = in_place(Net().eval(), "eager")
    x, y, net = torch.randn(4, 6), torch.tensor([0, 1, 2, 0]), Adapter(model)
    model(x)
    trace = net.probe(x, y)
    monkeypatch.setattr("walkback.nets.wrappers.uncompiled", contextlib.nullcontext)
    with pytest.raises(NotApplicable, match="Only 0 of the 2 named blocks ran"):
        net.probe(x, y)
    with pytest.raises(NotApplicable, match="h_1 could not be replaced: its block ran 0 times"):
        net.forward_from(x, 1, trace.states[1])


@pytest.mark.parametrize("compiled", [wrapper, in_place, wrapped_blocks])
def test_a_compiled_model_is_trained_by_a_rule_as_the_plain_one(compiled):
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, x, y = Net(), torch.randn(8, 6), torch.randint(3, (8,))
    model = compiled(copy.deepcopy(plain), "eager")
    model(x)
    rule = ready_rule("dfa", Adapter(plain), x, y)
    for each in (plain, model):
        rule.deposit_gradients(Adapter(each), x, y)
    pairs = list(zip(plain.parameters(), model.parameters(), strict=True))
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)
    freeze_blocks(model)
    assert sum(not parameter.requires_grad for parameter in model.parameters()) == 2 * 2


def test_the_metric_battery_reads_a_compiled_model_too():
    """Its features come from hooks: unhooked, they would read as those of a net that has none."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, x, y = Net().eval(), torch.randn(8, 6), torch.randint(3, (8,))
    names = ["feature_erank", "fim_norm", "grad_norm", "distance_from_init_l2"]
    expected = metric_battery(plain, x, y, metrics=names, init=copy.deepcopy(plain))
    assert all(math.isfinite(value) for value in expected.values())
    for compiled in (wrapper, in_place):
        model = compiled(copy.deepcopy(plain), "eager")
        model(x)
        with torch.no_grad():
            model(x)
        assert metric_battery(model, x, y, metrics=names, init=model) == pytest.approx(expected)


@contextlib.contextmanager
def one_process(folder):
    torch.distributed.init_process_group("gloo", f"file://{folder / 'group'}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_data_parallel_wrappers_are_opened_and_split_weights_refused(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(8, 6), torch.randint(3, (8,))
    expected = FAProtocol(model, x, y, rule="bp").run()["layers"]
    assert FAProtocol(nn.DataParallel(model), x, y, rule="bp").run()["layers"] == expected
    with one_process(tmp_path):
        parallel = nn.parallel.DistributedDataParallel(model)
        for each in (parallel, torch.compile(parallel, backend="eager")):
            assert FAProtocol(each, x, y, rule="bp").run()["layers"] == expected
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(BadInput, match=r"split over processes \(DTensor\)"):
            FAProtocol(model, x, y)


def test_weights_saved_under_a_wrappers_names_fit_the_model_and_the_other_way_round(
    tmp_path, monkeypatch, capsys
):
    torch.manual_seed(0)
    plain = Net()
    compiled = torch.compile(wrapped_blocks(copy.deepcopy(plain), "eager"), backend="eager")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compiled_nets.py").write_text(
        "import torch\nfrom tests.nets.test_compile import Net\n"
        "def plain(): return Net()\n"
        "def compiled(): return torch.compile(plain(), backend='eager')\n"
    )
    save_file(plain.state_dict(), "plain.safetensors")
    save_file(compiled.state_dict(), "compiled.safetensors")
    save_file(nn.DataParallel(plain).state_dict(), "parallel.safetensors")
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    np.savez("batch.npz", x=x.numpy(), y=y.numpy())
    expected = FAProtocol(plain, x, y).run()["layers"]
    for name in ("plain", "compiled", "parallel"):
        for factory in ("plain", "compiled"):
            given = ["--model", f"compiled_nets:{factory}", "--weights", f"{name}.safetensors"]
            assert answer(capsys, "diagnose", *given, "--eval", "batch.npz")[1]["layers"] == expected
    state = plain.state_dict()
    del state["stem.weight"]
    save_file(state, "less.safetensors")
    save_file({**plain.state_dict(), "more": torch.zeros(1)}, "more.safetensors")
    for name, missed in (("less", "stem.weight"), ("more", "more")):
        given = ["--model", "compiled_nets:plain", "--weights", f"{name}.safetensors"]
        code, found = answer(capsys, "diagnose", *given, "--eval", "batch.npz")
        assert code == 2 and f"{missed} is in only one of" in found["error"]["message"]
