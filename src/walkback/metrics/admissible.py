"""The gate before any statistic: what cannot be answered is refused, with its reason."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from walkback.core.errors import BadInput
from walkback.metrics.clusters import too_few
from walkback.metrics.ledger import (
    Duplicates,
    count_duplicates,
    drop_repeats,
    in_one_order,
    is_number,
    one_hot,
    repeated_runs,
    same_runs,
)

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
LEAST_DOF = 5
EXACT = 1e-6  # relative residual below which a metric is a function of what it is compared with
FAR = 10.0  # quartile ranges from the median
SWAPS = 0.02  # and the same in ranks, where rounding may swap neighbours
AS_TEXT = "numbers stored as text: convert them first"


@dataclass(frozen=True)
class Claim:
    """What is audited, by column names. `twin` is a second, independent reading of the baseline."""

    metric: str
    target: str
    baseline: str | None = None
    controls: tuple[str, ...] = ()
    twin: str | None = None
    cluster: str | None = None
    direction: str | None = None

    @property
    def confounders(self) -> tuple[str, ...]:
        """All that the metric must say more than: the baseline and the controls, each once."""
        first = (self.baseline,) if self.baseline else ()
        return tuple(dict.fromkeys((*first, *self.controls)))

    @property
    def predictors(self) -> tuple[str, ...]:
        """What learners predict from: the confounders, and the second reading of the baseline."""
        return tuple(dict.fromkeys((*self.confounders, *((self.twin,) if self.twin else ()))))

    @property
    def measured(self) -> tuple[str, ...]:
        """What a run was measured by: two runs rarely agree in it."""
        return tuple(name for name in (self.metric, self.target, self.baseline, self.twin) if name)

    @property
    def columns(self) -> tuple[str, ...]:
        """All that the claim names. Rows are put in order by these, the metric last: claims that differ in
        it alone see all else in the same order."""
        cluster = (self.cluster,) if self.cluster else ()
        return tuple(dict.fromkeys((self.target, *self.predictors, *cluster, self.metric)))

    @property
    def sentence(self) -> str:
        beyond = ", ".join(self.confounders)
        return f"{self.metric} tells about {self.target}" + (f" beyond {beyond}" if beyond else "")


@dataclass(frozen=True)
class Admitted:
    """Rows that are complete, what was left out, and why the audit must be refused, if it must.

    They are in one order, however the table was sorted; `rows` are their places in it as it was given.
    """

    frame: pd.DataFrame
    rows: NDArray[np.int64]
    dropped: int
    duplicates: Duplicates
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    repeated: int = 0  # rows left out because they repeat another
    runs: NDArray[np.int64] | None = None  # the run of every row, where some are measured several times


def admit(frame: pd.DataFrame, claim: Claim, seed: str | None = "seed") -> Admitted:
    """Check the claim's columns; rows with a gap are left out and counted."""
    _check_names(frame, claim)
    seed = seed if seed in frame.columns else None
    kept = list(dict.fromkeys([*claim.columns, *([seed] if seed else [])]))
    frame = in_one_order(frame.reset_index(drop=True), claim.columns)
    chosen = frame[kept]
    reasons = _types(chosen, claim)
    if reasons:
        return Admitted(chosen, chosen.index.to_numpy(), 0, Duplicates(0, 0), tuple(reasons))
    numeric = [name for name in claim.columns if is_number(chosen[name])]
    finite = np.isfinite(chosen[numeric].to_numpy(float)).all(axis=1)
    complete = chosen[finite & chosen[list(claim.columns)].notna().all(axis=1).to_numpy()]
    dropped = len(chosen) - len(complete)
    duplicates = count_duplicates(complete, claim.metric, claim.target, claim.controls, seed)
    repeated = repeated_runs(frame.loc[complete.index], claim.measured)
    once = drop_repeats(complete[~repeated], claim.columns, claim.measured)
    rows, warnings = once.index.to_numpy(), _warnings(dropped, duplicates, len(complete) - len(once))
    warnings += _text_controls(once, claim)
    once = once.reset_index(drop=True)
    refusals = _sizes(once, claim) or _designs(once, claim) or _leaks(once, claim)
    left_out = len(complete) - len(once)
    runs = None if refusals else same_runs(once, [claim.target, *claim.predictors])
    if runs is not None:
        warnings.append(
            f"{len(once)} rows are {runs.max() + 1} runs: the others equal one of these in all but "
            f"{claim.metric}. Measuring a run again makes no new run: "
            + ("name the run as the cluster." if claim.cluster else "each run counts as one cluster.")
        )
    return Admitted(once, rows, dropped, duplicates, tuple(refusals), tuple(warnings), left_out, runs)


