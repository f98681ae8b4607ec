"""Whose code a run is a function of, where it is not walkback's: a run is found by names alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from walkback.core.errors import BadInput, UnknownName
from walkback.core.outside import code_of
from walkback.core.spec import Call, RunSpec
from walkback.data import datasets
from walkback.nets import nets
from walkback.rules import modifiers, rules
from walkback.store import Bundle


def outside_code(spec: RunSpec) -> dict[str, str]:
    """What of others a run is made of (rules, additions, nets, data sets), with hashes of their code."""
    found = {
        **{f"rule {name}": thing for name, thing in _rules_in(spec.rule)},
        **{f"addition {call.name}": modifiers[call.name] for call in spec.rule.plus},
        f"net {spec.net.name}": nets[spec.net.name],
        f"data set {spec.data.name}": datasets[spec.data.name].load,
    }
    return {what: code for what, thing in found.items() if (code := code_of(thing))}


def refuse_other_code(bundle: Bundle, spec: RunSpec) -> None:
    """A stored run is this one only if the code it was trained with is the code that there is."""
    then, now = bundle.card.get("code", {}), outside_code(spec)
    for what in sorted(then.keys() | now.keys()):
        if then.get(what) != now.get(what):
            raise BadInput(
                f"{spec.name} was trained with other code of the {what} than there is now.",
                "Train into another --store, or take that run away.",
            )


def _rules_in(call: Call) -> Iterator[tuple[str, Any]]:
    """The rule, and those that its parameters name, as in `frozen(stem=mine)`."""
    yield call.name, rules[call.name]
    for value in call.params.values():
        try:
            inner = Call.parse(value) if isinstance(value, str) else None
            if inner is not None and inner.name != call.name:
                yield inner.name, rules[inner.name]
        except (BadInput, UnknownName):
            continue  # a word that is no rule
