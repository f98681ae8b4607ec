"""Learning rules, one file each. A new rule is one file and one line here."""

from __future__ import annotations

from walkback.core.registry import Registry
from walkback.core.spec import Call
from walkback.rules.base import Rule as Rule

rules: Registry[type[Rule]] = Registry(
    "rule",
    {
        "bp": "walkback.rules.bp:BP",
        "dfa": "walkback.rules.dfa:DFA",
        "fa": "walkback.rules.fa:FA",
        "frozen": "walkback.rules.frozen:Frozen",
    },
)


def resolve_rule(text: str | Call) -> Call:
    """The call with every parameter written out, so that equal rules have equal names."""
    call = Call.parse(text) if isinstance(text, str) else text
    rule = rules[call.name]
    full = call.with_defaults(rule.defaults, "rule")
    rule.check_choices(full)
    return full


def make_rule(text: str | Call) -> Rule:
    """A rule without its feedback yet: `setup` draws it, loading a checkpoint restores it."""
    call = resolve_rule(text)
    return rules[call.name](**call.params)
