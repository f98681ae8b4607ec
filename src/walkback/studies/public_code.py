"""`public-code`: what the FA paper's public code does where the paper is silent, and what comes of it.

Its repositories (fa-eval-protocol, and faeval, in which it was developed) and the notes of their commits
name a block, an index and a length of credits, and what a stem under frozen blocks learns by. None of them
is in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from walkback.report import words
from walkback.report.answer import (
    ACCURACY,
    CLAMPED,
    EXACT,
    GAMMA,
    REFERENCE,
    RHO,
    STATE,
    Answer,
    Line,
    Measure,
    at_layer,
    measured_table,
)
from walkback.report.document import Drawing
from walkback.report.paper_figures import draw_penalty, figure_text
from walkback.report.published import FIRST_FIRING
from walkback.report.table import Column, Table
from walkback.studies import five_rule, offset, penalty, stem, temporal_replay
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, PAPER_EPOCHS, SHORT_EPOCHS, recipe
from walkback.studies.controls import ALPHA, outside
from walkback.studies.five_rule import RULE
from walkback.studies.perturbation_step import FIXED, FIXED_CEILING
from walkback.studies.study import SEEDS, Arm, Study

NET = "near-identity"
INDEX = "offset(reuse)"
OURS, BY_SAMPLE, BY_BATCH = READINGS = ("ours", "public code, by sample", "public code, by batch")
LENGTHS = {BY_SAMPLE: "normalise", BY_BATCH: "normalise(batch)"}
CREDITS = {reading: f"dfa+{INDEX}+{length}" for reading, length in LENGTHS.items()}
STEMS = {reading: f"frozen(stem=dfa+{length})" for reading, length in LENGTHS.items()}
PENALTIES = dict(zip((offset.WEAK, offset.STRONG), penalty.WEIGHTS, strict=True))

STEPS = {
    BY_SAMPLE: {
        "the block": "dfa",
        "the block and the index": f"dfa+{INDEX}",
        "the block and the length, by sample": f"dfa+{LENGTHS[BY_SAMPLE]}",
        "all three, by sample": CREDITS[BY_SAMPLE],
    },
    BY_BATCH: {"all three, by batch": CREDITS[BY_BATCH]},
}
PENALISED_BP = penalty.RULES["bp"][-1]


def _arms(
    rules: Mapping[str, Sequence[str]], epochs: int, alike: Sequence[str] = (), full: tuple[int, ...] = ()
) -> dict[str, Arm]:
    """An arm for each reading; by batch, of one seed, as a control. `alike` are rules without a credit
    whose length could be read in two ways."""
    both = {BY_SAMPLE: (*alike, *rules[BY_SAMPLE]), BY_BATCH: tuple(rules[BY_BATCH])}
    seeds = {BY_SAMPLE: SEEDS, BY_BATCH: SEEDS[:1]}
    return {
        reading: Arm(own, NET, DATA, seeds=seeds[reading], recipe=recipe(epochs), full=full)
        for reading, own in both.items()
    }


LONG = _arms({by: [rule] for by, rule in STEMS.items()}, PAPER_EPOCHS, alike=("bp", "frozen"))
DFA = _arms({by: [rule] for by, rule in CREDITS.items()}, PAPER_EPOCHS, full=(1, PAPER_EPOCHS))
PENALISED = _arms(
    {by: [f"{rule}+penalty({w})" for w in reversed(penalty.WEIGHTS)] for by, rule in CREDITS.items()},
    SHORT_EPOCHS,
    full=(SHORT_EPOCHS,),
)
BASELINES = _arms({by: [rule] for by, rule in STEMS.items()}, SHORT_EPOCHS, alike=("frozen",))
ONE_BY_ONE = _arms(
    {by: list(steps.values()) for by, steps in STEPS.items()}, SHORT_EPOCHS, alike=("bp", PENALISED_BP)
)
ROWS = ("bp", "frozen", offset.FIRST, offset.LAST, *PENALTIES)
PROFILED = 42  # the seed of the net in the code's template

# The same training, diagnosed by the credits that trained: of one seed, to tell an index from a direction.
AS_USED = "dfa+offset(use)+normalise"
USED = Arm(
    (AS_USED, *(f"{AS_USED}+penalty({w})" for w in reversed(penalty.WEIGHTS)), "frozen"),
    NET,
    DATA,
    seeds=SEEDS[:1],
    recipe=recipe(SHORT_EPOCHS),
    full=(SHORT_EPOCHS,),
)


def readings_of(row: str) -> dict[str, str]:
    """What a row is read as, by what it is called; backprop has no credit to give a length."""
    return {OURS: OURS, "public code": BY_SAMPLE} if row == "bp" else {name: name for name in READINGS}


def read_as(answers: Answers, row: str, reading: str) -> Answer:
    """The runs that stand beside a row of the paper: the headline's, or those of its public code."""
    if reading == OURS:
        long = row in ("bp", "frozen", "dfa")
        return answers.one(five_rule.ARM, row) if long else offset.read_as(answers, row, offset.OWN)
    if row == "bp":  # of either
        return answers.one(LONG[BY_SAMPLE], row)
    if row == "frozen":
        return answers.one(LONG[reading], STEMS[reading])
    if row in PENALTIES:
        return answers.one(PENALISED[reading], f"{CREDITS[reading]}+penalty({PENALTIES[row]})")
    found = answers.one(DFA[reading], CREDITS[reading])
    return found.at(1) if row == offset.FIRST else found


