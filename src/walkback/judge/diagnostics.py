"""The three detectors: scale stability (D1), reference validity (D2), depth utility (D3).

Each returns a Reason whose `fires` is True, False or None; None is never read as False.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from walkback.core.numerals import limit as limit_of
from walkback.core.numerals import number, points
from walkback.core.stats import Interval, seed_item_interval
from walkback.core.verdict import Reason
from walkback.judge.evidence import Evidence
from walkback.judge.thresholds import Thresholds

READS_TRUE = 0.99  # of a cosine's value: the clamp is not felt yet
ROUNDING = 1e-9  # .36 − .34 is a little less than .02, and a gain of two points all the same
D1_NAME, D2_NAME, D3_NAME = "D1_scale_growth", "D2_ref_validity", "D3_depth_utility"


def judge_scale(runs: Sequence[Evidence], thresholds: Thresholds) -> Reason:
    """D1: does one block blow the residual stream up?"""
    limit = thresholds.growth
    values = [run.number("scale.growth_max@1") for run in runs]
    gaps = [run.gap("scale.growth_max@1") for run in runs]
    vote = _vote([None if v is None else v > limit for v in values], gaps, thresholds.seed_share)
    value, most = _middle(values), limit_of(limit)
    if value is None or vote.fires is None:
        sentence = no_number("The growth of the residual stream", gaps)
    elif vote.fires:
        sentence = f"One block multiplies the residual stream by {number(value)} (limit {most})."
    elif any(v is not None and v > limit for v in values):
        sentence = (
            f"Too few seeds have a block that explodes: the median is {number(value)} (limit {most})."
        )
    else:
        largest = max(v for v in values if v is not None)
        sentence = f"No block multiplies the residual stream by more than {number(largest)} (limit {most})."
    total = _middle([run.number("scale.growth_total@1") for run in runs])
    stem = _middle([_stem_against_init(run) for run in runs])
    if vote.fires is False and total is not None and total > limit:
        sentence += f" But all blocks together multiply it by {number(total)}: growth spread over depth."
    return Reason(
        check="D1",
        name=D1_NAME,
        fires=vote.fires,
        value=value,
        threshold=limit,
        sentence=sentence + vote.words,
        status="inf" if value is not None and math.isinf(value) else vote.status,
        margin=None if value is None else limit - value,
        layer=_layer_of_growth(runs[0]),
        epoch=runs[0].epoch,
        seeds=vote.seeds,
        detail={"per_seed": values, "gaps": gaps, "growth_total": total, "stem_norm_against_init": stem},
    )


def judge_reference(runs: Sequence[Evidence], thresholds: Thresholds, *, literal: bool) -> Reason:
    """D2: is the reference gradient still above what a conventional cosine can see?

    `literal` uses the paper's median mean-reduced ‖g_L‖, which also falls when the net fits its data
    or the batch grows; otherwise the batch- and fit-invariant r/128 decides.
    """
    quantity = "reference.compat@1" if literal else "reference.validity@1"
    limit = thresholds.compat if literal else thresholds.validity
    values, gaps = [run.number(quantity) for run in runs], [run.gap(quantity) for run in runs]
    vote = _vote([None if v is None else v < limit for v in values], gaps, thresholds.seed_share)
    value = _middle(values)
    companions = {
        name: _middle([run.number(f"reference.{name}@1") for run in runs])
        for name in ("validity", "compat", "unit_probe", "float64_relerr")
    }
    by_scale = companions["validity"] is not None and companions["validity"] < thresholds.validity
    cause = "none" if not vote.fires else "scale" if by_scale else "fit or batch size"
    return Reason(
        check="D2",
        name=D2_NAME,
        fires=vote.fires,
        value=value,
        threshold=limit,
        sentence=(
            no_number("The reference gradient at the last state", gaps)
            if value is None or vote.fires is None
            else _reference_sentence(values, limit, vote.fires, cause, companions)
        )
        + vote.words,
        status=vote.status,
        margin=None if value is None else value - limit,
        layer=max(runs[0].measurements.layers(runs[0].epoch), default=None),
        epoch=runs[0].epoch,
        seeds=vote.seeds,
        detail={
            "per_seed": values,
            "gaps": gaps,
            "cause": cause,
            **companions,
            "recoverable": _recoverable(companions),
        },
    )


def judge_depth(
    runs: Sequence[Evidence],
    baselines: Sequence[Evidence | None],
    thresholds: Thresholds,
    *,
    intervals: bool = True,
) -> Reason:
    """D3: do the trained blocks beat frozen random ones by the margin, over seeds and items?

    Without `intervals` the point decides, as it does for one seed; it saves most of the time.
    """
    limit = thresholds.depth_gain
    gain = _depth_gain(runs, baselines, thresholds, intervals)
    fires, status = _depth_decision(gain, limit)
    return Reason(
        check="D3",
        name=D3_NAME,
        fires=fires,
        value=gain.estimate,
        threshold=limit,
        sentence=_depth_sentence(gain, limit, fires),
        status=status,
        interval=gain.interval,
        margin=None if gain.estimate is None else gain.estimate - limit,
        epoch=runs[0].epoch,
        seeds=f"{gain.seeds}" if gain.seeds else "",
        detail={"how": gain.how, "accuracy": gain.accuracy, "baseline_accuracy": gain.baseline},
    )


@dataclass(frozen=True)
class _Vote:
    fires: bool | None
    status: str
    seeds: str
    words: str


def _vote(fired: Sequence[bool | None], gaps: Sequence[str], share: float) -> _Vote:
    """Over seeds a detector fires if at least `share` of them fire; seeds without a number stay unknown."""
    yes, unknown, count = fired.count(True), fired.count(None), len(fired)
    needed = share * count - 1e-9
    if yes >= needed:
        fires: bool | None = True
    else:
        fires = None if yes + unknown >= needed else False
    status = "ok" if fires is not None else "missing"
    words = f" Fires on {yes} of {count} seeds." if count > 1 else ""
    if count > 1:
        words += "".join(f" {gap.capitalize()} on {n} of them." for gap, n in Counter(gaps).items() if gap)
    return _Vote(fires, status, f"{yes}/{count}", words)


@dataclass(frozen=True)
class _Gain:
    """Accuracy over the baseline's. `how` says in words what the interval covers."""

    estimate: float | None
    interval: tuple[float, float] | None
    seeds: int
    how: str
    accuracy: float | None = None
    baseline: float | None = None


