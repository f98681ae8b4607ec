"""The walk-back chain: which sentence about a rule survives each question, in plain English."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from walkback.core.verdict import Outcome, Reason
from walkback.judge.evidence import Evidence
from walkback.judge.three_valued import every, most

Step = Mapping[str, Any]


def walk_back(
    label: str, runs: Sequence[Evidence], reasons: Sequence[Reason], outcome: Outcome
) -> tuple[Step, ...]:
    """Four steps: the status-quo claim, the reference, the depth, and what kind of failure it is."""
    d1, d2, d3 = reasons
    return (
        _status_quo(label, runs),
        _reference(runs, d1, d2, _clamped(runs)),
        _depth(d3),
        _mode(label, runs, d1, d2, d3, outcome),
    )


def _step(number: int, question: str, survives: bool | None, sentence: str) -> Step:
    return {"step": number, "question": question, "survives": survives, "sentence": sentence}


def _status_quo(label: str, runs: Sequence[Evidence]) -> Step:
    """What is usually reported: accuracy above chance and a positive mean cosine Γ."""
    question = "What do accuracy and gradient cosine claim?"
    _, claimed = status_quo(runs)
    accuracy = _mean([run.accuracy for run in runs])
    gamma = _mean([run.number("alignment.gamma_mean@1") for run in runs])
    if accuracy is None:
        part = " on every seed" if any(run.accuracy is not None for run in runs) else ""
        return _step(1, question, claimed, f"The accuracy of {label} was not measured{part}.")
    aligned = "" if gamma is None else f" and a mean cosine Γ of {gamma:+.2f} to the gradient"
    if _no_number_in(runs):
        aligned = ", and its mean cosine Γ to the gradient is not a number"
    found = f"{label} reaches {100 * accuracy:.1f} % accuracy{aligned}."
    if not runs[0].classes:
        return _step(1, question, claimed, found)
    claim = {
        True: "by the usual reading it learns",
        False: "even the usual reading does not support it",
        None: "without a cosine the usual reading is not known",
    }[claimed]
    return _step(1, question, claimed, f"{found} Chance is {100 / runs[0].classes:.1f} %: {claim}.")


def status_quo(runs: Sequence[Evidence]) -> tuple[bool | None, bool | None]:
    """Whether accuracy is above chance, and that and Γ positive: the usual claim (ours), in most seeds."""
    gammas = [run.number("alignment.gamma_mean@1") for run in runs]
    above = most(
        run.accuracy > 1 / run.classes if run.accuracy is not None and run.classes else None for run in runs
    )
    return above, every((above, most(None if gamma is None else gamma > 0 for gamma in gammas)))


def _no_number_in(runs: Sequence[Evidence]) -> bool:
    return "not a number" in [run.gap("alignment.gamma_mean@1") for run in runs]


CLAMPED_BY = 0.02  # as much less than the exact cosine, and Γ is not read as it stands


def _clamped(runs: Sequence[Evidence]) -> str:
    """What the floor of a library's cosine took from Γ, if that is much: fitted samples have small g."""
    gamma = _mean([run.number("alignment.gamma_mean@1") for run in runs])
    exact = _mean([_mean_over_layers(run) for run in runs])
    if _no_number_in(runs):
        return "the cosine is not a number"
    if gamma is None:
        return "no cosine was measured"
    if exact is None or abs(exact - gamma) <= CLAMPED_BY:
        return "the cosine can be read"
    return f"Γ is read through a clamp, and the exact mean cosine is {exact:+.2f}"


def _mean_over_layers(run: Evidence) -> float | None:
    return _mean([run.number("alignment.cosine@1", n) for n in run.measurements.layers(run.epoch)])


def layers_named(layers: Sequence[int]) -> str:
    """`layer 3`, or `layers 0, 1 and 2`."""
    *most_of_them, last = map(str, layers)
    return f"layers {', '.join(most_of_them)} and {last}" if most_of_them else f"layer {last}"


