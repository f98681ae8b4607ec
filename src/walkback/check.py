"""check_rule: is a learning rule what it says? The proofs of walkback's own rules, for anyone's rule.

for check in check_rule("dfa", model):
    print(check.status, check.sentence)
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from walkback.core.errors import BadInput, NotApplicable
from walkback.core.quantities import SETTLED_BELOW
from walkback.core.spec import Call
from walkback.measure.light import float64_twin
from walkback.nets import Adapter, build_net, nets
from walkback.nets.batch import Batch
from walkback.rules import Rule, describe_rule, make_rule, resolve_rule, rules

EXACT = 1e-6
ROUNDING = 1e-9  # of all gradients together: what a single one cannot be told from zero by, in float64
ROWS, CLASSES, FEATURES = 24, 5, 8 * 8  # image nets read it as one small picture
USED = 1e-9  # of a gradient: feedback that moves none by this much is for show; real ones reach 3e-8
DRAWS = 400
TOLD_APART = 0.2  # the largest standard error at which a mean of 1 still says something

Gradients = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class Check:
    """One proof: `status` is pass, fail or not applicable; `detail` holds what was measured."""

    name: str
    status: str
    sentence: str
    detail: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_rule(
    rule: str | Rule,
    net: nn.Module | Adapter,
    x: Batch | None = None,
    y: Tensor | None = None,
    *,
    seed: int = 0,
) -> list[Check]:
    """Every proof that applies, on a copy of the net in float64; the net and the rule stay as they are.

    Without a batch, random rows as wide as the first Linear are used; a net that reads images needs one.
    """
    adapter = float64_twin(net if isinstance(net, Adapter) else Adapter(net))
    made = make_rule(rule) if isinstance(rule, str) else copy.deepcopy(rule)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x, y = _batch(adapter, x, y)
        try:
            with adapter.evaluating():
                made.setup(adapter.probe(x, y), torch.Generator().manual_seed(seed))
                made.begin_step(0.5)  # past any warm-up
                return list(_checks(made.double(), adapter, x, y))
        except NotApplicable as error:
            return [Check("applies", "not applicable", error.message, {})]


def check_all(rule: str) -> dict[str, list[Check]]:
    """One rule on every net of the registry, small."""
    found = {}
    for net_name in nets:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build_net(Call(net_name, SMALL.get(net_name, {})), FEATURES, CLASSES)
            batch = torch.randn(ROWS, FEATURES), torch.arange(ROWS) % CLASSES
        try:
            found[net_name] = check_rule(rule, model, *batch)
        except Exception as error:  # one that breaks does not take the others away
            told = f"It breaks: {type(error).__name__}: {error}"
            found[net_name] = [Check("runs", "fail", told, {})]
    return found


SMALL: dict[str, dict[str, Any]] = {
    "resmlp": {"depth": 3, "width": 16, "expansion": 2},
    "mlp": {"depth": 3, "width": 16},
    "student": {"depth": 3, "width": 16},
    "cnn": {"depth": 2, "width": 8},
    "small-resnet": {"depth": 3, "width": 8},
    "vit": {"depth": 2, "width": 16, "heads": 2},
    "hopfield": {"width": 16, "steps": 12},
    "looped": {"width": 16, "steps": 12},
}


def rule_rows() -> list[dict[str, Any]]:
    """Every form of every rule, and the outcome of its checks on every net."""
    rows = []
    for name in rules:
        for form in forms_of(name):
            checks = check_all(str(form))
            rows.append(
                {
                    "name": describe_rule(form)["label"],
                    "written": str(form),
                    "citation": rules[name].citation,
                    "forms": {key: list(values) for key, values in rules[name].choices.items()},
                    "ours": rules[name].ours,
                    "nets": [net for net, found in checks.items() if _status(found) != "not applicable"],
                    "check": {net: _told(found) for net, found in checks.items()},
                }
            )
    return rows


def forms_of(name: str) -> list[Call]:
    """Each combination of a rule's choices that it takes, its usual form first; equal ones once."""
    usual, choices = resolve_rule(name), rules[name].choices
    forms = [usual]
    for values in itertools.product(*choices.values()):
        with contextlib.suppress(BadInput):  # some choices exclude one another
            forms.append(resolve_rule(Call(name, dict(zip(choices, values, strict=True)))))
    return list({str(form): form for form in forms}.values())


def _status(found: list[Check]) -> str:
    states = {check.status for check in found}
    return "fail" if "fail" in states else "pass" if "pass" in states else "not applicable"