def _check_names(frame: pd.DataFrame, claim: Claim) -> None:
    for role in ("metric", "target", "baseline", "twin", "cluster"):
        if getattr(claim, role) == "":
            raise BadInput(f"The name of the {role} is empty.", "Name a column, or leave it out.")
    missing = [name for name in claim.columns if name not in frame.columns]
    if missing:
        raise BadInput(
            f"There is no column {missing[0]!r}.", f"There are: {', '.join(map(str, frame.columns))}."
        )
    twice = [name for name in claim.columns if list(frame.columns).count(name) > 1]
    if twice:
        raise BadInput(f"The table has more than one column {twice[0]!r}.")
    if claim.direction not in (None, "positive", "negative"):
        raise BadInput(f"The expected direction is 'positive' or 'negative', not {claim.direction!r}.")


def _types(frame: pd.DataFrame, claim: Claim) -> list[str]:
    found = []
    for name in dict.fromkeys(claim.measured):
        if not is_number(frame[name]):
            found.append(f"{name} is not a column of numbers (it is {_kind(frame[name])}).")
    if claim.metric == claim.target:
        found.append("The metric is the target itself.")
    if claim.target in claim.confounders:
        found.append(f"The target {claim.target} is among the controls.")
    if claim.twin in (claim.metric, claim.target, *claim.confounders):
        found.append(f"The twin {claim.twin} has another part in the claim: it is no second reading.")
    return found


def _kind(column: pd.Series) -> str:
    import pandas as pd

    if pd.api.types.is_bool_dtype(column):
        return "true and false"
    if pd.api.types.is_complex_dtype(column):
        return "complex numbers"
    if isinstance(column.dtype, pd.CategoricalDtype) or pd.api.types.is_datetime64_any_dtype(column):
        return "categories or dates"
    known = column.dropna()
    if known.map(lambda value: isinstance(value, int) and abs(value) > sys.float_info.max).any():
        return "whole numbers, one of them beyond any float"
    texts = known[known.map(lambda value: isinstance(value, str))]
    parsed = np.isfinite(pd.to_numeric(texts, errors="coerce").to_numpy(float)).sum()
    return AS_TEXT if 2 * parsed > len(known) else "text"


def _sizes(frame: pd.DataFrame, claim: Claim) -> list[str]:
    if frame.empty:
        return ["No row has all of the columns that the claim needs."]
    found = []
    for name in dict.fromkeys(claim.measured):
        if _constant(frame[name].to_numpy(float)):
            found.append(f"{name} is constant: it can tell nothing apart.")
    if not found and claim.twin and claim.baseline:
        first, second = (frame[name].to_numpy(float) for name in (claim.baseline, claim.twin))
        if is_monotone_copy(second, first):
            found.append(f"The twin {claim.twin} is a function of {claim.baseline}: no second reading.")
    return found


def _constant(values: Array) -> bool:
    spread = float(values.max() - values.min())
    return spread <= 1e-12 * max(1e-300, float(np.abs(values).max()))


def _designs(frame: pd.DataFrame, claim: Claim) -> list[str]:
    found, n = [], len(frame)
    for name in claim.confounders:
        if not is_number(frame[name]) and frame[name].nunique() > n / 2:
            found.append(_too_many_levels(frame[name], n))
    if claim.cluster and (few := too_few(frame[claim.cluster].astype(str).nunique())):
        found.append(few)
    if found:
        return found
    width = confounder_matrix(frame, claim.confounders).shape[1]
    if n - 2 - width < LEAST_DOF:
        found.append(
            f"{n} rows and {width} control columns leave {max(0, n - 2 - width)} degrees of freedom; "
            f"at least {LEAST_DOF} are needed."
        )
    return found


def _leaks(frame: pd.DataFrame, claim: Claim) -> list[str]:
    """A target that the confounders give exactly leaves nothing for any metric to tell."""
    source = _source(frame, claim.target, claim.confounders, claim.confounders)
    if source is None:
        return []
    role = "the baseline" if source == claim.baseline else "control"
    return [
        f"The target {claim.target} is an exact function of {role} {source}: it leaves nothing that a "
        "metric could tell. Leave it out, or name another target."
    ]