def _unreached(runs: Sequence[Evidence]) -> list[int]:
    """Layers whose median reference is 0, not small, in every run, though that of the last is not."""
    *below, last = runs[0].measurements.layers(runs[0].epoch) or [0]
    norms = {layer: [run.number("reference.norm@1", layer) for run in runs] for layer in (*below, last)}
    return [layer for layer in below if all(norms[last]) and set(norms[layer]) == {0.0}]


def _reference(runs: Sequence[Evidence], d1: Reason, d2: Reason, cosine: str) -> Step:
    question = "Is the gradient it is compared with meaningful?"
    if d2.fires is None:
        return _step(2, question, None, f"Not known. {d2.sentence}")
    unreached = _unreached(runs)
    if not d2.fires and unreached:
        return _step(
            2,
            question,
            False,
            f"Only at the last state: no gradient reaches {layers_named(unreached)} (its "
            "median norm there is exactly 0), so there no cosine can be read. Is the graph cut between "
            "the blocks?",
        )
    if not d2.fires:
        scale = " although one block explodes (D1)" if d1.fires else ""
        return _step(2, question, True, f"Yes: the reference is measurable{scale}; {cosine}.")
    if d1.fires:
        return _step(
            2,
            question,
            False,
            "No: the residual stream has exploded and the terminal norm shrinks the reference with it, "
            "so the sentence about the cosine is walked back.",
        )
    return _step(2, question, False, "No: the reference is too small for a conventional cosine.")


def _depth(d3: Reason) -> Step:
    question = "Do the trained blocks beat frozen random ones?"
    if d3.fires is None:
        return _step(3, question, None, d3.sentence)
    words = "No, so the sentence about deep credit is walked back. " if d3.fires else "Yes. "
    if d3.status == "stem-dependent":
        words = "That depends on the stem, so the sentence about deep credit is walked back. "
    return _step(3, question, not d3.fires, words + d3.sentence)


def _mode(
    label: str, runs: Sequence[Evidence], d1: Reason, d2: Reason, d3: Reason, outcome: Outcome
) -> Step:
    """Mode 1: scale destroys what the credit builds. Mode 2: the credit points nowhere useful."""
    question = "What kind of failure is it?"
    if outcome is Outcome.PASS:
        alone = [f"{reason.check} alone fires" for reason in (d1, d2) if reason.fires]
        alone += [f"no gradient reaches {layers_named(layers)}" for layers in [_unreached(runs)] if layers]
        found = f"None that decides ({alone[0]})" if alone else "None was found"
        return _step(4, question, True, f"{found}; the claim about {label} stands for now.")
    if outcome is not Outcome.FAIL:
        return _step(4, question, None, "Not known until the missing evidence is there.")
    deep = _mean([run.number("alignment.deep_cosine@1") for run in runs])
    seen = "" if deep is None else f" The exact deep cosine is {deep:+.2f}"
    scale = {
        (True, True): "Mode 1 (scale): the stream explodes and takes the reference with it",
        (True, False): "The stream explodes (D1), though the reference is still measurable",
        (False, True): "The reference is too small to be measured (D2), though no block explodes",
    }.get((bool(d1.fires), bool(d2.fires)), "")
    depth = {
        True: "depth adds too little (D3)",
        False: "depth is useful all the same",
        None: "whether depth is useful is not known",
    }[d3.fires]
    if d3.status == "stem-dependent":
        depth = "depth helps with one stem and not with another (D3)"
    if not scale and deep is None:
        found = f"Not one of scale: scale is sane, yet {depth}. No direction was measured."
        return _step(4, question, False, found)
    if not scale:
        return _step(4, question, False, f"Mode 2 (direction): scale is sane, yet {depth}.{seen}.")
    hint = f"{seen}; read it as direction only." if seen and d1.fires else f"{seen}." if seen else ""
    return _step(4, question, False, f"{scale}, and {depth}.{hint}")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values) else None
