"""What a run is, in full: net, rule, data, seed and recipe, with one content id.

Things with parameters are written as calls: `resmlp(width=128)`, `dfa(form=block,skip=cut)`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from walkback.core.canonical import content_id
from walkback.core.errors import BadInput

Value = str | int | float | bool
_RECIPE = ("batch", "lr", "weight_decay", "schedule", "lr_grid", "holdout")
_CALL = re.compile(r"^([A-Za-z][\w.-]*)(?:\((.*)\))?$", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A name with parameters, as in `dfa(form=block)`, and what is added, as in `dfa+penalty(1e-2)`."""

    name: str
    params: Mapping[str, Value] = field(default_factory=dict)
    plus: tuple[Call, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Call:
        first, *added = split_list(text, "+")
        call = cls._parse_one(first)
        return cls(call.name, call.params, tuple(cls._parse_one(part) for part in added))

    @classmethod
    def _parse_one(cls, text: str) -> Call:
        match = _CALL.match(text.strip())
        if not match:
            raise BadInput(f"Cannot read {text!r}.", "Write a name, or name(key=value,…).")
        params: dict[str, Value] = {}
        parts = split_list(match[2] or "")
        for part in parts:
            key, equals, value = _key_and_value(part)
            if not equals and len(parts) > 1:
                raise BadInput(f"Cannot read {part!r} in {text!r}.", "Write key=value.")
            if key in params:
                raise BadInput(f"{text!r} gives {key} twice.")
            params[key] = _value(value)
        return cls(match[1], params)

    def with_defaults(self, defaults: Mapping[str, Value], kind: str) -> Call:
        """The same call with every parameter written out; an unknown or ill-typed one is refused.

        A single value without a name stands for the first parameter: `penalty(1e-2)`.
        """
        given = {key or next(iter(defaults), ""): value for key, value in self.params.items()}
        for key, value in given.items():
            if key not in defaults:
                known = ", ".join(sorted(defaults)) or "none"
                raise BadInput(f"{kind} {self.name!r} has no parameter {key!r}.", f"It has: {known}.")
            _check_kind(f"{self.name}.{key}", value, defaults[key])
        full = {key: given.get(key, default) for key, default in sorted(defaults.items())}
        return Call(self.name, {k: type(defaults[k])(v) for k, v in full.items()}, self.plus)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        shown = ((f"{key}=" if key else "") + _text(value) for key, value in sorted(self.params.items()))
        inside = ",".join(shown)
        return "+".join([f"{self.name}({inside})" if inside else self.name, *map(str, self.plus)])


@dataclass(frozen=True)
class RunSpec:
    """One run. Equal specs have equal ids; nothing about machine, time or place is part of it."""

    net: Call
    rule: Call
    data: Call
    data_identity: str
    seed: int
    epochs: int
    batch: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.01
    schedule: str = "cosine"
    lr_grid: str = ""
    holdout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay"):  # 1 and 1.0 are one spec
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 < self.lr < math.inf:
            raise BadInput(f"lr must be positive and finite, not {self.lr}.")
        if not 0 <= self.holdout < 1:
            raise BadInput(f"holdout must be a share below 1, not {self.holdout}.")
        if not 0 <= self.weight_decay < math.inf:
            raise BadInput(f"weight_decay must be zero or more, not {self.weight_decay}.")

    def to_dict(self) -> dict[str, Any]:
        """Every field; those that came later are left out at their default, so that ids stay."""
        late = {"lr_grid": "", "holdout": 0.0}
        found = {k: v for k, v in asdict(self).items() if k not in late or v != late[k]}
        return {**found, **{key: str(getattr(self, key)) for key in ("net", "rule", "data")}}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunSpec:
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in stored.items() if key in known}
        return cls(**{**values, **{key: Call.parse(values[key]) for key in ("net", "rule", "data")}})

    @property
    def id(self) -> str:
        return content_id(self.to_dict())

    @property
    def name(self) -> str:
        """The bundle's folder: readable first, unique last."""
        rule = "+".join([self.rule.name, *(added.name for added in self.rule.plus)])
        return f"{self.net.name}-{rule}-s{self.seed}-{self.id}"

    def with_rule(self, rule: Call) -> RunSpec:
        return replace(self, rule=rule)


def tell_apart(specs: Sequence[RunSpec]) -> list[str]:
    """What each spec's net and recipe have of their own among these: `vit`, `resmlp, schedule=constant`.

    Parameters that all nets of a name share are left out, and so is the recipe that most runs have.
    """
    varied: dict[tuple[str, str], set[Value]] = defaultdict(set)
    common: dict[str, Counter[Any]] = defaultdict(Counter)
    for spec in specs:
        for key, value in spec.net.params.items():
            varied[spec.net.name, key].add(value)
        for key in _RECIPE:
            common[key][getattr(spec, key)] += 1
    usual = {key: counts.most_common(1)[0][0] for key, counts in common.items()}
    return [
        ", ".join(
            [
                str(
                    Call(
                        s.net.name,
                        {k: v for k, v in s.net.params.items() if len(varied[s.net.name, k]) > 1},
                    )
                ),
                *(f"{key}={getattr(s, key)}" for key in _RECIPE if getattr(s, key) != usual[key]),
            ]
        )
        for s in specs
    ]


def split_list(text: str, separator: str = ",") -> list[str]:
    """Split on commas outside parentheses: `bp,dfa(form=layer,skip=sum)` has two parts."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            raise BadInput(f"Unbalanced parentheses in {text!r}.")
        if char == separator and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    if depth:
        raise BadInput(f"Unbalanced parentheses in {text!r}.")
    return [part for part in (*parts, text[start:].strip()) if part]


def _key_and_value(part: str) -> tuple[str, bool, str]:
    """`key=value`; an equals sign inside parentheses belongs to the value."""
    key, equals, value = part.partition("=")
    if not equals or "(" in key:
        return "", False, part.strip()
    return key.strip(), True, value.strip()


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_kind(name: str, value: Value, default: Value) -> None:
    allowed = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, allowed) or isinstance(value, bool) != isinstance(default, bool):
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
        raise BadInput(f"{name} must be {wanted[type(default)]}, not {_text(value)!r}.")
