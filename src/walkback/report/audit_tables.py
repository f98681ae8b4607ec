"""The tables of a rule audit: verdicts, layers, the full tier and the way there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from walkback.core.quantities import QUANTITIES, Reading
from walkback.core.verdict import Reason
from walkback.judge.assemble import Judged
from walkback.judge.evidence import Evidence
from walkback.judge.naming import names_of
from walkback.report import words
from walkback.report.table import Column, Row, Table
from walkback.store import Bundle


def verdict_rows(judged: Sequence[Judged]) -> Table:
    """One row per rule: what was measured over its seeds, and the verdict."""
    columns = (
        Column("rule", ("rule",), numeric=False),
        Column("seeds", ("seeds", "diverged", "running", "unmeasured"), _show_seeds),
        Column(
            "accuracy", ("accuracy_mean", "accuracy_sd", "accuracy_seeds", "seeds"), _show_accuracy, "%"
        ),
        Column("D1 growth", ("d1_value", "d1_firing", "d1_gap", "seeds"), _show_vote),
        Column("D2 reference", ("d2_value", "d2_firing", "d2_gap", "seeds"), _show_vote),
        Column("D3 gain", ("d3_gain", "d3_low", "d3_high"), _show_gain, "pp"),
        Column("verdict", ("verdict",), _show_verdict, numeric=False),
    )
    caption = (
        "Accuracy on the test split (mean ± standard deviation over seeds), the three detectors and "
        "the verdict. In parentheses: on how many of the seeds a detector fires. "
        "In brackets: the interval of the gain over frozen blocks."
    )
    named = zip(names_of(judged), judged, strict=True)
    rows = tuple(_verdict_row(name, item) for name, item in named)
    return Table("verdicts", caption, columns, _VERDICT_FIELDS, rows)


def layer_rows(judged: Sequence[Judged], names: Sequence[str] | None = None) -> Table:
    """One row per rule and layer, at each run's last measured epoch."""
    columns = (
        Column("rule", ("rule",), numeric=False),
        Column("layer", ("layer",)),
        Column("state norm", ("state_norm",), words.number),
        Column("reference norm", ("reference_norm",), words.number),
        Column("cosine, exact", ("cosine",), words.cosine),
        Column("cosine, clamped", ("cosine_compat",), words.cosine),
        Column("valid rows", ("n_valid",), words.count),
        Column("seeds", ("seeds_measured", "seeds_nan", "seeds"), _show_layer_seeds),
    )
    caption = (
        "Layer by layer at the last measured epoch, median over seeds: size of the state, size of the "
        "reference gradient, and the cosine between credit and reference, exact and as a clamped "
        "library function gives it. Layer 0 is the stem's output."
    )
    rows = tuple(
        row
        for name, item in zip(names or names_of(judged), judged, strict=True)
        for row in _layers_of(name, item)
    )
    return Table("layers", caption, columns, _LAYER_FIELDS, rows)


def full_rows(judged: Sequence[Judged], names: Sequence[str] | None = None) -> Table:
    """One row per rule and layer, at the last epoch measured in full; a rule without one has no rows."""
    columns = (
        Column("rule", ("rule",), numeric=False),
        Column("epoch", ("epoch",)),
        Column("layer", ("layer",)),
        _or_gap("cosine, exact", ("cosine",), words.cosine),
        _or_gap("parameter cosine", ("parameter_cosine",), words.cosine),
        _or_gap("stability", ("stability",), words.cosine),
        _or_gap("nudge ν", ("nudge",), words.cosine),
        _or_gap("random ν", ("random_mean", "random_sd"), words.cosines),
        _or_gap("ρ", ("rho",), words.cosine),
        _or_gap("ρ ceiling", ("ceiling",), words.cosine),
        _or_gap("null z (p)", ("null_z", "null_p"), _show_null),
        _or_gap("float64 error", ("relerr",), words.number),
        Column("seeds", ("seeds_measured", "seeds"), _show_share),
    )
    caption = (
        "What the credit does, layer by layer, at the last epoch measured in full, median over the seeds "
        "measured: cosine to the reference, of the credit and of the parameter gradient; cosine of the "
        "mean credits of two halves of the batch; nudge ν beside that of random directions; correlation ρ "
        "beside its ceiling; the cosine in standard deviations of its null, and its rank p. The "
        "float64 error is that of the reference at the last layer."
    )
    rows = tuple(
        row
        for name, item in zip(names or names_of(judged), judged, strict=True)
        for row in _full_of(name, item)
    )
    return Table("full", caption, columns, _FULL_FIELDS, rows)


