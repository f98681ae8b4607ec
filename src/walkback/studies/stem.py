"""`stem`: who trained the stem, and who the blocks? The control for what a frozen baseline is."""

from __future__ import annotations

from dataclasses import replace

from walkback.core.verdict import Reason
from walkback.judge.diagnostics import judge_depth
from walkback.judge.thresholds import Thresholds
from walkback.report import words
from walkback.report.answer import ACCURACY, Answer, Line, measured_table, uneven
from walkback.report.table import Column, Table
from walkback.studies import five_rule, penalty, schedule
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, SHORT_EPOCHS, recipe
from walkback.studies.study import Arm, Study

DFA_STEM, BP_STEM = "frozen(stem=dfa)", "mixed(stem=bp,blocks=dfa)"
CELLS = {  # rule: who trained the stem, and who the blocks
    "frozen": ("bp", "frozen"),
    BP_STEM: ("bp", "dfa"),
    DFA_STEM: ("dfa", "frozen"),
    "dfa": ("dfa", "dfa"),
    "shallow": ("nobody", "frozen"),
}

ARM = Arm(("dfa", "frozen", DFA_STEM, BP_STEM, "shallow"), NET, DATA, recipe=recipe(SHORT_EPOCHS))
LONG = Arm((DFA_STEM,), NET, DATA, recipe=recipe(PAPER_EPOCHS))
CONSTANT = replace(LONG, recipe=recipe(PAPER_EPOCHS, "constant"))


def stem_table(answers: Answers) -> list[Table]:
    """The two-by-two table of stem and blocks, and under it the net of which the head alone learns; then
    frozen blocks under either stem as long as the paper's, annealed and not."""
    short = [_line(rule, answer) for rule, answer in zip(CELLS, answers.of(ARM, list(CELLS)), strict=True)]
    long = [
        _line(rule, answers.one(arm, rule))
        for by_bp, by_dfa in ((five_rule.ARM, LONG), (schedule.ARM, CONSTANT))
        for rule, arm in (("frozen", by_bp), (DFA_STEM, by_dfa))
    ]
    lead = [Column(name, (key,), numeric=False) for name, key in _LEAD.items()]
    caption = (
        "Who trained the stem, and who the blocks. Rows of one recipe with one stem differ in the blocks "
        "alone."
    )
    caption += uneven(short)
    lines = [*short, *long]
    own = measured_table("stem", caption, lines, lead, [replace(ACCURACY, paper="")])
    return [own, worth_table(answers)]


def contrasts(answers: Answers) -> list[tuple[str, Answer, Answer]]:
    """Who trained the stem, then trained and frozen blocks on it: at both lengths."""
    by_bp, by_dfa, frozen, frozen_by_dfa = answers.of(ARM, (BP_STEM, "dfa", "frozen", DFA_STEM))
    return [
        ("bp", by_bp, frozen),
        ("dfa", by_dfa, frozen_by_dfa),
        ("dfa", answers.one(five_rule.ARM, "dfa"), answers.one(LONG, DFA_STEM)),
    ]


def worth_of(trained: Answer, frozen: Answer) -> Reason | None:
    """D3 against frozen blocks on the same stem; None unless both are there on the same seeds."""
    by_seed = {run.seed: run for run in frozen.runs}
    if not trained.runs or {run.seed for run in trained.runs} != set(by_seed):
        return None
    return judge_depth(trained.runs, [by_seed[run.seed] for run in trained.runs], Thresholds())


def worth_table(answers: Answers) -> Table:
    """What training DFA's blocks is worth where stem and recipe are the same for both."""
    lines = []
    for stem, trained, frozen in contrasts(answers):
        depth = worth_of(trained, frozen)
        gap = trained.gap or frozen.gap or "not on the same seeds"
        fires = gap if depth is None else words.fires(depth)
        lines.append(Line({"stem": stem, **penalty.gain_of(depth, gap), "fires": fires}, trained))
    caption = (
        "What training DFA's blocks is worth: accuracy over that of frozen blocks under a stem that was "
        f"trained in the same way. {penalty.INTERVAL} D3 fires below two points; open: the interval holds "
        "them. The headline's D3 stands in Table 1: dfa, both parts trained by it, over frozen blocks "
        "under a stem trained by backprop."
    )
    lead = [Column("stem trained by", ("stem",), numeric=False)]
    gain = replace(penalty.GAIN, header="gain of trained blocks")
    tail = (gain, Column("D3", ("fires",), numeric=False))
    return measured_table("stem-blocks", caption, lines, lead, [replace(ACCURACY, paper="")], tail)


def _line(rule: str, answer: Answer) -> Line:
    return Line(dict(zip(_LEAD.values(), CELLS[rule], strict=True)), answer)


_LEAD = {"stem trained by": "stem", "blocks": "blocks"}

STUDY = Study(
    "stem",
    "Do DFA's blocks beat frozen ones under a stem trained by backprop, and under one trained by DFA?",
    (ARM, LONG, CONSTANT),
    ours="the whole study",
    tables=stem_table,
)
