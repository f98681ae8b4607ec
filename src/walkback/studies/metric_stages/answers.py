"""What a stage says about its nets: correlations, whether they pass, and the sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from walkback.core.canonical import plain
from walkback.metrics.compat import Partial, partial_spearman, ranks
from walkback.store.files import write_atomic
from walkback.studies.metric_stages.tasks import METRIC_N

PUBLISHED: dict[str, dict[str, float]] = {
    "acid-test": {"capacity": -0.937, "label_noise": -0.770},
    "grid": {"metric_given_loss": 0.216, "metric_given_loss_p": 0.261, "loss_given_metric": -0.900},
    "init-probe": {"capacity": -0.305, "label_noise": 0.377},
}


@dataclass(frozen=True)
class StageResult:
    """`frame` has one row per net, ready for `walkback metric audit`; `summary` is the stage's answer."""

    stage: str
    frame: Any
    summary: dict[str, Any]

    @property
    def sentence(self) -> str:
        return str(self.summary["sentence"])

    def to_dict(self) -> dict[str, Any]:
        return self.summary

    def write(self, out: Path) -> Path:
        """`<stage>.csv` and `<stage>.json` in the folder; the path of the first."""
        table = out / f"{self.stage}.csv"
        write_atomic(table, self.frame.to_csv(index=False).encode())
        text = json.dumps(plain(self.summary), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomic(out / f"{self.stage}.json", (text + "\n").encode())
        return table


def finish(summary: dict[str, Any], frame: Any, out: Path | None) -> StageResult:
    result = StageResult(summary["stage"], frame, summary)
    if out is not None:
        result.write(out)
    return result


def head_of(stage: str, number: int, title: str, metric: str, frame: Any) -> dict[str, Any]:
    head = {"stage": stage, "number": number, "title": title, "metric": metric, "nets": len(frame)}
    return {**head, "metric_n": METRIC_N, "published": PUBLISHED.get(stage, {})}


def acid_summary(frame: Any, metric: str, stage: str, number: int, title: str) -> dict[str, Any]:
    answer = _acid_answer(frame, metric)
    early: dict[str, Any] = {}
    if metric == "fim_norm" and stage != "init-probe":
        early = {"early": _acid_answer(frame, "fim_norm_early")}
    words = f"Stage {number}, {title}: {probe_words(answer)}{early_words(early)}. "
    words += ending(answer["passes"], "Same sign in both, and both p < .05.", missed(answer))
    return {**head_of(stage, number, title, metric, frame), **answer, **early, "sentence": words}


def _acid_answer(frame: Any, metric: str) -> dict[str, Any]:
    probes = {}
    for probe in ("capacity", "label_noise"):
        rows = frame[frame.probe == probe]
        values, target = (rows[name].to_numpy(float) for name in (metric, "final_acc"))
        known = np.isfinite(values) & np.isfinite(target)
        found = partial_spearman(values[known], target[known], None)
        probes[probe] = {"r": found.raw, "p": found.raw_p, "n": found.n, "missing": int((~known).sum())}
    return {"probes": probes, "sign": _common_sign(probes), "passes": _passes(probes)}


def _common_sign(probes: Mapping[str, Mapping[str, float]]) -> int:
    """−1 or 1 where both correlations have it; 0 where they differ or are not known."""
    signs = {float(np.sign(probe["r"])) for probe in probes.values()}
    return int(signs.pop()) if len(signs) == 1 and not any(map(math.isnan, signs)) else 0


def _passes(probes: Mapping[str, Mapping[str, float]]) -> bool | None:
    """None where it cannot be told: a net without a metric is not left out on the way to a pass."""
    if any(math.isnan(probe["p"]) or probe["missing"] for probe in probes.values()):
        return None
    return _common_sign(probes) != 0 and max(probe["p"] for probe in probes.values()) < 0.05


def probe_words(summary: Mapping[str, Any]) -> str:
    named = {"capacity": "training rows", "label_noise": "label noise"}
    probes = summary["probes"]
    return ", ".join(f"{named[k]} r {v['r']:+.3f} (p {v['p']:.2g}, n={v['n']})" for k, v in probes.items())


def early_words(summary: Mapping[str, Any]) -> str:
    """Said wherever it was read: an answer that holds at one moment only is not hidden by the other."""
    if "early" not in summary:
        return ""
    return f"; a fifth of the way through training: {probe_words(summary['early'])}"


def ending(passes: bool | None, held: str, lacking: Sequence[str]) -> str:
    """What was held, or which conditions were missed."""
    if passes is None:
        return "It cannot be told: the metric or the accuracy of a net is missing, or does not vary."
    return held if passes else f"Not passed: {'; '.join(lacking)}."


def missed(summary: Mapping[str, Any]) -> list[str]:
    """Which conditions of the acid test two probes miss."""
    probes = list(summary["probes"].values())
    signs = ["the signs differ"] * (len({probe["r"] > 0 for probe in probes}) > 1)
    return signs + [f"p {probe['p']:.2g} is not below .05" for probe in probes if not probe["p"] < 0.05]


def controlled(values: np.ndarray, target: np.ndarray, control: np.ndarray) -> Partial:
    known = np.isfinite(values) & np.isfinite(target) & np.isfinite(control)
    return partial_spearman(values[known], target[known], ranks(control[known]))


def numbers_of(found: Partial) -> dict[str, Any]:
    keys = ("raw", "raw_p", "partial", "p", "n", "k")
    return {**{key: getattr(found, key) for key in keys}, "class": found.kind}


def temporal_curve_of(frame: Any) -> list[dict[str, Any]]:
    """The metric at t given the loss at t, for every moment at which both were read."""
    target, found = frame["final_acc"].to_numpy(float), []
    for name in (c.removeprefix("fim_norm_") for c in frame if c.startswith("fim_norm_ep")):
        values, loss = (frame[f"{c}_{name}"].to_numpy(float) for c in ("fim_norm", "val_loss"))
        there, back = controlled(values, target, loss), controlled(loss, target, values)
        found.append({"epoch": int(name[2:]), "metric": numbers_of(there), "loss": numbers_of(back)})
    return found