def _too_many_levels(column: pd.Series, n: int) -> str:
    levels = f"The control {column.name} has {column.nunique()} categories for {n} rows"
    if _kind(column) == AS_TEXT:
        return f"{levels}, most of them {AS_TEXT}."
    return f"{levels}: as one-hot columns it would explain everything. A unique id is not a control."


def _warnings(dropped: int, duplicates: Duplicates, repeated: int) -> list[str]:
    found = []
    if dropped:
        found.append(f"{dropped} rows were left out: a value is missing or not finite.")
    if duplicates.identical or duplicates.same_design:
        found.append(duplicates.sentence + " Pooled files may hold the same runs.")
    if repeated:
        found.append(
            f"Rows that repeat another in all of these columns count once: {repeated} were left out."
        )
    return found


def _text_controls(frame: pd.DataFrame, claim: Claim) -> list[str]:
    """One cell of text makes a column of numbers a column of categories."""
    texts = [name for name in claim.confounders if not is_number(frame[name])]
    return [
        f"The control {name} holds {AS_TEXT.partition(':')[0]}: each value counts as a category."
        for name in texts
        if _kind(frame[name]) == AS_TEXT
    ]


def confounder_matrix(frame: pd.DataFrame, names: Sequence[str]) -> Array:
    """Raw numbers, standardised, and one-hot categories: what learners predict from."""
    columns = [np.empty((len(frame), 0))]
    for name in names:
        if is_number(frame[name]):
            columns.append(_standardised(frame[name].to_numpy(float)).reshape(-1, 1))
        else:
            columns.append(one_hot(frame[name]))
    return np.column_stack(columns)


def _standardised(values: Array) -> Array:
    """Median 0 and a quartile range of 1; what lies beyond ±FAR is drawn in, to less than twice that.

    One run that diverged neither makes the others equal nor lies where a line through them means nothing.
    """
    values = values / max(float(np.abs(values).max()), 1e-300)
    spread = _spread(values)
    scaled = (values - np.median(values)) / (spread if spread > 0 else 1.0)
    size = np.abs(scaled)
    return np.where(size > FAR, np.sign(scaled) * FAR * (2 - FAR / np.maximum(size, FAR)), scaled)


def _spread(values: Array) -> float:
    """The quartile range, or the standard deviation of values of which half are equal."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) or float(values.std())


def exact_source(frame: pd.DataFrame, claim: Claim) -> str | None:
    """What the metric is a function of, to rounding: a monotone one of one column, or linear in all."""
    return _source(frame, claim.metric, (*claim.confounders, claim.target), claim.confounders)


def _source(frame: pd.DataFrame, column: str, single: Sequence[str], all_of: Sequence[str]) -> str | None:
    values = frame[column].to_numpy(float)
    for name in single:
        if is_number(frame[name]) and is_monotone_copy(values, frame[name].to_numpy(float)):
            return name
    matrix = np.column_stack([np.ones(len(frame)), confounder_matrix(frame, all_of)])
    values = values / max(float(np.abs(values).max()), 1e-300)
    left = values - matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]
    if all_of and float(np.sqrt((left**2).mean())) <= EXACT * _spread(values):
        return ", ".join(all_of)
    return None


def is_monotone_copy(metric: Array, other: Array) -> bool:
    """Whether the metric is a rising or falling function of `other`, to rounding.

    In its own scale, with huge values drawn in, and in ranks too: a few of them must not hide that the rest
    is something else.
    """
    from scipy.stats import rankdata

    exact = all(_monotone_residual(values, other) <= EXACT for values in (metric, _standardised(metric)))
    return exact and _monotone_residual(rankdata(metric), other) <= SWAPS


def _monotone_residual(values: Array, other: Array) -> float:
    """Relative size of what the best monotone function of `other` leaves of `values`."""
    from scipy.optimize import isotonic_regression

    values = values / max(float(np.abs(values).max()), 1e-300)
    _, level, counts = np.unique(other, return_inverse=True, return_counts=True)
    means = np.bincount(level, values) / counts
    scale = float(((values - values.mean()) ** 2).sum())
    within = float(((values - means[level]) ** 2).sum())
    between = min(
        float((counts * (means - isotonic_regression(means, weights=counts, increasing=up).x) ** 2).sum())
        for up in (True, False)
    )
    return float(((within + between) / scale) ** 0.5)
