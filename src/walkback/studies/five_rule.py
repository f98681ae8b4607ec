"""`five-rule`: the FA paper's first validation, the audit of whole rules on CIFAR-10, and its Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from walkback.core.spec import Call
from walkback.judge.ablate import decisions
from walkback.report import words
from walkback.report.answer import (
    ABSENT,
    ACCURACY,
    CLAMPED,
    EXACT,
    GAMMA,
    GAMMA_CONCAT,
    GROWTH,
    NOT_RUN,
    REFERENCE,
    RUNNING,
    STATE,
    VALIDITY,
    Answer,
    Line,
    Measure,
    SeedBySeed,
    at_layer,
    measured_table,
)
from walkback.report.document import Drawing
from walkback.report.paper_figures import draw_five_rules, figure_text
from walkback.report.published import PROTOCOL, STATUS_QUO
from walkback.report.table import Column, Row, Table
from walkback.studies import bridges_and_ep, penalty
from walkback.studies.answers import Answers
from walkback.studies.bridges_and_ep import BRIDGES, EP, FEW_STEP_EP, FEW_STEP_NAME
from walkback.studies.cifar10 import DATA, NET, PAPER_EPOCHS, recipe
from walkback.studies.study import Arm, Study

ARM = Arm(("bp", "dfa", "frozen", "fa", "shallow"), NET, DATA, recipe=recipe(PAPER_EPOCHS))
FIVE = ("bp", "ep", "dfa", *BRIDGES)
LONG_EP_NAME = f"ep ({PAPER_EPOCHS} epochs)"
DEPTH = 4
_SHOWN_BY_LAYER = ("bp", "fa", "dfa", *BRIDGES)

LAYER_0 = Measure(
    "cosine of layer 0",
    "layer_0",
    at_layer("alignment.cosine_compat@1", 0),
    words.cosine,
    paper="cosine of layer 0",
)
DEEP = replace(CLAMPED, paper="cosine of deep layers")
BY_LAYER = (
    *(
        Measure(f"layer {n}, cosine", f"cosine_{n}", at_layer("alignment.cosine@1", n), words.cosine)
        for n in range(1, DEPTH + 1)
    ),
    *(
        SeedBySeed(f"layer {n}, p", f"p_{n}", at_layer("alignment.null_p@1", n))
        for n in range(1, DEPTH + 1)
    ),
)
RULE = Column("rule", ("rule",), numeric=False)
DECIDED = tuple(
    Column(header, (key,), numeric=False)
    for header, key in (
        ("status quo, paper", "quo_paper"),
        ("status quo", "quo"),
        ("protocol, paper", "protocol_paper"),
        ("protocol, logic paper", "protocol"),
        ("protocol, logic artifact", "artifact"),
    )
)

JUDGED = (penalty.GAIN, *DECIDED)


def rows_of(answers: Answers) -> list[Answer]:
    """The paper's five rules and its baseline, then what is ours: few-step EP, FA and the shallow net."""
    bp, dfa, frozen, fa, shallow = answers.of(ARM)
    solved, few_step, *bridges = answers.of(bridges_and_ep.ARM, (EP, FEW_STEP_EP, *BRIDGES))
    long = replace(answers.one(bridges_and_ep.LONG_EP, EP), name=LONG_EP_NAME)
    few_step = replace(few_step, name=FEW_STEP_NAME)
    return [bp, solved, dfa, *bridges, frozen, few_step, long, fa, shallow]


def audited(answers: Answers) -> list[Answer]:
    """The rows of Table 1 that get a verdict."""
    return [answer for answer in rows_of(answers) if answer.name not in ("frozen", "shallow")]


def counted(answers: Answers) -> list[Answer]:
    """The rules among them, each once: EP that was trained longer is no other rule."""
    return [answer for answer in audited(answers) if answer.name != LONG_EP_NAME]


def tables(answers: Answers) -> list[Table]:
    rows = rows_of(answers)
    return [table_1(rows), counts(rows), scale(rows), layers(rows)]


def table_1(rows: Sequence[Answer]) -> Table:
    """Accuracy, Γ, and what is decided by them and by the protocol, under both logics."""
    lines = [Line({"rule": answer.name, **judged(answer)}, answer, key_of(answer)) for answer in rows]
    caption = (
        "Table 1. Test accuracy and mean cosine Γ at the last epoch, mean ± standard deviation over "
        "seeds, and what they decide: the status quo trusts accuracy above chance with a positive Γ, each "
        "in two thirds of the seeds, the protocol also asks its three detectors. Γ is the mean over layers "
        "0 … L of the cosine that a library reads; beside it, that of all layers' vectors put together. "
        "Both bridges are our own reading of two names; numbers made with them are not a reproduction of "
        "the paper's. A baseline gets no verdict. A rule is judged against frozen blocks of its own "
        "recipe under a stem trained by backprop, so one of 30 epochs against those after 30, which the "
        "penalty study has; the study stem has frozen blocks under a stem that DFA trained. "
        f"{penalty.INTERVAL}"
    )
    measures = [ACCURACY, GAMMA, GAMMA_CONCAT]
    return measured_table("table-1", caption, lines, [RULE], measures, JUDGED)