def _depth_gain(
    runs: Sequence[Evidence],
    baselines: Sequence[Evidence | None],
    thresholds: Thresholds,
    intervals: bool,
) -> _Gain:
    if runs[0].role == "baseline":
        return _Gain(None, None, 0, "a baseline is not compared with itself")
    pairs = [(r, b) for r, b in zip(runs, baselines, strict=True) if b is not None]
    accuracies = [r.accuracy for r in runs if r.accuracy is not None]
    accuracy = float(np.mean(accuracies)) if accuracies else None
    if len(pairs) < len(runs):
        missing = len(runs) - len(pairs)
        how = "no frozen baseline" if not pairs else f"{missing} of {len(runs)} seeds have no baseline"
        return _Gain(None, None, 0, how, accuracy)
    if problem := _unmatched(pairs):
        return _Gain(None, None, 0, problem, accuracy)
    known = [
        (r.accuracy, b.accuracy) for r, b in pairs if r.accuracy is not None and b.accuracy is not None
    ]
    if len(known) < len(pairs):
        return _Gain(None, None, 0, "an accuracy is missing", accuracy)
    baseline = float(np.mean([b for _, b in known]))
    interval, how = _depth_interval(pairs, thresholds) if intervals else (None, "a point estimate")
    how += _other_seeds(pairs)
    estimate = float(np.mean([a - b for a, b in known]))
    ends = None if interval is None else (interval.low, interval.high)
    return _Gain(estimate, ends, len(pairs), how, accuracy, baseline)