def full_runs(item: Judged) -> list[Evidence]:
    """The seeds measured in full at the last epoch that any of them was, seen at that epoch."""
    epochs = [{r.epoch for r in run.measurements if r.quantity in _FULL_TIER.values()} for run in item.runs]
    last = max(set().union(*epochs), default=-1)
    return [replace(run, epoch=last) for run, own in zip(item.runs, epochs, strict=True) if last in own]


def trajectory_rows(judged: Sequence[Judged]) -> Table:
    """One row per rule, seed and measured epoch."""
    columns = (
        Column("rule", ("rule",), numeric=False),
        Column("seed", ("seed",)),
        Column("epoch", ("epoch",)),
        Column("accuracy", ("accuracy",), words.percent, "%"),
        Column("largest growth", ("growth_max",), words.number),
        Column("reference validity", ("validity",), words.number),
        Column("deep cosine", ("deep_cosine",), words.cosine),
        Column("run", ("state",), numeric=False),
    )
    caption = "Every measured epoch of every run; the last column says how the run ended."
    rows = tuple(
        row
        for name, item in zip(names_of(judged), judged, strict=True)
        for run, bundle in zip(item.runs, item.bundles, strict=True)
        for row in _epochs_of(name, run, bundle)
    ) + tuple(
        _waiting_row(name, bundle)
        for name, item in zip(names_of(judged), judged, strict=True)
        for bundle in item.unmeasured
    )
    return Table("trajectory", caption, columns, _TRAJECTORY_FIELDS, rows)


def states_of(item: Judged) -> list[str]:
    return [words.run_state(bundle.status, bundle.spec.get("epochs")) for bundle in item.bundles]


_VERDICT_FIELDS = (
    *(
        "rule",
        "variant",
        "role",
        "seeds",
        "diverged",
        "running",
        "unmeasured",
        "state",
        "accuracy_mean",
        "accuracy_sd",
        "accuracy_seeds",
    ),
    *("d1_value", "d1_threshold", "d1_firing", "d1_measured", "d1_gap"),
    *("d2_value", "d2_threshold", "d2_firing", "d2_measured", "d2_gap"),
    *("d3_gain", "d3_threshold", "d3_low", "d3_high"),
    *("gamma_mean", "gamma_concat", "deep_cosine", "residual", "logic", "outcome", "verdict"),
)
_LAYER_VALUES = {
    "state_norm": "scale.state_norm@1",
    "reference_norm": "reference.norm@1",
    "cosine": "alignment.cosine@1",
    "cosine_compat": "alignment.cosine_compat@1",
}
_LAYER_FIELDS = (
    "rule",
    "variant",
    "layer",
    *_LAYER_VALUES,
    "n_valid",
    "seeds_measured",
    "seeds_nan",
    "seeds",
)
_FULL_TIER = {
    "parameter_cosine": "alignment.parameter_cosine@1",
    "stability": "alignment.stability@1",
    "nudge": "nudge.ratio@1",
    "random_mean": "nudge.band_mean@1",
    "random_sd": "nudge.band_sd@1",
    "rho": "perturbation.rho@1",
    "ceiling": "perturbation.ceiling@1",
    "null_z": "alignment.null_z@1",
    "null_p": "alignment.null_p@1",
}
_FULL_VALUES = {"cosine": "alignment.cosine@1", **_FULL_TIER, "relerr": "reference.float64_relerr@1"}
_FULL_FIELDS = (
    *("rule", "variant", "epoch", "layer"),
    *(field for key in _FULL_VALUES for field in (key, f"{key}_gap")),
    *("seeds_measured", "seeds"),
)
_TRAJECTORY_VALUES = {
    "accuracy": "accuracy.test@1",
    "growth_max": "scale.growth_max@1",
    "validity": "reference.validity@1",
    "deep_cosine": "alignment.deep_cosine@1",
    "residual": "settling.residual@1",
}
_TRAJECTORY_FIELDS = ("rule", "variant", "seed", "epoch", *_TRAJECTORY_VALUES, "state")


