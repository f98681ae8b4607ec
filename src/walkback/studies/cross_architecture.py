"""`cross-architecture`: the FA paper's seventh validation. Is it DFA that fails, or one net's norm?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from walkback.judge.replay import ask
from walkback.judge.thresholds import Thresholds
from walkback.report import words
from walkback.report.answer import (
    ABSENT,
    ACCURACY,
    EXACT,
    GROWTH,
    REFERENCE,
    STATE,
    TOTAL_GROWTH,
    VALIDITY,
    Answer,
    Line,
    measured_table,
)
from walkback.report.document import Drawing
from walkback.report.paper_figures import draw_net, draw_time_and_nets, figure_text, net_figure_text
from walkback.report.table import Column, Row, Table
from walkback.studies import five_rule
from walkback.studies.answers import Answers
from walkback.studies.cifar10 import DATA, FEW_EPOCHS, NET, recipe
from walkback.studies.study import Arm, Study

RULES = ("bp", "dfa", "frozen")


class NetCase(NamedTuple):
    """A net, what it is called, whether a norm stands between its last state and its head, its data."""

    name: str
    net: str
    terminal_norm: bool
    data: str = DATA

    @property
    def arm(self) -> Arm:
        """Ten epochs of a cosine leave DFA's r/128 at 3.6e-7 on ResMLP itself, where the floor is 1e-7: a
        quiet net would say nothing. At a constant rate ResMLP passes it in the eighth epoch."""
        return Arm(RULES, self.net, self.data, recipe=recipe(FEW_EPOCHS, "constant"))


NETS = (
    NetCase("ResMLP", NET, True),
    NetCase("ViT-Mini", "vit(width=64)", True),
    NetCase("ResMLP without terminal norm", "resmlp(terminal_norm=none)", False),
    NetCase("SmallResNet", "small-resnet", False),
    NetCase("CNN", "cnn", False),
    NetCase("StudentNet", "student", False, data="teacher"),
)


def nets_table(answers: Answers) -> Table:
    """Every net under every rule, at the last of ten epochs."""
    lines = [
        Line({**_label(case), "rule": answer.name, **_fires(answer)}, answer)
        for case in NETS
        for answer in answers.of(case.arm)
    ]
    lead = [Column(name, (key,), numeric=False) for name, key in _LABELS.items()]
    tail = [Column(name, (name,), numeric=False) for name in ("D1", "D2", "D3", "verdict")]
    shown = (ACCURACY, GROWTH, TOTAL_GROWTH, STATE, VALIDITY, REFERENCE, EXACT)
    measures = [replace(m, paper="") for m in shown]
    caption = (
        "Ten epochs on every net: what backprop and DFA reach, and which detectors fire. D1 and D2: the "
        "number of seeds on which they fire; D3: whether it does, over seeds and items; open, if its "
        "interval holds the threshold. D1 asks for the growth of one block; the growth over all of them "
        "stands beside it, for a net whose states grow a little in each block."
    )
    return measured_table("cross-architecture", caption, lines, lead, measures, tail)


def floor_table(answers: Answers) -> Table:
    """Where the reference ever falls below the floor, net by net, under DFA and under backprop."""
    rows = tuple(floor_rows(answers))
    columns = (
        Column("net", ("net",), numeric=False),
        Column("terminal norm", ("norm",), numeric=False),
        *(
            Column(f"{rule}, {reading}", (f"{rule}_{key}",))
            for rule in ("dfa", "bp")
            for key, reading in _READINGS.items()
        ),
        Column("epochs", ("epochs",)),
    )
    fields = tuple(field for column in columns for field in column.fields)
    caption = (
        f"{floor_statement(rows)} {_PAIR} Cells: seeds on which D2 fires at any epoch, and the first epoch."
    )
    return Table("gradient-floor", caption, columns, fields, rows)


def floor_rows(answers: Answers) -> list[Row]:
    long = {"net": "ResMLP (100 epochs)", "norm": "yes"}
    arms = [(long, five_rule.ARM), *((_label(case), case.arm) for case in NETS)]
    return [_floor_row(label, arm, answers) for label, arm in arms]


def floor_statement(rows: Sequence[Row]) -> str:
    """Whether the gradient floor is a matter of the terminal norm, as far as it was run."""
    return f"{_floor_under_dfa(rows)} {_floor_under_backprop(rows)}"


def _floor_under_dfa(rows: Sequence[Row]) -> str:
    ran = [row for row in rows if _known(row["dfa_artifact"])]
    missing = [row["net"] for row in rows if row not in ran]
    if not ran:
        return "Where the gradient-floor diagnostic (D2) fires under DFA is not known: no net was run."
    hit = [row for row in ran if _fired(row["dfa_artifact"])]
    quiet = [row for row in ran if row not in hit]
    plain = [row["net"] for row in hit if row["norm"] == "no"]
    fired = words.listed([_seeds_of(row) for row in hit])
    said = f"Under DFA the gradient-floor diagnostic (D2, as r/128) fires on {fired}"
    said += f", and not on {words.listed([_seeds_of(row) for row in quiet])}." if quiet else "."
    fair = [row for row in hit if row["epochs"] == FEW_EPOCHS]  # as long as nets without a norm were run
    if plain:
        said += f" So it fires without a terminal norm too: {words.listed(plain)}."
    elif fair and any(row["norm"] == "no" for row in ran):
        said += " So in these runs it fires only on terminal-normalised nets."
    else:
        said += " Whether it needs a terminal norm is not decided by these runs."
    return said + (f" Not run or not known: {words.listed(missing)}." if missing else "")


def _seeds_of(row: Row) -> str:
    """`ViT-Mini (1 of 3 seeds)`: on how many of those that were run."""
    fired, _, known = row["dfa_artifact"].split(",")[0].partition(" of ")
    return f"{row['net']} ({fired} of {words.plural(int(known), 'seed')})"


def _floor_under_backprop(rows: Sequence[Row]) -> str:
    """Where it fires falsely, of the nets where that is known."""
    ran = [row for row in rows if _known(row["bp_artifact"])]
    if not ran:
        return "Under backprop no net was run."
    false = [row["net"] for row in ran if _fired(row["bp_artifact"])]
    missing = [row["net"] for row in rows if row not in ran]
    left_out = f" (not run or not known: {words.listed(missing)})" if missing else ""
    return f"Under backprop it fires on {words.listed(false)}{left_out}."


_PAIR = "ResMLP with its norm and without it differ in nothing else; the other nets differ in more."
_LABELS = {"net": "net", "terminal norm": "norm", "rule": "rule"}
_UNKNOWN = "not known"
_READINGS = {"artifact": "r/128", "paper": "literal ‖g_L‖"}


def _label(case: NetCase) -> Row:
    return {"net": case.name, "norm": "yes" if case.terminal_norm else "no"}


def _floor_row(label: Row, arm: Arm, answers: Answers) -> Row:
    found = {answer.name: answer for answer in answers.of(arm)}
    kinds = [(rule, logic) for rule in ("dfa", "bp") for logic in _READINGS]
    cells = {f"{rule}_{logic}": _ever(answers, found[rule], logic) for rule, logic in kinds}
    return {**label, **cells, "epochs": arm.recipe["epochs"]}


def _ever(answers: Answers, answer: Answer, logic: str) -> str:
    """`3 of 3, from epoch 8`: seeds on which D2 fires at any epoch."""
    if not answer.bundles:
        return answer.gap
    limits, known, first = Thresholds(), 0, []
    for history in answers.histories(answer):
        said = {run.epoch: ask("D2", run, base, logic, limits).fires for run, base in history}
        known += any(fires is not None for fires in said.values())
        first += [epoch for epoch, fires in said.items() if fires][:1]
    if not known:
        return _UNKNOWN
    return f"{len(first)} of {known}" + (f", from epoch {min(first)}" if first else "")


def _known(cell: str) -> bool:
    return cell not in (*ABSENT, _UNKNOWN)


def _fired(cell: str) -> bool:
    return _known(cell) and not cell.startswith("0 of")


def _fires(answer: Answer) -> Row:
    judged = answer.artifact
    if judged is None:
        return dict.fromkeys(("D1", "D2", "D3", "verdict"), answer.gap)
    d1, d2, d3 = judged.verdict.reasons
    depth = "baseline" if judged.role == "baseline" else words.fires(d3)
    return {"D1": d1.seeds, "D2": d2.seeds, "D3": depth, "verdict": answer.verdict}


def figures(answers: Answers) -> list[Drawing]:
    """Figure 2 beside the temporal replay, and one figure per net."""
    nets = {case.name: answers.of(case.arm, ("bp", "dfa")) for case in NETS}
    time = answers.of(five_rule.ARM)
    own = [
        Drawing(net_figure_text(case.name, rows), partial(draw_net, rows))
        for case in NETS
        for rows in [answers.of(case.arm)]
    ]
    return [Drawing(figure_text("figure-2"), lambda: draw_time_and_nets(time, nets)), *own]


STUDY = Study(
    "cross-architecture",
    "Which detectors fire on other nets, with and without a norm before the head?",
    tuple(case.arm for case in NETS),
    ours="the sizes of the nets, StudentNet with its teacher, ten epochs at a constant rate (a cosine "
    "would halve the sum of rates, with which states grow), ResMLP with and without its norm as controls",
    tables=lambda answers: [nets_table(answers), floor_table(answers)],
    figures=figures,
)
