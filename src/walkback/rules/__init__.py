"""Learning rules, one file each. A new rule is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from walkback.core.errors import BadInput
from walkback.core.registry import Registry
from walkback.core.spec import Call, Value
from walkback.rules.base import Modifier as Modifier
from walkback.rules.base import Rule as Rule

rules: Registry[type[Rule]] = Registry(
    "rule",
    {
        "bp": "walkback.rules.bp:BP",
        "credit-bridge": "walkback.rules.bridges:CreditBridge",
        "dfa": "walkback.rules.dfa:DFA",
        "dose": "walkback.rules.dose:Dose",
        "drtp": "walkback.rules.drtp:DRTP",
        "dtp": "walkback.rules.dtp:DTP",
        "ep": "walkback.rules.ep:EP",
        "fa": "walkback.rules.fa:FA",
        "forward-gradient": "walkback.rules.perturbation:ForwardGradient",
        "frozen": "walkback.rules.frozen:Frozen",
        "kolen-pollack": "walkback.rules.kolen_pollack:KolenPollack",
        "ladder": "walkback.rules.partial:Ladder",
        "mixed": "walkback.rules.mixed:Mixed",
        "node-perturbation": "walkback.rules.perturbation:NodePerturbation",
        "pepita": "walkback.rules.pepita:Pepita",
        "shallow": "walkback.rules.partial:Shallow",
        "sign-symmetry": "walkback.rules.sign_symmetry:SignSymmetry",
        "state-bridge": "walkback.rules.bridges:StateBridge",
        "weight-mirror": "walkback.rules.weight_mirror:WeightMirror",
    },
    base=Rule,
)
modifiers: Registry[type[Modifier]] = Registry(
    "addition",
    {
        "feedback": "walkback.rules.feedback:Feedback",
        "normalise": "walkback.rules.normalise:Normalise",
        "offset": "walkback.rules.offset:Offset",
        "penalty": "walkback.rules.penalty:Penalty",
    },
    base=Modifier,
)


def resolve_rule(text: str | Call) -> Call:
    """The call with every parameter written out, so that equal rules have equal names."""
    call = Call.parse(text) if isinstance(text, str) else text
    rule = rules[call.name]
    missing = [name for name in ("name", "citation", "about") if not hasattr(rule, name)]
    if missing and not issubclass(rule, Modifier):
        raise BadInput(f"The rule {call.name!r} does not say its {missing[0]}.", "Set it in the class.")
    full = call.with_defaults(rule.defaults, "rule")
    rule.check_choices(full)
    added = tuple(resolve_addition(addition) for addition in full.plus)
    return Call(full.name, rule.normalise(full.params), added)


def resolve_addition(call: Call) -> Call:
    modifier = modifiers[call.name]
    full = call.with_defaults(modifier.defaults, "addition")
    modifier.check_choices(full)
    return full


def describe_rule(call: Call) -> dict[str, str]:
    """What a reader needs to know of a rule without importing it; `label` is its short name."""
    rule, added = rules[call.name], [modifiers[addition.name] for addition in call.plus]
    parts = [rule, *added]
    alone = {} if all(modifier.on_backprop for modifier in added) else {"control": ""}
    return {
        "label": "+".join([_short(call, rule.defaults), *(_added(addition) for addition in call.plus)]),
        "name": call.name,
        "variant": str(call),
        "role": rule.role,
        "citation": "; ".join(part.citation for part in parts),
        "about": "; ".join(part.about for part in parts),
        "ours": "; ".join(part.ours for part in parts if part.ours),
        **alone,
    }


def _short(call: Call, defaults: Mapping[str, Value]) -> str:
    """The name, with only those parameters that are not the default."""
    changed = {key: value for key, value in call.params.items() if value != defaults.get(key)}
    return str(Call(call.name, changed))


def _added(call: Call) -> str:
    """`penalty(0.01)`: what was added is always shown, by its first parameter."""
    defaults = modifiers[call.name].defaults
    first = next(iter(defaults))
    others = {key: value for key, value in call.params.items() if value != defaults[key] and key != first}
    return str(Call(call.name, {"": call.params[first], **others}))


def make_rule(text: str | Call) -> Rule:
    """A rule without its feedback yet: `setup` draws it, loading a checkpoint restores it."""
    call = resolve_rule(text)
    rule = rules[call.name].build(**call.params)
    for addition in call.plus:
        rule = modifiers[addition.name](rule, **addition.params)
    rule.call = call
    return rule