def tables(answers: Answers) -> list[Table]:
    makers = (
        rules_table,
        profile_table,
        nets_table,
        layers_table,
        used_table,
        firing_table,
        steps_table,
    )
    return [make(answers) for make in makers]


STEM = Measure("‖h_0‖", "stem", at_layer("scale.state_norm@1", 0))
READ = Column("as in", ("reading",), numeric=False)


def rules_table(answers: Answers) -> Table:
    """Table 1's backprop, DFA and frozen blocks, as ours are and as those of the public code are."""
    named = [
        (row, told, read_as(answers, row, reading))
        for row in ("bp", "dfa", "frozen")
        for told, reading in readings_of(row).items()
    ]
    named.append(("frozen", "public code, stem by backprop", answers.one(LONG[BY_SAMPLE], "frozen")))
    lines = [
        Line({"rule": row, "reading": told, **five_rule.judged(answer)}, answer, row)
        for row, told, answer in named
    ]
    caption = (
        "Table 1 as the paper's public code has it. Its block has no expansion and begins with small "
        "weights; the frozen blocks that its DFA is compared with have a stem that learned by DFA. Its "
        "credits are rms-normalised; its notes do not say whether each sample is given one length, or each "
        "batch. Rules of the public code are judged against the last row, ours against the row frozen, "
        f"ours: both have all else trained by backprop. {penalty.INTERVAL}"
    )
    measures = [ACCURACY, GAMMA, STATE, REFERENCE, five_rule.LAYER_0, five_rule.DEEP]
    return measured_table("public-code-rules", caption, lines, (RULE, READ), measures, five_rule.JUDGED)


def profile_table(answers: Answers) -> Table:
    """Whether the net is theirs: what a trained stream looks like from the stem to the head."""
    lines = [
        Line({"rule": "bp", "reading": told}, replace(answer.of_seeds({PROFILED}), planned=1), "bp")
        for told, reading in readings_of("bp").items()
        for answer in [read_as(answers, "bp", reading)]
    ]
    measures = [
        Measure(
            f"‖h_{n}‖", f"state_{n}", at_layer("scale.state_norm@1", n), paper=f"state norm of layer {n}"
        )
        for n in range(five_rule.DEPTH + 1)
    ]
    caption = (
        f"The stream of a net that backprop trained, layer by layer, seed {PROFILED}, beside the one that "
        "the public code's template for reports shows."
    )
    return measured_table("public-code-profile", caption, lines, (RULE, READ), measures)