def _told(found: list[Check]) -> dict[str, Any]:
    status = _status(found)
    shown = [check for check in found if check.status == "fail" or status != "fail"]
    return {"status": status, "sentences": [check.sentence for check in shown]}


def _batch(net: Adapter, x: Batch | None, y: Tensor | None) -> tuple[Batch, Tensor]:
    if (x is None) != (y is None):
        raise BadInput("Give inputs and labels, or neither.")
    if x is None or y is None:
        linears = [m for m in net.model.modules() if isinstance(m, nn.Linear)]
        if not linears:
            raise BadInput(
                "A net without an nn.Linear does not tell how wide its inputs are.", "Give x and y."
            )
        x = torch.randn(ROWS, linears[0].in_features)
        y = torch.arange(ROWS) % linears[-1].out_features
    return net.prepare(x, y)


def _checks(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Iterator[Check]:
    given = _credits(rule, net, x, y)
    yield given
    if given.status == "fail":
        return
    yield _moves(rule, net, x, y)
    if rule.role == "rule":
        yield from _feedback(rule, net, x, y)
        yield _diagnosed(rule, net, x, y)
        yield from _own(rule, net, x, y)
    yield from _exact(rule, net, x, y)
    yield from _unbiased(rule, net, x, y)
    yield from _settles(rule, net, x, y)


def _credits(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Check:
    """One finite credit per state, of its shape."""
    trace = net.probe(x, y)
    found = rule.credits(trace)
    if not isinstance(found, Sequence) or not all(isinstance(a, Tensor) for a in found):
        sentence = f"credits(trace) returns {type(found).__name__}, not a list of one tensor per state."
        return Check("credits", "fail", sentence, {})
    sound = len(found) == trace.depth + 1 and all(
        a.shape == h.shape and _finite(a) for a, h in zip(found, trace.states, strict=False)
    )
    sentence = "Every state is given a finite credit of its own shape."
    return Check("credits", "pass" if sound else "fail", sentence if sound else _not(sentence), {})


def _moves(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Check:
    """Every parameter that the rule says it trains receives a finite gradient that is not zero."""
    found = _gradients(rule, net, x, y)
    lost = sorted(key for key, gradient in found.items() if gradient is not None and not _finite(gradient))
    if lost:
        return Check("moves", "fail", f"The gradient of {lost[0]} is not finite.", {"lost": lost})
    still = sorted(key for key, gradient in found.items() if gradient is None or not bool(gradient.any()))
    if still:
        return Check("moves", "fail", f"{still[0]} is trained, but its gradient is zero.", {"still": still})
    return Check(
        "moves", "pass", f"All {len(found)} parameters that are trained move.", {"moved": len(found)}
    )


def _feedback(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Iterator[Check]:
    """Changing each feedback tensor changes some gradient, and never that of the head."""
    held = {**dict(rule.named_buffers()), **dict(rule.named_parameters())}
    held = {key: tensor for key, tensor in held.items() if key not in rule.idle_feedback()}
    if not held:
        if rule.has_feedback:
            sentence = (
                "It says that it has feedback, and holds none that it uses. Keep it in buffers: only there "
                "it is saved, drawn anew and checked."
            )
            yield Check("feedback", "fail", sentence, {"held": []})
        return
    if not _says_whether_drawn(rule):
        sentence = (
            f"It holds {next(iter(held))} and does not say if that is drawn feedback. Set has_feedback: "
            "its null depends on it."
        )
        yield Check("feedback", "fail", sentence, {"held": sorted(held)})
        return
    moved = {key: _changed_by(tensor, rule, net, x, y) for key, tensor in held.items()}
    reaches = {key: [name for name, off in by.items() if off >= USED] for key, by in moved.items()}
    exact = _of_the_head_alone(net)
    for key, by in moved.items():
        if not reaches[key]:
            sentence = f"{key} is never used: no gradient depends on it."
            if any(by.values()):
                most = max(by.values())
                sentence = (
                    f"{key} is as good as unused: redrawn, it changes no gradient by more than {most:.1g}."
                )
            yield Check("feedback", "fail", sentence, reaches)
            return
        if any(by.get(name) for name in exact):
            yield Check("feedback", "fail", f"{key} changes the head's gradient, which is exact.", reaches)
            return
    most = max(map(len, reaches.values()))
    sentence = f"All {len(held)} feedback tensors are used; the widest changes {most} gradients."
    yield Check("feedback", "pass", sentence, reaches)


def _says_whether_drawn(rule: Rule) -> bool:
    kinds = [kind for kind in type(rule).__mro__ if kind is not Rule]
    return any("has_feedback" in vars(thing) for thing in (rule, *kinds))


def _of_the_head_alone(net: Adapter) -> set[str]:
    """The parameters of head and terminal norm, but for one that is tied to an embedding: there a credit
    reaches it."""
    above = {module for part in (net.head, net.out_ln) if part is not None for module in part.modules()}
    below = set(net.model.modules()) - above
    shared = {id(p) for module in below for p in module.parameters(recurse=False)}
    alone = {id(p) for module in above for p in module.parameters(recurse=False)} - shared
    return {name for name, parameter in net.model.named_parameters() if id(parameter) in alone}


def _changed_by(tensor: Tensor, rule: Rule, net: Adapter, x: Batch, y: Tensor) -> dict[str, float]:
    """How far each gradient of the net moves when a feedback tensor does; it is put back."""
    before, saved = _gradients(rule, net, x, y), tensor.detach().clone()
    generator = torch.Generator().manual_seed(3)
    if tensor.is_floating_point():
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        tensor.data.add_(noise * (float(saved.norm()) / saved.numel() ** 0.5 or 1.0))
    else:  # a mask, or indices
        other = ~saved if saved.dtype == torch.bool else saved.flatten().flip(0).view_as(saved)
        tensor.data.copy_(other)
    after = _gradients(rule, net, x, y)
    tensor.data.copy_(saved)
    return _distances(after, {name: before[name] for name in before if name in _names(net)})


def _diagnosed(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Check:
    """What is diagnosed at a layer is what trains it: an index that is off by one shows here.

    Asked of rules that train by the credits they give and draw nothing as they go; of a chain, of its top.
    """
    if type(rule).deposit_gradients is not Rule.deposit_gradients:
        return _unseen("it has a training pass of its own, whose credits are not seen.")
    with rule.inside(net):
        trace = net.trace(x, y, rule.wiring)
    with torch.random.fork_rng(devices=[]):
        before = torch.random.get_rng_state()
        given, again = rule.training_credits(trace), rule.training_credits(trace)
        drawn = not torch.equal(before, torch.random.get_rng_state())
    lost = [layer for layer, a in zip(trace.cuts, given, strict=True) if not _finite(a)]
    if lost:
        return Check("diagnosed", "fail", f"The credit that trains layer {lost[0]} is not finite.", {})
    if drawn:
        return _unseen("it draws random numbers as it trains.")
    if any(_apart(one, other) for one, other in zip(given, again, strict=True)):
        return _unseen("it trains by other credits each time it is asked.")
    shown = rule.credits(net.probe(x, y))
    apart = {layer: _apart(shown[layer], trained) for layer, trained in zip(trace.cuts, given, strict=True)}
    wrong = [layer for layer, off in apart.items() if not off <= EXACT]
    sentence = "What is diagnosed at a layer is the credit that trains it."
    if wrong:
        sentence = f"The credit diagnosed at layer {wrong[0]} is not the one that trains it."
    return Check("diagnosed", "fail" if wrong else "pass", sentence, {"relative": apart})


def _unseen(why: str) -> Check:
    sentence = f"What is diagnosed is not compared with what trains: {why}"
    return Check("diagnosed", "not applicable", sentence, {})


def _own(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Iterator[Check]:
    """A rule that does not say that it is backprop is something else, in what it shows and what it does."""
    if rule.exact:
        return
    trace = net.probe(x, y)
    shown = max(_apart(a, g) for a, g in zip(rule.credits(trace), trace.reference, strict=True))
    above = _of_the_head_alone(net)
    deposited = _from_autograd(_gradients(rule, net, x, y), net, x, y)
    trained = max((off for name, off in deposited.items() if name not in above), default=float("inf"))
    off = min(shown, trained)
    sentence = f"Its credits differ from backprop's by {off:.1g} relative."
    if rule.backprop_by_design:
        sentence = f"Its credits, made from backprop's or settling to them, differ by {off:.1g} relative."
    elif off <= EXACT:
        what = "Its credits are" if shown <= EXACT else "The gradients that it trains by are"
        sentence = f"{what} backprop's, to {off:.1g} relative: say so with exact = True, if that is meant."
    passed = rule.backprop_by_design or off > EXACT
    yield Check("own", "pass" if passed else "fail", sentence, {"shown": shown, "trained": trained})


def _apart(one: Tensor, other: Tensor) -> float:
    """How far two credits are from one another, relative to the second."""
    return float((one - other).norm() / other.norm().clamp_min(1e-300))


def _exact(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Iterator[Check]:
    """Rules that claim to be backprop are compared with autograd on the whole model."""
    if not rule.exact:
        return
    apart = _from_autograd(_gradients(rule, net, x, y), net, x, y)
    worst = float(torch.tensor(list(apart.values())).max())  # NaN, where one is
    sentence = f"Gradients differ from autograd's by {worst:.1g} relative."
    yield Check("exact", "pass" if worst <= EXACT else "fail", sentence, {"relative": worst})


def _from_autograd(found: Gradients, net: Adapter, x: Batch, y: Tensor) -> dict[str, float]:
    """How far each gradient of the net is from autograd's on the whole model."""
    parameters = {name: p for name, p in net.model.named_parameters() if name in found}
    loss = F.cross_entropy(net.logits(x).flatten(0, -2), y.flatten())
    slow = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return _distances(found, dict(zip(parameters, slow, strict=True)))


def _distances(found: Gradients, expected: Gradients) -> dict[str, float]:
    """How far each gradient is from the one expected, relative to that; a missing one is zero.

    One that is zero by symmetry, as that of an attention's key bias, is rounding and nothing else.
    """
    pairs = {name: (_or_zero(found[name]), _or_zero(wanted)) for name, wanted in expected.items()}
    sizes = {name: wanted.norm() for name, (_, wanted) in pairs.items()}
    floor = ROUNDING * float(torch.stack(list(sizes.values())).norm()) or 1e-300
    return {
        name: float((mine - wanted).norm() / sizes[name].clamp_min(floor))
        for name, (mine, wanted) in pairs.items()
    }


def _or_zero(gradient: Tensor | None) -> Tensor:
    return torch.zeros((), dtype=torch.float64) if gradient is None else gradient


def _unbiased(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Iterator[Check]:
    """Rules that claim to estimate the gradient: on average ⟨a, g⟩/‖g‖² is 1, jointly over layers."""
    if not rule.unbiased:
        return
    from scipy.stats import chi2

    trace = net.probe(x, y)
    sizes = [trace.rows(g).square().sum(1) for g in trace.reference]
    draws = []
    for _ in range(DRAWS):
        credits = rule.training_credits(trace)
        pairs = zip(credits, trace.reference, sizes, strict=True)
        draws.append(torch.stack([(trace.rows(a) * trace.rows(g)).sum(1) / size for a, g, size in pairs]))
    values = torch.cat(draws, dim=1)
    off, spread = values.mean(1) - 1, torch.cov(values) / values.shape[1]
    error = float(spread.diagonal().max().sqrt())
    spread = spread + EXACT**2 * torch.eye(len(off), dtype=spread.dtype)  # of what draws nothing it is zero
    p = float(chi2.sf(float(off @ torch.linalg.solve(spread, off)), len(off)))
    measured = f"(joint p = {p:.2g}, standard error {error:.2g})"
    status, sentence = "pass", f"Over {DRAWS} draws the credits agree with backprop on average {measured}."
    if not p > 1e-4:
        status, sentence = "fail", _not(sentence)
    elif error > TOLD_APART:
        status = "not applicable"
        sentence = f"Its noise hides the mean: {DRAWS} draws cannot tell a bias {measured}."
    yield Check("unbiased", status, sentence, {"p": p, "standard_error": error})


def _settles(rule: Rule, net: Adapter, x: Batch, y: Tensor) -> Iterator[Check]:
    """Rules that relax to an equilibrium say how far from it they stopped."""
    rule.credits(net.probe(x, y))
    residual = rule.readings().get("settling.residual@1")
    if residual is None:
        return
    settled = residual <= SETTLED_BELOW
    sentence = f"The nudged states settle to a relative residual of {residual:.1g}."
    if not settled:
        named = f"{rule.name} (unconverged)"
        sentence = f"The nudged states do not settle here (residual {residual:.1g}): this is {named}."
    yield Check("settles", "pass" if settled else "not applicable", sentence, {"residual": residual})


def _gradients(rule: Rule, net: Adapter, x: Batch, y: Tensor, seed: int = 0) -> dict[str, Tensor | None]:
    """What training would deposit in each parameter, with the same draws every time."""
    trained = rule.trained(net)
    for name, parameter in net.model.named_parameters():
        parameter.requires_grad_(name in trained)
        parameter.grad = None
    for parameter in trained.values():
        parameter.grad = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rule.learn(rule.deposit_gradients(net, x, y))
    return {name: None if p.grad is None else p.grad.clone() for name, p in trained.items()}


def _names(net: Adapter) -> set[str]:
    return {name for name, _ in net.model.named_parameters()}


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _not(sentence: str) -> str:
    return "Not so: " + sentence[0].lower() + sentence[1:]