def _verdict_row(name: str, item: Judged) -> Row:
    verdict = item.verdict
    accuracies = [_accuracy(run) for run in item.runs]
    residuals = [v for run in item.runs if (v := run.value("settling.residual@1")) is not None]
    d1, d2, d3 = verdict.reasons
    low, high = d3.interval or (None, None)
    return {
        "rule": name,
        "variant": _variant(item),
        "role": item.role,
        "seeds": len(item.runs),
        "diverged": _count(item, "diverged"),
        "running": _count(item, "running"),
        "unmeasured": len(item.unmeasured),
        "state": _join_states([*states_of(item), *("not measured yet" for _ in item.unmeasured)]),
        "accuracy_mean": words.mean_of(accuracies),
        "accuracy_sd": words.sd_of(accuracies),
        "accuracy_seeds": sum(value is not None for value in accuracies),
        **_vote_fields("d1", d1),
        **_vote_fields("d2", d2),
        "d3_gain": d3.value,
        "d3_threshold": d3.threshold,
        "d3_low": low,
        "d3_high": high,
        **{
            key: words.mean_of([run.value(f"alignment.{key}@1") for run in item.runs])
            for key in ("gamma_mean", "gamma_concat", "deep_cosine")
        },
        "residual": math.nan if any(map(math.isnan, residuals)) else max(residuals, default=None),
        "logic": verdict.logic,
        "outcome": None if words.is_baseline(verdict) else verdict.outcome.value,
        "verdict": verdict.verdict,
    }


def _accuracy(run: Evidence) -> float | None:
    """As it was judged; NaN where it was measured and is not a number."""
    return run.value("accuracy.test@1") if run.accuracy is None else run.accuracy


def _vote_fields(prefix: str, reason: Reason) -> Row:
    """Value and votes of a detector that is judged seed by seed; no vote is known where none was cast."""
    gaps = reason.detail["gaps"]
    firing = None if all(gaps) else int(reason.seeds.split("/")[0])
    return {
        f"{prefix}_value": words.raw(reason),
        f"{prefix}_threshold": reason.threshold,
        f"{prefix}_firing": firing,
        f"{prefix}_measured": sum(gap in ("", "not a number") for gap in gaps),
        f"{prefix}_gap": words.lost(reason),
    }


def _layers_of(name: str, item: Judged) -> Iterator[Row]:
    for layer in item.verdict.layers:
        norms = [
            [run.value(_LAYER_VALUES[key], layer["index"]) for key in ("state_norm", "reference_norm")]
            for run in item.runs
        ]
        measured = [pair for pair in norms if None not in pair]
        yield {
            "rule": name,
            "variant": _variant(item),
            "layer": layer["index"],
            **{key: layer[key] for key in (*_LAYER_VALUES, "n_valid")},
            "seeds_measured": len(measured),
            "seeds_nan": sum(any(map(math.isnan, filter(None, pair))) for pair in measured),
            "seeds": len(item.runs),
        }


def _full_of(name: str, item: Judged) -> Iterator[Row]:
    runs = full_runs(item)
    layers = sorted({layer for run in runs for layer in run.measurements.layers(run.epoch)})
    for layer in layers:
        values: dict[str, Any] = {}
        for key, quantity in _FULL_VALUES.items():
            found = _readings(runs, quantity, layer, layers[-1])
            values[key], values[f"{key}_gap"] = _median_or_gap(found)
        yield {
            "rule": name,
            "variant": _variant(item),
            "epoch": runs[0].epoch,
            "layer": layer,
            **values,
            "seeds_measured": len(runs),
            "seeds": len(item.runs),
        }


