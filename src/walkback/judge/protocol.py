"""From evidence to verdict: three-valued logic over the detectors, and the chain that explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome, Reason, Verdict
from walkback.judge.chain import walk_back
from walkback.judge.credit import judge_credit
from walkback.judge.diagnostics import judge_depth, judge_reference, judge_scale
from walkback.judge.evidence import Evidence, shown_label
from walkback.judge.factorial import Cells, contrasts, stem_blocks, with_contrasts
from walkback.judge.three_valued import every
from walkback.judge.thresholds import Thresholds

LOGICS = ("artifact", "paper")
DISCLAIMER = (
    "Passing certifies nothing: it means that none of the three detectors found a reason to walk the "
    "claim back on this net, this data and these seeds."
)


def judge(
    runs: Sequence[Evidence],
    baselines: Sequence[Evidence | None] | None = None,
    *,
    logic: str = "artifact",
    thresholds: Thresholds | None = None,
    cells: Cells | None = None,
    unmeasured: Sequence[int | None] = (),
) -> Verdict:
    """One verdict on one rule from its seeds. `baselines[i]` is the frozen sibling of `runs[i]`.

    `cells` are the other runs of the stem × blocks table, where there are any; `unmeasured` the seeds that
    have started and show nothing yet.
    """
    _check_question(runs, baselines, logic)
    thresholds = thresholds or Thresholds()
    paired = list(baselines) if baselines is not None else [None] * len(runs)
    depth = with_contrasts(
        judge_depth(runs, paired, thresholds), contrasts(runs[0].label, cells or {}, thresholds)
    )
    reasons = (
        judge_scale(runs, thresholds),
        judge_reference(runs, thresholds, literal=logic == "paper"),
        _not_yet(depth) if _unfinished(runs) == "still training" else depth,
    )
    label = shown_label(runs, thresholds.residual)
    claim = f"{label} assigns credit to deep layers"
    evidence = {
        **_summary(runs, label),
        "C_credit_direction": judge_credit(runs),
        "stem_blocks": stem_blocks(runs[0].label, cells or {}, thresholds),
        "thresholds": asdict(thresholds),
    }
    if runs[0].role == "baseline":
        words = "BASELINE"
        note = "Blocks that are not trained assign no credit: a baseline gets no verdict."
        return Verdict(
            Outcome.SKIPPED, words, claim, logic, reasons, (), layer_table(runs), (note,), evidence
        )
    outcome, words = decide(reasons, logic)
    unfinished = _unfinished(runs) or ("still training" if unmeasured else "")
    early = reasons[2].status == "early" and outcome is not Outcome.FAIL
    if unfinished and (outcome is Outcome.PASS or early):
        outcome, words = Outcome.INCOMPLETE, f"INCOMPLETE({unfinished})"
    chain = walk_back(label, runs, reasons, outcome)
    waiting = (f"Seed {seed} has started and was not measured yet." for seed in unmeasured)
    notes = (*waiting, *_notes(runs, paired, thresholds))
    return Verdict(outcome, words, claim, logic, reasons, chain, layer_table(runs), notes, evidence)


def decide(reasons: Sequence[Reason], logic: str) -> tuple[Outcome, str]:
    """FAIL as soon as a failing clause is *known* true; PASS only if every detector is known.

    artifact: (D1 and D2) or D3. paper: D1, D2 and D3 each suffice. A detector that is unknown leaves
    the verdict open even where its clause could no longer fail: missing is never PASS.
    """
    by_check = {reason.check: reason for reason in reasons}
    clauses = (("D1", "D2"), ("D3",)) if logic == "artifact" else (("D1",), ("D2",), ("D3",))
    states = {clause: every(by_check[check].fires for check in clause) for clause in clauses}
    failing = [check for clause, fires in states.items() if fires for check in clause]
    if failing:
        stem = ", stem-dependent" if by_check["D3"].status == "stem-dependent" else ""
        return Outcome.FAIL, f"FAIL({'+'.join(failing)}{stem})" if logic == "artifact" else "walked back"
    unknown = [check for check, reason in by_check.items() if reason.fires is None]
    if not unknown:
        return Outcome.PASS, "PASS" if logic == "artifact" else "trustworthy"
    missing = any(by_check[check].status != "open" for check in unknown)
    outcome = Outcome.INCOMPLETE if missing else Outcome.INCONCLUSIVE
    return outcome, f"{outcome.value}({'+'.join(unknown)})"


def _not_yet(depth: Reason) -> Reason:
    """A gain that is too small while the rule still trains: feedback alignment has one in its first epoch,
    and passes. A scale that has broken is another matter, and counts as soon as it is seen."""
    if not depth.fires:
        return depth
    told = f"{depth.sentence} Training goes on, so it is too early to hold that against the rule."
    return replace(depth, fires=None, status="early", sentence=told)


def _unfinished(runs: Sequence[Evidence]) -> str:
    """Why runs that were seen so far cannot pass: some have not come to their end, and may yet fail."""
    states = [run.status.get("state") for run in runs]
    return "diverged" if "diverged" in states else "still training" if "running" in states else ""


def layer_table(runs: Sequence[Evidence]) -> tuple[Mapping[str, Any], ...]:
    """Per layer: median over the seeds that have a number; else NaN if any was measured, or None.

    n_valid is the least.
    """
    table = []
    for layer in sorted({i for run in runs for i in run.measurements.layers(run.epoch)}):
        row: dict[str, Any] = {"index": layer}
        for key, quantity in _LAYER_COLUMNS.items():
            taken = [v for r in runs if (v := r.value(quantity, layer)) is not None]
            known = [v for v in taken if not math.isnan(v)]
            row[key] = median(known) if known else math.nan if taken else None
        least = [v for r in runs if (v := r.number("alignment.n_valid@1", layer)) is not None]
        row["n_valid"] = int(min(least)) if least else None
        table.append(row)
    return tuple(table)


_LAYER_COLUMNS = {
    "state_norm": "scale.state_norm@1",
    "reference_norm": "reference.norm@1",
    "cosine": "alignment.cosine@1",
    "cosine_compat": "alignment.cosine_compat@1",
}


def _check_question(
    runs: Sequence[Evidence], baselines: Sequence[Evidence | None] | None, logic: str
) -> None:
    if not runs:
        raise BadInput("There is nothing to judge: no runs were given.")
    if logic not in LOGICS:
        raise BadInput(f"Unknown logic {logic!r}.", f"Choose: {', '.join(LOGICS)}.")
    if baselines is not None and len(baselines) != len(runs):
        raise BadInput(f"{len(runs)} runs but {len(baselines)} baselines.")
    if len({run.label for run in runs}) > 1:
        raise BadInput("One verdict speaks about one rule.", "Judge each rule apart.")


def _summary(runs: Sequence[Evidence], label: str) -> dict[str, Any]:
    return {
        "rule": label,
        "net": runs[0].net,
        "seeds": [run.seed for run in runs],
        "epochs": [run.epoch for run in runs],
        "accuracy": [run.accuracy for run in runs],
        "gamma_mean": [run.number("alignment.gamma_mean@1") for run in runs],
        "gamma_concat": [run.number("alignment.gamma_concat@1") for run in runs],
        "deep_cosine": [run.number("alignment.deep_cosine@1") for run in runs],
        "residual": [run.number("settling.residual@1") for run in runs],
    }


def _notes(
    runs: Sequence[Evidence], baselines: Sequence[Evidence | None], thresholds: Thresholds
) -> tuple[str, ...]:
    notes = [
        f"Seed {run.seed} diverged in epoch {run.status.get('epoch')}: {run.status.get('reason')}."
        for run in runs
        if run.status.get("state") == "diverged"
    ]
    notes += [
        f"Seed {run.seed} is still training (epoch {run.epoch})."
        for run in runs
        if run.status.get("state") == "running"
    ]
    moving = sum(run.unsettled(thresholds.residual) for run in runs)
    if moving:
        notes.append(
            f"The states that {runs[0].label} lets settle had not come to rest in {moving} of {len(runs)} "
            f"seeds (residual above {thresholds.residual:g}): its credit is not that of an equilibrium."
        )
    beside = [baseline for baseline in baselines if baseline is not None]
    said = [note for run in (*runs, *beside) for note in run.notes]
    return (*notes, *dict.fromkeys(said), DISCLAIMER)
