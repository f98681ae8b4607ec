"""Bundles of the paper's runs with made-up numbers, written without training: every cell has a value."""

from __future__ import annotations

import math
from hashlib import sha256

import numpy as np

from walkback.core.quantities import QUANTITIES, Measurements
from walkback.core.spec import RunSpec
from walkback.rules import describe_rule
from walkback.run.one import kept_epochs
from walkback.store import Bundle, Store
from walkback.store.bundle import Member, pack_items

DEPTH, ITEMS = 4, 500
ENVIRONMENT = {
    "walkback": "0.1.0",
    "commit": "c0ffee" * 6,
    "machine": "x86_64",
    "libraries": {"torch": "2.13.0"},
    "threads": 1,
    "instruction_set": "AVX2",
    "device": "cpu",
}


NAMES = {
    "accuracy": ("accuracy.test@1",),
    "size": ("scale.state_norm@1",),
    "cosine": ("alignment.cosine@1", "alignment.cosine_compat@1", "alignment.deep_cosine@1"),
    "p": ("alignment.deep_null_p@1",),
    "gamma": ("alignment.gamma_mean@1",),
    "reference": ("reference.compat@1",),
    "fixed": ("perturbation.rho_compat@1",),
    "ceiling": ("perturbation.ceiling_compat@1",),
}


def write_run(
    store: Store,
    spec: RunSpec,
    *,
    state: str = "finished",
    full: bool = True,
    fixed_step: bool = True,
    **given: float,
) -> Bundle:
    """A bundle that looks like a run of `spec`; its numbers follow from rule, seed and epoch, but for
    those that are given by a key of `NAMES`. Without `fixed_step` its full tier is an older walkback's."""
    rule = describe_rule(spec.rule)
    card = {
        "rule": rule,
        "net": {"label": str(spec.net), "fingerprint": str(spec.net)},
        "data": {"label": str(spec.data), "classes": 10, "dataset": "d", "split": "s"},
        "measured": {"mode": "eval", "batch": 512},
        "recipe": {"optimizer": "AdamW"},
    }
    bundle = Bundle.create(store.path / spec.name, id=spec.id, spec=spec.to_dict(), card=card)
    table, tier, correct = Measurements(), Measurements(), {}
    for epoch in sorted(kept_epochs(spec.epochs)):
        values = made_up(spec, epoch)
        values |= {name: value for key, value in given.items() for name in NAMES[key]}
        if "size" in given:
            values |= {
                "scale.growth_max@1": given["size"] / 1e3,
                "reference.validity@1": 0.2 / given["size"],
            }
        for name in sorted(values):
            if not fixed_step and name.startswith("perturbation.") and name.endswith("_compat@1"):
                continue
            _add(tier if _is_full(name) else table, epoch, name, values[name])
        rng = np.random.default_rng(spec.seed)
        correct[epoch] = rng.random(ITEMS) < values["accuracy.test@1"]
    members = [
        Member("measurements.csv", "measurements", table.to_csv().encode()),
        Member("items.safetensors", "items", pack_items(correct)),
    ]
    if full:
        members.append(Member("full/epoch-0001.csv", "full", tier.to_csv().encode(), 1))
    status = {"state": state, "epoch": spec.epochs, "reason": ""}
    bundle.commit(members, status=status, environment=ENVIRONMENT)
    return bundle


def made_up(spec: RunSpec, epoch: int) -> dict[str, float]:
    """A story like the paper's: backprop learns, what is random explodes where a norm hides its scale."""
    name, wobble = spec.rule.name, 1 + 0.02 * ((spec.seed % 7) - 3)
    # Rules of one name that differ in what was added have numbers of their own: rows must not be swapped.
    wobble *= 1 + 0.01 * int.from_bytes(sha256(str(spec.rule).encode()).digest()[:2]) / 2**16
    penalised = bool(spec.rule.plus)
    random = name in ("dfa", "state-bridge", "credit-bridge")
    normed = spec.net.name == "vit" or spec.net.params.get("terminal_norm") == "layer"
    size = 150.0 * wobble
    if random and not penalised:
        size = size * (1 + epoch) ** (3 if normed else 1)
    validity = 0.2 / size if normed else 1e-3 * wobble
    top = {"bp": 0.61, "ep": 0.58, "fa": 0.45, "dfa": 0.31, "frozen": 0.36, "shallow": 0.33}.get(name, 0.25)
    cosine = {"bp": 1.0, "ep": 0.99, "fa": 0.4}.get(name, 0.15 if penalised else 0.01) * wobble
    unit = min(1.0, validity / 1e-6)
    return {
        "accuracy.test@1": top * wobble * (1 - math.exp(-epoch / 3 - 0.3)),
        "scale.state_norm@1": size,
        "scale.growth_max@1": max(1.5, size / 1000),
        "scale.growth_total@1": max(2.0, size / 100),
        "reference.validity@1": validity,
        "reference.compat@1": validity / 4,
        "reference.norm@1": validity * 128,
        "alignment.cosine@1": cosine,
        "alignment.cosine_compat@1": cosine * unit,
        "alignment.deep_cosine@1": cosine,
        "alignment.gamma_mean@1": 0.1 * wobble if cosine < 0.2 else cosine,
        "alignment.gamma_concat@1": 0.12 * wobble if cosine < 0.2 else cosine,
        "perturbation.rho@1": cosine * 0.9,
        "perturbation.ceiling@1": 0.99,
        "perturbation.rho_compat@1": cosine * 0.9 / (1 + size / 1e4),
        "perturbation.ceiling_compat@1": 0.99 / (1 + size / 1e4),
        "perturbation.moved_compat@1": 128.0,
        "alignment.null_p@1": 0.005 if cosine > 0.1 else 0.4,
        "alignment.null_z@1": 8.0 if cosine > 0.1 else 0.5,
        "alignment.null_sd@1": 0.021 * wobble,
        "alignment.deep_null_mean@1": 0.001 * wobble,
        "alignment.deep_null_sd@1": 0.02,
        "alignment.deep_null20_mean@1": 0.002 * wobble,
        "alignment.deep_null20_sd@1": 0.022,
        "alignment.deep_null_p@1": 0.005 if cosine > 0.1 else 0.4,
    }


def _is_full(name: str) -> bool:
    return name.startswith("perturbation.") or "null" in name


def _add(table: Measurements, epoch: int, name: str, value: float) -> None:
    if not QUANTITIES[name].per_layer:
        table.add(epoch, name, value)
        return
    for layer in range(DEPTH + 1):
        shown = 0.42 if layer == 0 and name.startswith("alignment.cosine") and value < 0.2 else value
        table.add(epoch, name, shown, layer)
