"""The four stages a metric passes before it may claim to predict generalisation; each trains its nets.

1 dual acid test, 2 cross-architecture harness, 3 loss-baseline control on a grid (numbered 4
in the method's first description), 4 initialisation probe. Every net is one row: its design, the whole
metric battery, the early validation loss on two disjoint halves, and the final test accuracy. Rows are
written as nets finish; the same call again goes on where it was stopped and gives the same rows.

What is (ours): the data sets, the sizes of the probes, equal numbers of steps for all nets of a stage, and
that metric, baseline loss and target are read from three sets of samples that have nothing in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from walkback.core.errors import BadInput, UnknownName
from walkback.studies.metric_stages.answers import (
    StageResult,
    acid_summary,
    controlled,
    early_words,
    ending,
    finish,
    head_of,
    missed,
    numbers_of,
    probe_words,
    temporal_curve_of,
)
from walkback.studies.metric_stages.designs import (
    CAPACITY,
    NOISE,
    Design,
    condition_designs,
    demo_designs,
    probe_designs,
)
from walkback.studies.metric_stages.tasks import NETS
from walkback.studies.metric_stages.work import MEASURED, OnProgress, run_designs

PROBE_MARKS = (
    "fim_norm_init",
    "fim_norm_early",
    "fim_norm_final",
)  # read in every probe beside the battery


def acid_test(
    *,
    metric: str = "fim_norm",
    seed: int = 0,
    seeds: int = 5,
    steps: int = 400,
    capacity: Sequence[int] = CAPACITY,
    noise: Sequence[float] = NOISE,
    out: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> StageResult:
    """Stage 1: does the metric order nets by accuracy when data, and when clean labels, run short?

    Spearman of the trained net's metric with its test accuracy in each probe: same sign, and both p < .05.
    When to read it is (ours), and chosen after both moments had been seen: read a fifth of the way through
    training, FIM_norm does not pass on digits. Both answers are in the summary and in its sentence.
    """
    check_metric(metric, *PROBE_MARKS)
    designs = probe_designs("acid-test", "mlp", seed, seeds, steps, steps, capacity, noise)
    frame = run_designs("acid-test", designs, out, on_progress)
    return finish(acid_summary(frame, metric, "acid-test", 1, "dual acid test"), frame, out)


def harness(
    *,
    metric: str = "fim_norm",
    seed: int = 0,
    seeds: int = 3,
    steps: int = 200,
    archs: Sequence[str] = ("cnn", "transformer"),
    capacity: Sequence[int] = CAPACITY,
    noise: Sequence[float] = NOISE,
    out: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> StageResult:
    """Stage 2: the same two probes on other architectures, a CNN with BatchNorm and a small transformer."""
    check_metric(metric, *PROBE_MARKS)
    designs: list[Design] = []
    for arch in archs:
        if arch not in NETS:
            raise UnknownName(f"Unknown architecture {arch!r}.", f"Available: {', '.join(NETS)}.")
        designs += probe_designs("harness", arch, seed, seeds, steps, steps, capacity, noise)
    designs = [{**design, "run_id": i} for i, design in enumerate(designs)]
    frame = run_designs("harness", designs, out, on_progress)
    groups = {arch: acid_summary(frame[frame.arch == arch], metric, "harness", 2, arch) for arch in archs}
    signs = {group["sign"] for group in groups.values()}
    open_ = any(group["passes"] is None for group in groups.values())
    passes = None if open_ else all(group["passes"] for group in groups.values()) and len(signs) == 1
    lacking = [f"{arch}: {' and '.join(said)}" for arch, group in groups.items() if (said := missed(group))]
    lacking += ["the signs differ between architectures"] * (len(signs) > 1)
    head = head_of("harness", 2, "cross-architecture harness", metric, frame)
    summary = {
        **head,
        "archs": {arch: {k: group[k] for k in group if k not in head} for arch, group in groups.items()},
        "passes": passes,
        "sentence": "Stage 2, cross-architecture harness: "
        + " ".join(f"{arch}: {probe_words(group)}{early_words(group)}." for arch, group in groups.items())
        + f" {ending(passes, 'The acid test holds, with one sign, in every architecture.', lacking)}",
    }
    return finish(summary, frame, out)


def grid(
    *,
    metric: str = "fim_norm",
    seed: int = 0,
    nets: int = 20,
    epochs: int = 100,
    measured_at: int = 20,
    design: str = "demo",
    out: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> StageResult:
    """Stage 3 (or 4): does the metric say more than the loss of the same moment, and the reverse?

    `design="demo"` draws lr from U(1e-4, 1e-2) and wd from U(1e-5, 1e-3); `"conditions"` trains the six
    conditions of the published 30 runs, with `nets` rounded down to whole sets of six.
    """
    check_metric(metric)
    if not 0 < measured_at <= epochs:
        raise BadInput(f"measured_at must lie in 1…{epochs} epochs, not {measured_at}.")
    makers = {"demo": demo_designs, "conditions": condition_designs}
    if design not in makers:
        raise UnknownName(f"Unknown grid {design!r}.", f"Available: {', '.join(makers)}.")
    frame = run_designs("grid", makers[design](seed, nets, epochs, measured_at), out, on_progress)
    values, loss, target = (frame[name].to_numpy(float) for name in (metric, "val_loss", "final_acc"))
    there, back = controlled(values, target, loss), controlled(loss, target, values)
    curve = temporal_curve_of(frame) if metric == "fim_norm" else []
    summary = {
        **head_of("grid", 3, "loss-baseline control", metric, frame),
        "page_number": 4,
        "design": design,
        "metric_given_loss": numbers_of(there),
        "loss_given_metric": numbers_of(back),
        "curve": curve,
        "sentence": f"Stage 3 (stage 4 in its first description), loss-baseline control: {metric} "
        f"has r {there.raw:+.3f} with final accuracy, {there.partial:+.3f} (p {there.p:.2g}) given the "
        f"validation loss of the same moment; the loss has {back.raw:+.3f}, {back.partial:+.3f} "
        f"(p {back.p:.2g}) given {metric}; {there.n} nets.",
    }
    return finish(summary, frame, out)


def init_probe(
    *,
    metric: str = "fim_norm",
    seed: int = 0,
    seeds: int = 5,
    steps: int = 400,
    capacity: Sequence[int] = CAPACITY,
    noise: Sequence[float] = NOISE,
    out: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> StageResult:
    """Stage 4: is it there before any training? The metric at initialisation against the final accuracy."""
    check_metric(metric, *PROBE_MARKS)
    designs = probe_designs("init-probe", "mlp", seed, seeds, steps, 0, capacity, noise)
    frame = run_designs("init-probe", designs, out, on_progress)
    return finish(acid_summary(frame, metric, "init-probe", 4, "initialisation probe"), frame, out)


def check_metric(metric: str, *extra: str) -> None:
    known = (*MEASURED, "fim_norm_train", *extra)
    if metric not in known:
        raise UnknownName(f"Unknown metric {metric!r}.", f"Available: {', '.join(known)}.")