def _other_seeds(pairs: Sequence[tuple[Evidence, Evidence]]) -> str:
    """A baseline of another seed began elsewhere and saw other batches; nothing where the seeds agree."""
    unlike = [(r.seed, b.seed) for r, b in pairs if None not in (r.seed, b.seed) and r.seed != b.seed]
    if not unlike:
        return ""
    run, baseline = unlike[0]
    told = f"seed {run} against a baseline of seed {baseline}"
    return f"; not paired by seed: {told}" + (f" and {len(unlike) - 1} more" if len(unlike) > 1 else "")


def _depth_interval(
    pairs: Sequence[tuple[Evidence, Evidence]], thresholds: Thresholds
) -> tuple[Interval | None, str]:
    rows = [_paired(run, baseline) for run, baseline in pairs]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows) or len({len(row) for row in known}) > 1:
        return _seed_interval(pairs, thresholds.alpha)
    stacked, sources = np.stack(known), pairs[0][0].sources
    units = stacked.shape[1] if sources is None else len(np.unique(sources))
    if units < 2 and len(pairs) >= 3:
        interval, _ = _seed_interval(pairs, thresholds.alpha)
        return interval, f"interval over {len(pairs)} seeds alone: one test item has no spread"
    if units < 2:
        return None, "a point estimate: one test item has no spread"
    if len(pairs) < 3:
        pooled = stacked.mean(axis=0, keepdims=True)  # two seeds say next to nothing about their spread
        interval = seed_item_interval(pooled, thresholds.alpha, sources)
        return interval, f"{len(pairs)} seed(s): the point decides, the interval covers items only"
    interval = seed_item_interval(stacked, thresholds.alpha, sources)
    return interval, f"interval over {len(pairs)} seeds and {stacked.shape[1]} test items"


def _seed_interval(pairs: Sequence[tuple[Evidence, Evidence]], alpha: float) -> tuple[Interval | None, str]:
    """Student's, over the gains of the seeds: what is left where their items are not known."""
    from scipy.stats import t

    gains = [r.accuracy - b.accuracy for r, b in pairs if r.accuracy is not None and b.accuracy is not None]
    if len(gains) < 3:
        return None, f"a point estimate: the items are not paired{_known_from(pairs[0][0])}"
    mean, se = float(np.mean(gains)), float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    reach = float(t.ppf(1 - alpha, len(gains) - 1)) * se
    how = f"interval over {len(gains)} seeds alone: the items are not paired"
    return Interval(mean, mean - reach, mean + reach, se, len(gains) - 1, alpha), how


def _known_from(run: Evidence) -> str:
    """How well the items at hand tell the run's own accuracy: ten of them say next to nothing."""
    from scipy.stats import binomtest

    if run.correct is None or not len(run.correct):
        return ""
    count = len(run.correct)
    low, high = binomtest(int(run.correct.sum()), count).proportion_ci(method="wilson")
    items = "1 item puts" if count == 1 else f"{count} items put"
    return f", and {items} the accuracy between {100 * low:.1f} and {100 * high:.1f} %"


def _paired(run: Evidence, baseline: Evidence) -> np.ndarray | None:
    if run.correct is None or baseline.correct is None or run.split != baseline.split:
        return None
    if len(run.correct) != len(baseline.correct):
        return None
    return run.correct.astype(np.float64) - baseline.correct.astype(np.float64)


def _unmatched(pairs: Sequence[tuple[Evidence, Evidence]]) -> str:
    """Why a baseline does not answer the question, or nothing."""
    for run, baseline in pairs:
        if rate_open := run.rate_open or baseline.rate_open:
            return rate_open
        if baseline.role != "baseline":
            return f"{baseline.label} is not a frozen baseline"
        if run.trained and run.epoch == 0:
            return "nothing was trained yet"
        if baseline.status.get("state") == "diverged":
            return "the baseline diverged"
        if not run.trained and baseline.status.get("state") == "running":
            return f"the baseline is still training (epoch {baseline.epoch})"
        if run.trained and baseline.trained and run.epoch != baseline.epoch:
            return f"the baseline was measured at epoch {baseline.epoch}, the run at epoch {run.epoch}"
        if run.fingerprint and baseline.fingerprint and run.fingerprint != baseline.fingerprint:
            return f"the baseline is another net ({baseline.net}, not {run.net})"
        if run.split and baseline.split and run.split != baseline.split:
            return "the baseline was tested on other items"
        if run.blocks and run.blocks == baseline.blocks:
            return "the baseline's blocks are those of the audited model, weight for weight"
        captured = all(each.status.get("state") == "captured" for each in (run, baseline))
        if captured and bool(run.split) != bool(baseline.split):
            return "one accuracy was measured on a batch, the other was given"
        if run.trained_on and baseline.trained_on and run.trained_on != baseline.trained_on:
            return "the baseline was trained on other data"
    return ""