def nets_table(answers: Answers) -> Table:
    """Table 2's nets and the weak penalty, in both."""
    lines = [
        Line(
            {"rule": row, "reading": reading, **offset.depth_of(row, answer), "same_stem": worth},
            answer,
            row,
        )
        for row in ROWS[2:]
        for reading in READINGS
        for answer in [read_as(answers, row, reading)]
        for worth in [_over_the_same_stem(answers, row, answer, reading)]
    ]
    caption = (
        "Table 2 and the weak penalty as the paper's public code has them. Numbers marked (notes) are "
        "from the "
        "notes of its commits; the paper does not print them. The second gain is that over frozen blocks "
        "under a stem that learned by the same credit. No gain is given for the first epoch. ‖h_0‖ is made "
        "by the stem, which no penalty holds. ρ stands by our step and by that of the public code, which "
        "does not grow with ‖h‖; its ceiling is what that reads of the exact gradient. In the readings of "
        "the code the credit that is shown at a layer below the last trained another block "
        "(public-code-used has those that trained)."
    )
    measures = [ACCURACY, STEM, STATE, REFERENCE, CLAMPED, EXACT, RHO, FIXED, FIXED_CEILING]
    tail = (*penalty.DEPTH, Column("gain, same stem (pp)", ("same_stem",), numeric=False))
    return measured_table("public-code-nets", caption, lines, (RULE, READ), measures, tail)


def layers_table(answers: Answers) -> Table:
    lines = [
        Line({"rule": row, "reading": reading}, read_as(answers, row, reading))
        for row in ROWS[2:]
        for reading in READINGS
    ]
    caption = (
        "The same layer by layer: the exact cosine, of all 512 rows, and of the deep layers its two-sided "
        "rank p under 199 draws of fresh feedback on the first 128, seed by seed. In the public code's "
        "readings no block but the last learned by the credit shown at its own output, and layer 4 is read "
        "by the matrix of layer 3."
    )
    cosines = [replace(m, paper=f"exact cosine of layer {n}") for n, m in enumerate(offset.COSINES)]
    measures = (*cosines, *offset.RANKS)
    return measured_table("public-code-layers", caption, lines, (RULE, READ), measures)


def used_table(answers: Answers) -> Table:
    """What is read at a layer beside what its block learned by: is no direction the rule's, or an index?"""
    lines = []
    for weight in ("", *PENALTIES.values()):
        rule = f"dfa{f', λ = {weight}' if weight else ''}"
        for which, answer in zip(
            ("at its number", "that trained"), shown_and_used(answers, weight), strict=True
        ):
            beyond = outside(answer, range(1, five_rule.DEPTH + 1))
            lines.append(Line({"rule": rule, "credit": which, "outside": beyond}, answer))
    caption = (
        f"The same training, by sample, {SHORT_EPOCHS} epochs, diagnosed in two ways: by the credit that "
        "the public code shows at a layer, and by the one that trained the block which makes that layer. "
        "At its number: as it is shown. Exact cosines; beyond fresh feedback: in how many layers the "
        "credit lies above or below 199 draws "
        f"of it, p ≤ {ALPHA:g} two-sided."
    )
    lead = (RULE, Column("credit", ("credit",), numeric=False))
    tail = (Column("beyond fresh feedback", ("outside",), numeric=False),)
    return measured_table("public-code-used", caption, lines, lead, (*offset.COSINES, EXACT), tail)


def shown_and_used(answers: Answers, weight: str) -> tuple[Answer, Answer]:
    """One training, diagnosed by the credit that the code shows at a layer and by the one that trained."""
    added = f"+penalty({weight})" if weight else ""
    shown = answers.one((PENALISED if weight else ONE_BY_ONE)[BY_SAMPLE], f"{CREDITS[BY_SAMPLE]}{added}")
    used = answers.one(USED, f"{AS_USED}{added}")
    return shown.beside(used), used