def counts(rows: Sequence[Answer]) -> Table:
    """How many of the five rules each reading walks back, and how much of that hangs on what is ours."""
    named = {answer.name: answer for answer in rows}
    hurried = tuple(FEW_STEP_NAME if rule == EP else rule for rule in FIVE)
    sets = {
        "all five": FIVE,
        f"all five, {FEW_STEP_NAME} for ep": hurried,
        "without the bridges": tuple(rule for rule in FIVE if rule not in BRIDGES),
        "without the bridges and ep": tuple(rule for rule in FIVE if rule not in (EP, *BRIDGES)),
    }
    keys = [column.fields[0] for column in DECIDED]
    found = []
    for name, members in sets.items():
        told = [decided(named[rule]) for rule in members]
        found.append(
            {"rules": name, **{key: count_walked_back([row[key] for row in told]) for key in keys}}
        )
    caption = (
        "How many of the paper's five rules each reading walks back. Ours stands for the paper's by name: "
        "EP that settles is another rule than one that does not, and the bridges are our own."
    )
    columns = (Column("rules", ("rules",), numeric=False), *DECIDED)
    return Table("table-1-counts", caption, columns, ("rules", *keys), tuple(found))


def scale(rows: Sequence[Answer]) -> Table:
    """How large states and reference are, and how much of the cosine is layer 0."""
    lines = [Line({"rule": answer.name, **votes(answer)}, answer, key_of(answer)) for answer in rows]
    caption = (
        "Scale and direction behind Table 1. ‖g_L‖ is the median of the mean-reduced gradient over the "
        "evaluation batch of 512; over the 128 rows of the paper's it is four times that. r/128 does not "
        "depend on it. "
        "The clamped cosine is what a library reads, the exact one has no floor. D1 and D2 fire where two "
        "thirds of the seeds do; the median seed is given where seeds differ by much."
    )
    measures = [STATE, REFERENCE, GROWTH, VALIDITY, LAYER_0, DEEP, EXACT]
    fired = [Column(f"{check} fires on", (check,), numeric=False) for check in ("D1", "D2")]
    return measured_table("table-1-scale", caption, lines, [RULE], measures, fired)


def votes(answer: Answer) -> Row:
    """`2 of 3`: the seeds on which a detector fires."""
    judged = answer.artifact
    if judged is None:
        return dict.fromkeys(("D1", "D2"), answer.gap)
    fired = [reason.seeds.replace("/", " of ") for reason in judged.verdict.reasons[:2]]
    return dict(zip(("D1", "D2"), fired, strict=True))


def layers(rows: Sequence[Answer]) -> Table:
    """The cosine layer by layer: how much of Γ is layer 0 alone."""
    readings = {"clamped": "alignment.cosine_compat@1", "exact": "alignment.cosine@1"}
    measures = [
        Measure(f"layer {layer}, {kind}", f"{kind}_{layer}", at_layer(quantity, layer), words.cosine)
        for kind, quantity in readings.items()
        for layer in range(DEPTH + 1)
    ]
    measures[0] = replace(measures[0], paper=LAYER_0.paper)
    lines = [Line({"rule": a.name}, a, key_of(a)) for a in rows if a.name in _SHOWN_BY_LAYER]
    caption = (
        "The cosine of credit and reference layer by layer, as a library reads it and without its floor: "
        "how much of Γ is layer 0 alone."
    )
    return measured_table("table-1-layers", caption, lines, [RULE], measures)


def key_of(answer: Answer) -> str:
    """The row of the paper an answer stands beside: its rule's plain name."""
    return Call.parse(answer.spec["rule"]).name


def judged(answer: Answer) -> Row:
    """Its gain, and what is decided."""
    return {**penalty.depth_of(answer), **decided(answer)}


def decided(answer: Answer) -> Row:
    """What the status quo and the protocol decide, in the paper and here."""
    name, artifact, paper = key_of(answer), answer.artifact, answer.paper
    row = {"quo_paper": STATUS_QUO.get(name, ""), "protocol_paper": PROTOCOL.get(name, "")}
    if artifact is None or paper is None:
        return {**row, **dict.fromkeys(("quo", "protocol", "artifact"), answer.gap)}
    if artifact.role == "baseline":
        return {**row, "quo": "baseline", "protocol": "baseline", "artifact": "baseline"}
    return {
        **row,
        "quo": decisions(artifact)["accuracy + Γ"],
        "protocol": paper.verdict.verdict,
        "artifact": artifact.verdict.verdict,
    }


def count_walked_back(decided: Sequence[str]) -> str:
    """`2 of 4 (1 not run, 1 not decided)`: what is not decided is never counted as trusted."""
    ran = [word for word in decided if word not in ABSENT]
    back = sum(word == "walked back" or word.startswith("FAIL") for word in ran)
    trusted = sum(word in ("trustworthy", "PASS") for word in ran)
    others = {word: list(decided).count(word) for word in ABSENT}
    others["not decided"] = len(ran) - back - trusted
    notes = [f"{count} {word}" for word, count in others.items() if count]
    if not ran:
        return RUNNING if RUNNING in decided else NOT_RUN
    return f"{back} of {len(ran)}" + (f" ({', '.join(notes)})" if notes else "")


def figures(answers: Answers) -> list[Drawing]:
    rows = rows_of(answers)
    return [Drawing(figure_text("figure-1"), lambda: draw_five_rules(rows))]


STUDY = Study(
    "five-rule",
    "Which rules does the protocol trust on CIFAR-10, and which does it walk back?",
    (ARM,),
    ours="expansion 4, where the block of the paper's public code has none (study public-code); EP and the "
    "bridges for 30 epochs, by the study bridges-and-ep",
    tables=tables,
    figures=figures,
)