def _depth_decision(gain: _Gain, limit: float) -> tuple[bool | None, str]:
    if gain.estimate is None:
        return None, "missing"
    least = limit - ROUNDING
    if gain.interval is None or gain.seeds < 3:
        return gain.estimate < least, "ok"
    low, high = gain.interval
    if high < least:
        return True, "ok"
    return (False, "ok") if low >= least else (None, "open")


def _depth_sentence(gain: _Gain, limit: float, fires: bool | None) -> str:
    if gain.estimate is None:
        return f"Depth utility was not measured: {gain.how}."
    found = f"{points(gain.estimate)} pp over frozen random ones"
    if gain.interval is not None:
        found += f", interval {points(gain.interval[0])} to {points(gain.interval[1])} pp"
    means = {
        True: f"less than the {points(limit)} pp that would show they learned something useful",
        False: f"at least the required {points(limit)} pp",
        None: f"which leaves open whether they reach {points(limit)} pp",
    }[fires]
    return f"Trained blocks gain {found}: {means} ({gain.how})."


def _reference_sentence(
    values: Sequence[float | None],
    limit: float,
    fires: bool,
    cause: str,
    companions: dict[str, float | None],
) -> str:
    value = _middle(values)
    found = f"({number(value)}, limit {limit_of(limit)})"
    if not fires and any(v is not None and v < limit for v in values):
        return f"Too few seeds have a reference gradient that is too small: the median is {found[1:-1]}."
    if not fires:
        return f"The reference gradient is large enough to be measured {found}."
    probe = companions["unit_probe"]
    if probe is not None and probe > READS_TRUE:
        return (
            f"The reference gradient at the last state is within a factor of ten of where a conventional "
            f"cosine is clamped {found}, by {cause}; that still reads {number(probe)} × the truth."
        )
    seen = (
        ""
        if probe is None
        else f" A conventional cosine at the last state reads {number(probe)} × the truth."
    )
    lost = {
        True: " Its direction is intact all the same: float64 gives the same one.",
        False: " Its direction is lost: float64 gives another one.",
        None: "",
    }
    return (
        f"The reference gradient at the last state is too small to be measured by the conventional "
        f"cosine {found}, by {cause}.{seen}{lost[_recoverable(companions)]}"
    )


def no_number(what: str, gaps: Sequence[str]) -> str:
    verbs = {"not measured": "was", "not a number": "is", "not applicable": "is"}
    return f"{what} {' or '.join(f'{verbs[gap]} {gap}' for gap in dict.fromkeys(gaps) if gap)}."


def _recoverable(companions: dict[str, float | None]) -> bool | None:
    """Whether float32 still holds the reference's direction: clamp-invalid but not lost."""
    relerr = companions["float64_relerr"]
    return None if relerr is None else relerr < 1e-2


def _layer_of_growth(run: Evidence) -> int | None:
    growth = {i: run.number("scale.growth@1", i) for i in run.measurements.layers(run.epoch) if i > 0}
    known = {layer: value for layer, value in growth.items() if value is not None}
    return max(known, key=lambda layer: known[layer]) if known else None


def _stem_against_init(run: Evidence) -> float | None:
    now = run.number("scale.state_norm@1", 0)
    first = run.measurements.number("scale.state_norm@1", 0, 0) if run.epoch > 0 else None
    return now / first if now is not None and first else None


def _middle(values: Sequence[float | None]) -> float | None:
    """Median over the seeds that have the number; the vote's words say how many have not."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