def firing_table(answers: Answers) -> Table:
    """When the detectors first fire on DFA, beside the epochs that the notes give."""
    rows = []
    for reading in READINGS:
        seeds = DFA[reading].seeds if reading in DFA else five_rule.ARM.seeds
        for found in temporal_replay.firing(answers, read_as(answers, "dfa", reading), seeds):
            noted = {f"{d}_noted": epoch for d, epoch in FIRST_FIRING[found["seed"]].items()}
            rows.append({"reading": reading, **noted, **found})
    columns = [READ, Column("seed", ("seed",))]
    for detector in ("D1", "D2"):
        columns.append(Column(f"{detector} first, notes", (f"{detector}_noted",)))
        columns.append(temporal_replay.first_column(detector))
    caption = (
        "The epoch in which each detector first fires on DFA, seed by seed, beside that in the notes of "
        "the public code. They read D2 off a mean-reduced ‖g_L‖ and do not say over how many rows; ours is "
        "r/128. In brackets, where it is another: the epoch from which it fires to the end."
    )
    fields = tuple(field for column in columns for field in column.fields)
    shown = tuple({field: row[field] for field in fields} for row in rows)
    return Table("public-code-firing", caption, tuple(columns), fields, shown)


def steps_table(answers: Answers) -> Table:
    """What each of block, index and length does, at the short length."""
    same = ONE_BY_ONE[BY_SAMPLE]
    changed = {rule: {"the block": answers.one(same, rule)} for rule in ("bp", PENALISED_BP)}
    of_dfa = {
        change: answers.one(ONE_BY_ONE[reading], rule)
        for reading, steps in STEPS.items()
        for change, rule in steps.items()
    }
    lines = []
    for rule, answer_of in {"dfa": of_dfa, **changed}.items():
        usual = answers.one(penalty.ARM, rule)
        for change, answer in {"nothing": usual, **answer_of}.items():
            label = {"rule": usual.name, "change": change}
            lines.append(Line(label, answer, f"{usual.name}, {SHORT_EPOCHS} epochs"))
    caption = (
        f"One change after the other, {SHORT_EPOCHS} epochs. The block: W1 is square and W2 begins near "
        "zero. The index: a block learns by the credit of the state that it reads. The length: that of "
        "every sample's credit is the same, or that of every batch's. "
        "What stands beside them is from the notes of the code's commits."
    )
    lead = (RULE, Column("taken from the public code", ("change",), numeric=False))
    others = (STATE, REFERENCE, five_rule.LAYER_0, CLAMPED, EXACT)
    measures = [ACCURACY, *(replace(measure, paper="") for measure in others)]
    return measured_table("public-code-steps", caption, lines, lead, measures)


def figures(answers: Answers) -> list[Drawing]:
    """DFA under no penalty and under both, as we read the paper and by sample."""
    ours = answers.of(penalty.ARM, penalty.RULES["dfa"])
    coded = answers.one(ONE_BY_ONE[BY_SAMPLE], CREDITS[BY_SAMPLE])
    penalised = [read_as(answers, row, BY_SAMPLE) for row in PENALTIES]
    rows = {"dfa": ours, "dfa, public code": [coded, *penalised]}
    return [Drawing(figure_text("public-code"), lambda: draw_penalty(rows, ("0", *penalty.WEIGHTS)))]


def _over_the_same_stem(answers: Answers, row: str, answer: Answer, reading: str) -> str:
    """What its blocks gain over frozen ones where both stems learned alike."""
    if row == offset.FIRST:
        return words.MISSING
    short = row in PENALTIES
    if reading == OURS:
        same = answers.one(stem.ARM if short else stem.LONG, stem.DFA_STEM)
    else:
        same = answers.one((BASELINES if short else LONG)[reading], STEMS[reading])
    depth = stem.worth_of(answer, same)
    unknown = "not on the same seeds" if depth is None else "not known"
    return penalty.GAIN.cell(penalty.gain_of(depth, answer.gap or same.gap or unknown))


STUDY = Study(
    "public-code",
    "Which of the paper's numbers come of what its public code does and the paper does not state?",
    (*(arm for arms in (LONG, DFA, PENALISED, BASELINES, ONE_BY_ONE) for arm in arms.values()), USED),
    ours="whether credits are rms-normalised by sample or by batch, which the notes do not say (both were "
    "run); that the penalty is summed over features",
    tables=tables,
    figures=figures,
)
