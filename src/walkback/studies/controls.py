"""`controls`: the FA paper's sixth validation and its Table 2. What does feedback drawn anew give?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from walkback.report import words
from walkback.report.answer import (
    CEILING,
    CLAMPED,
    EXACT,
    NULL_P,
    REFERENCE,
    RHO,
    STATE,
    Answer,
    Line,
    Measure,
    measured_table,
    of_net,
)
from walkback.report.table import Table
from walkback.studies import five_rule, penalty
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, SHORT_EPOCHS, recipe
from walkback.studies.five_rule import RULE
from walkback.studies.study import Arm, Study

LONG = Arm(("bp", "dfa"), NET, DATA, recipe=recipe(PAPER_EPOCHS), full=(1, PAPER_EPOCHS))
SHORT = replace(penalty.ARM, full=(SHORT_EPOCHS,))
MEASURES = [CLAMPED, EXACT, NULL_P, RHO, CEILING, REFERENCE, STATE]
FRESH = "fresh B, 20 draws"
NULL = [
    Measure(f"{of}, {draws} draws", f"{name}_{kind}", of_net(f"alignment.{name}_{kind}@1"), show)
    for draws, name in ((20, "deep_null20"), (199, "deep_null"))
    for of, kind, show in (("mean", "mean", words.cosine), ("deviation", "sd", words.number))
]
NULL[0] = replace(NULL[0], paper="deep cosine")
ALPHA = 0.05


def tables(answers: Answers) -> list[Table]:
    return [table_2(answers), layers_table(answers), fresh_table(answers)]


def table_2(answers: Answers) -> Table:
    """DFA at its first and last epoch and penalised, with backprop under the same penalty beside it."""
    bp, dfa = answers.of(LONG)
    penalised = answers.of(SHORT, (*penalty.RULES["dfa"][1:], *penalty.RULES["bp"][1:]))
    named = [
        ("dfa, epoch 1", dfa.at(1)),
        ("dfa, converged", dfa),
        *((answer.name, answer) for answer in penalised),
        ("bp, converged", bp),
    ]
    lines = [Line({"rule": name}, answer, name) for name, answer in named]
    caption = (
        "Table 2. Where the credit of the deep layers points, and how large what it is compared with is: "
        "deep cosine and ρ are means over layers 1 … L. ρ is read beside its ceiling, the ρ of the exact "
        "gradient; p is the rank of the deep cosine under 199 draws of fresh feedback (backprop: shuffled "
        "samples), seed by seed, .005 being the least there is. ρ and p are of the first 128 rows."
    )
    return measured_table("table-2", caption, lines, [RULE], MEASURES)


def layers_table(answers: Answers) -> Table:
    """The deep layers one by one: a mean over them can be the first alone."""
    dfa, penalised = answers.one(LONG, "dfa"), answers.of(SHORT, penalty.RULES["dfa"])
    named = [("dfa, epoch 1", dfa.at(1)), ("dfa, converged", dfa)]
    named += [(f"{answer.name}, {SHORT_EPOCHS} epochs", answer) for answer in penalised]
    caption = (
        "Table 2, layer by layer: the exact cosine of every deep layer, of all 512 rows, and its two-sided "
        "rank p under 199 draws of fresh feedback on the first 128, seed by seed; .005 is the least there "
        "is."
    )
    lines = [Line({"rule": name}, answer) for name, answer in named]
    return measured_table("table-2-layers", caption, lines, [RULE], five_rule.BY_LAYER)


def fresh_table(answers: Answers) -> Table:
    """The deep cosine of feedback drawn anew on trained nets: its mean and its spread over draws."""
    dfa, strong = answers.one(LONG, "dfa"), answers.one(SHORT, penalty.RULES["dfa"][-1])
    nets = (("dfa, epoch 1", dfa.at(1)), ("dfa, converged", dfa), (strong.name, strong))
    lines = [Line({"rule": name}, answer, FRESH) for name, answer in nets]
    caption = (
        "Table 2, its null: the deep cosine of feedback that the net was not trained with. Mean and "
        "deviation over draws, each as mean ± deviation over seeds. The paper prints one such row and does "
        "not say on which net it was measured; by the notes of its code it was the penalised one."
    )
    return measured_table("table-2-null", caption, lines, [RULE], NULL)


def outside(answer: Answer, layers: Sequence[int]) -> str:
    """`above fresh feedback in 4 and below it in 2 of 12 readings`: every layer of every seed.

    The rank p is two-sided, so that the side must be told: a credit that points uphill is outside too.
    Empty where the full tier was not measured.
    """
    read = [
        (run.number("alignment.null_p@1", layer), run.number("alignment.null_z@1", layer))
        for run in answer.runs
        for layer in layers
    ]
    known = [(p, z) for p, z in read if p is not None and z is not None]
    if not known:
        return ""
    above, below = (sum(p <= ALPHA and side * z > 0 for p, z in known) for side in (1, -1))
    beneath = f" and below it in {below}" * bool(below)
    return f"above fresh feedback in {above}{beneath} of {len(known)} readings"


STUDY = Study(
    "controls",
    "Is the deep cosine of a trained net more than what feedback drawn anew gives on it?",
    (LONG, SHORT, five_rule.ARM),
    ours="199 draws beside the paper's 20; backprop under each penalty",
    tables=tables,
)
