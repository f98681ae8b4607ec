"""Names that tell runs of one rule apart: where labels repeat, the settings in which they differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from walkback.core.canonical import canonical_json
from walkback.core.errors import BadInput
from walkback.core.spec import Call
from walkback.store import Bundle


class Named(Protocol):
    """The seeds of one rule and recipe."""

    @property
    def label(self) -> str: ...
    @property
    def bundles(self) -> Sequence[Bundle]: ...


class Group(NamedTuple):
    label: str
    bundles: list[Bundle]


def group_key(bundle: Bundle) -> str:
    """Everything but the seed; a captured model has no recipe and stands alone."""
    if bundle.status.get("state") == "captured":
        return bundle.id
    return canonical_json({key: value for key, value in bundle.spec.items() if key != "seed"})


def names_of(items: Sequence[Named]) -> list[str]:
    """A name for each: its label; where labels repeat, with settings that tell them apart, or the id."""
    labels = Counter(item.label for item in items)
    names = []
    for item in items:
        twins = [other.bundles[0].spec for other in items if other.label == item.label]
        differing = _differing(item.bundles[0].spec, twins) if labels[item.label] > 1 else ""
        names.append(f"{item.label} ({differing})" if differing else item.label)
    seen = Counter(names)
    return [
        f"{name} [{item.bundles[0].id}]" if seen[name] > 1 else name
        for name, item in zip(names, items, strict=True)
    ]


def run_names(bundles: Sequence[Bundle]) -> dict[Path, str]:
    """The name of the rule and recipe that each run belongs to."""
    groups: dict[str, Group] = {}
    for bundle in bundles:
        group = groups.setdefault(group_key(bundle), Group(bundle.card["rule"]["label"], []))
        group.bundles.append(bundle)
    named = zip(names_of(list(groups.values())), groups.values(), strict=True)
    return {bundle.path: name for name, group in named for bundle in group.bundles}


def _differing(spec: dict[str, Any], twins: Sequence[dict[str, Any]]) -> str:
    """A few settings that together tell a recipe from all its namesakes, as `lr=0.01, epochs=5`."""
    usable = [key for key, value in spec.items() if key != "seed" and not _is_hash(value)]
    left, chosen = [twin for twin in twins if twin != spec], set()
    while left:
        telling = {key: sum(twin.get(key) != spec[key] for twin in left) for key in usable}
        best = max(usable, key=lambda key: telling[key])
        if not telling[best]:
            break
        chosen.add(best)
        left = [twin for twin in left if twin.get(best) == spec[best]]
    values = {key: _shortened(spec[key], [twin.get(key) for twin in twins]) for key in usable}
    return ", ".join(f"{key}={values[key]}" for key in usable if key in chosen)


def _shortened(value: Any, others: Sequence[Any]) -> Any:
    """A net or data set by its name and the parameters in which its namesakes differ from it."""
    try:
        call, *calls = (Call.parse(str(text)) for text in (value, *others))
    except BadInput:
        return value
    alike = [other.params for other in calls if other.name == call.name]
    own = {k: v for k, v in call.params.items() if any(other.get(k) != v for other in alike)}
    return Call(call.name, own)


def _is_hash(value: Any) -> bool:
    return bool(re.fullmatch(r"[0-9a-f]{64}", str(value)))
