"""MBEEvaluator: the call that mbe-eval 0.1.0 has, with an answer that can be relied on beside its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from walkback.core.errors import BadInput
from walkback.core.verdict import Verdict
from walkback.metrics.audit import MetricAudit
from walkback.metrics.compat import partial_spearman, ranks


@dataclass(frozen=True)
class MBEReport:
    """The fields of mbe-eval 0.1.0, and `verdict`, which is what to quote.

    `is_loss_proxy` is, as there, nothing but `partial_p > alpha`: it calls the absence of evidence a proxy,
    and misses exact ones whose rounding noise correlates. Where `partial_p` is not known (a refused audit,
    or nothing left to correlate) it is None.
    """

    metric_name: str
    baseline_name: str
    absolute_r: float
    absolute_p: float
    partial_r: float
    partial_p: float
    is_loss_proxy: bool | None
    verdict: Verdict


class MBEEvaluator:
    """Evaluates whether a metric says more than a baseline, from three lists of numbers."""

    def __init__(
        self, metric_name: str = "Proposed Metric", baseline_name: str = "Validation Loss"
    ) -> None:
        self.metric_name, self.baseline_name = metric_name, baseline_name

    def evaluate(
        self,
        metric_vals: ArrayLike,
        baseline_vals: ArrayLike,
        target_vals: ArrayLike,
        alpha: float = 0.05,
        output_dir: str = "mbe_reports",
        *,
        quiet: bool = False,
    ) -> MBEReport:
        """Prints a table and writes a figure below `output_dir`, unless `quiet`."""
        import pandas as pd

        given = dict(zip(_NAMES, (metric_vals, baseline_vals, target_vals), strict=True))
        columns = {name: _column(name, values) for name, values in given.items()}
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{size} of the {name}" for name, size in sizes.items())
            raise BadInput(f"The three lists differ in length: {told}.")
        frame = pd.DataFrame(columns)
        verdict = MetricAudit(frame, "metric", "target", "baseline", alpha=alpha).run()
        report = self._report(columns, verdict, alpha)
        if not quiet:
            _print(report)
            _draw(columns, report, Path(output_dir))
        return report

    def _report(self, columns: dict[str, Sequence[object]], verdict: Verdict, alpha: float) -> MBEReport:
        found = (math.nan,) * 4
        if verdict.evidence["compat"] is not None:
            metric, baseline, target = (np.asarray(columns[name], float) for name in _NAMES)
            whole = np.isfinite(metric) & np.isfinite(baseline) & np.isfinite(target)
            part = partial_spearman(metric[whole], target[whole], ranks(baseline[whole]).reshape(-1, 1))
            found = (part.raw, part.raw_p, part.partial, part.p)
        proxy = None if math.isnan(found[3]) else found[3] > alpha
        return MBEReport(self.metric_name, self.baseline_name, *found, is_loss_proxy=proxy, verdict=verdict)


_NAMES = ("metric", "baseline", "target")


def _column(name: str, values: ArrayLike) -> Sequence[object]:
    column = np.asarray(values)
    if column.ndim != 1:
        raise BadInput(f"The {name} must be a list of numbers, not of shape {column.shape}.")
    return column.tolist()


def _print(report: MBEReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report.metric_name} given {report.baseline_name}")
    for column in ("", "Spearman", "p"):
        table.add_column(column)
    table.add_row("alone", f"{report.absolute_r:+.3f}", f"{report.absolute_p:.2g}")
    table.add_row(f"given {report.baseline_name}", f"{report.partial_r:+.3f}", f"{report.partial_p:.2g}")
    console = Console()
    console.print(table)
    console.print(f"{report.verdict.verdict}: {report.verdict.claim}.", soft_wrap=True)
    for reason in report.verdict.reasons:
        console.print(f"  {reason.check}: {reason.sentence}", soft_wrap=True, highlight=False)


def _draw(columns: dict[str, Sequence[object]], report: MBEReport, folder: Path) -> None:
    """Metric against target, and the two correlations side by side."""
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.scatter(columns["metric"], columns["target"], s=14, color="#0072b2", alpha=0.7)
    left.set(xlabel=report.metric_name, ylabel="target")
    for place, (r, color) in enumerate([(report.absolute_r, "#0072b2"), (report.partial_r, "#d55e00")]):
        if math.isnan(r):
            right.text(place, 0.02, "not known", ha="center")
        else:
            right.bar(place, abs(r), color=color)
    right.set_xticks([0, 1], ["alone", f"given {report.baseline_name}"])
    right.set(xlim=(-0.6, 1.6), ylim=(0, 1), ylabel="|Spearman|", title=report.verdict.verdict)
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(char if char.isalnum() else "_" for char in report.metric_name).strip("_").lower()
    figure.savefig(folder / f"{name or 'metric'}_mbe_report.png", dpi=150)