def _readings(runs: Sequence[Evidence], quantity: str, layer: int, last: int) -> list[Reading | None]:
    """One per seed. What is taken of the net as a whole stands at its last layer, and only there."""
    if QUANTITIES[quantity].per_layer:
        return [run.measurements.get(quantity, run.epoch, layer) for run in runs]
    return [run.measurements.get(quantity, run.epoch) for run in runs if layer == last]


def _median_or_gap(readings: Sequence[Reading | None]) -> tuple[float | None, str]:
    """The median over seeds, or why there is none: a median over survivors would flatter the rule."""
    gaps = [words.gap(reading) for reading in readings]
    if any(gaps):
        return math.nan if "not a number" in gaps else None, words.gaps(gaps)
    return median(r.value for r in readings if r is not None) if readings else None, ""


def _or_gap(header: str, keys: tuple[str, ...], show: Callable[..., str]) -> Column:
    """A column that shows its values together, or says why one of them is missing."""

    def cell(*raw: Any) -> str:
        values, gaps = raw[: len(keys)], raw[len(keys) :]
        return next(filter(None, gaps), "") or show(*values)

    return Column(header, (*keys, *(f"{key}_gap" for key in keys)), cell)


def _epochs_of(name: str, run: Evidence, bundle: Bundle) -> Iterator[Row]:
    state = words.run_state(bundle.status, bundle.spec.get("epochs"))
    for epoch in run.measurements.epochs:
        values = {
            key: run.measurements.value(quantity, epoch) for key, quantity in _TRAJECTORY_VALUES.items()
        }
        yield {
            "rule": name,
            "variant": bundle.card["rule"].get("variant", run.label),
            "seed": run.seed,
            "epoch": epoch,
            **values,
            "state": state,
        }


def _waiting_row(name: str, bundle: Bundle) -> Row:
    """A run that has started and shows nothing yet."""
    told = {
        "rule": name,
        "variant": bundle.card["rule"].get("variant", name),
        "seed": bundle.spec.get("seed"),
    }
    return dict.fromkeys(_TRAJECTORY_FIELDS) | told | {"state": "not measured yet"}


def _variant(item: Judged) -> str:
    return item.bundles[0].card["rule"].get("variant", item.label)


def _count(item: Judged, state: str) -> int:
    return sum(bundle.status.get("state") == state for bundle in item.bundles)


def _join_states(states: Sequence[str]) -> str:
    """`finished`, or `2 finished, 1 diverged in epoch 3: …` where seeds differ."""
    counts = Counter(states)
    if len(counts) == 1:
        return states[0]
    return ", ".join(f"{number} {state}" for state, number in counts.items())


def _show_seeds(seeds: int, diverged: int, running: int, unmeasured: int) -> str:
    open_ends = [f"{diverged} diverged"] * bool(diverged) + [f"{running} still running"] * bool(running)
    open_ends += [f"{unmeasured} more not measured yet"] * bool(unmeasured)
    return f"{seeds} ({', '.join(open_ends)})" if open_ends else f"{seeds}"


def _show_accuracy(mean: float | None, deviation: float | None, measured: int, seeds: int) -> str:
    if mean is None and measured:
        return f"not measured in {seeds - measured} of {seeds} seeds"
    return words.spread(words.percent(mean), words.percent(deviation))


def _show_vote(value: float | None, firing: int | None, gap: str, seeds: int) -> str:
    if firing is None:
        return words.number(value)
    return f"{words.number(value)} ({firing}/{seeds}{', ' if gap else ''}{gap})"


def _show_gain(gain: float | None, low: float | None, high: float | None) -> str:
    if gain is None or low is None:
        return words.points(gain)
    return f"{words.points(gain)} [{words.points(low)}, {words.points(high)}]"


def _show_null(z: float | None, p: float | None) -> str:
    return f"{words.number(z)} ({words.number(p)})"


def _show_verdict(verdict: str) -> str:
    return "baseline" if verdict == "BASELINE" else verdict


def _show_layer_seeds(measured: int, nan: int, seeds: int) -> str:
    return _show_share(measured, seeds) + (f", {nan} not a number" if nan else "")


def _show_share(measured: int, seeds: int) -> str:
    return f"{seeds}" if measured == seeds else f"{measured} of {seeds}"
