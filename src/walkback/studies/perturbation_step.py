"""`perturbation-step`: the control for the step by which ρ is read, which the paper does not state.

No run of its own: nets of other studies, measured along the same directions with either step.
"""

from __future__ import annotations

from dataclasses import replace

from walkback.report import words
from walkback.report.answer import (
    CEILING,
    RHO,
    STATE,
    Answer,
    Line,
    Measure,
    deep_mean,
    measured_table,
    over_seeds,
)
from walkback.report.published import Published
from walkback.report.table import Table
from walkback.studies import penalty, penalty_reduction
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, SHORT_EPOCHS, recipe
from walkback.studies.effect import mean, seeds_of
from walkback.studies.five_rule import RULE
from walkback.studies.point import Point
from walkback.studies.study import Arm, Study

STRONG, AS_SUMMED = (
    penalty_reduction.rule_of(penalty.WEIGHTS[-1], reading)
    for reading in (penalty_reduction.SUMMED, penalty_reduction.ERROR_SUMMED)
)
LONG = Arm(("dfa",), NET, DATA, recipe=recipe(PAPER_EPOCHS), full=(1, PAPER_EPOCHS))
SHORT = Arm((STRONG, AS_SUMMED), NET, DATA, recipe=recipe(SHORT_EPOCHS), full=(SHORT_EPOCHS,))
BASELINES = tuple(
    Arm(("frozen",), NET, DATA, recipe=recipe(epochs)) for epochs in (PAPER_EPOCHS, SHORT_EPOCHS)
)

FIXED = Measure("deep ρ, fixed step", "fixed", deep_mean("perturbation.rho_compat@1"), words.cosine)
FIXED_CEILING = Measure(
    "its ceiling", "fixed_ceiling", deep_mean("perturbation.ceiling_compat@1"), words.cosine
)
MOVED = Measure("rows it moves", "moved", deep_mean("perturbation.moved_compat@1"))
LEAST_CEILING = 0.05  # of 128 rows and 32 directions noise alone reads about .016
MEASURES = [RHO, CEILING, FIXED, FIXED_CEILING, MOVED, replace(STATE, paper="")]


def step_table(answers: Answers) -> list[Table]:
    """The nets of the paper's ρ, by a step that grows with ‖h‖ and by one that does not."""
    dfa, (strong, as_summed) = answers.one(LONG, "dfa"), answers.of(SHORT)
    named = [
        ("dfa, epoch 1", "dfa, epoch 1", dfa.at(1)),
        ("dfa, converged", "dfa, converged", dfa),
        (strong.name, strong.name, strong),
        (f"{strong.name}, {penalty_reduction.ERROR_SUMMED}", strong.name, as_summed),
    ]
    lines = [Line({"rule": name}, with_both(answer), row) for name, row, answer in named]
    caption = (
        "ρ of the deep layers by our step, 1e-3 of ‖h‖, and by one of 1e-3 whatever ‖h‖ is, along the same "
        "32 directions of the same 128 rows, in float32. A ceiling is what the exact gradient reads by the "
        "same step; a row whose loss the fixed step does not move reads 0. The last reading of the penalty "
        "is that of the study penalty-reduction."
    )
    return [measured_table("perturbation-step", caption, lines, [RULE], MEASURES)]


def with_both(answer: Answer) -> Answer:
    """The seeds that were measured with either step, so that no two steps are compared over others."""
    seeds = {run.seed for run in answer.runs if FIXED.read(run) is not None}
    return answer.of_seeds(seeds) if seeds else answer


def by_fixed_step(point: Point) -> Point:
    """A number of ρ as the fixed step reads it: nothing, where it does not even read the gradient."""
    ceiling = mean(point.answer, FIXED_CEILING)
    lost = ceiling is not None and ceiling < LEAST_CEILING
    void = f"no reading: of the exact gradient the same step reads {words.cosine(ceiling)}" if lost else ""
    return replace(point, measure=FIXED, void=void)


def statement(answer: Answer, paper: Published) -> str:
    """What a fixed step makes of our ρ, and whether that is the paper's."""
    both = with_both(answer)
    fixed, ceiling, usual = (mean(both, measure) for measure in (FIXED, FIXED_CEILING, RHO))
    if fixed is None:
        gap = over_seeds("fixed", both, FIXED.read)["fixed_gap"]
        hint = f" (walkback audit {STUDY.name} decides it)" if "not measured" in gap else ""
        return f"By a fixed step ρ is {gap}{hint}."
    standing = by_fixed_step(Point("", paper, both, FIXED)).standing
    return (
        "By a step of 1e-3 whatever ‖h‖ is, along the same directions, ρ is "
        f"{words.cosine(fixed)} instead of {words.cosine(usual)}, and that of the exact gradient "
        f"{words.cosine(ceiling)} ({seeds_of(both)}): {standing}."
    )


STUDY = Study(
    "perturbation-step",
    "How much of the difference between our ρ and the paper's is the size of the step?",
    (LONG, SHORT, *BASELINES),
    ours="the whole study",
    tables=step_table,
)
