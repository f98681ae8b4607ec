"""`paper`: all studies of the FA paper together, every run listed once, shared runs trained once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from walkback.judge.ablate import EVIDENCE
from walkback.judge.replay import DETECTORS
from walkback.report import words
from walkback.report.answer import (
    ABSENT,
    CLAMPED,
    EXACT,
    NOT_RUN,
    NULL_P,
    VALIDITY,
    Answer,
    Measure,
    at_layer,
    gap_of,
)
from walkback.report.document import Drawing
from walkback.report.published import NOTES, NUMBERS, RUNS, published
from walkback.report.table import Column, Row, Table
from walkback.store import Bundle
from walkback.studies import (
    batch_size,
    border,
    bridges_and_ep,
    controls,
    cross_architecture,
    decision_utility,
    early_epoch,
    encoding,
    feedback_draw,
    five_rule,
    offset,
    penalty,
    penalty_reduction,
    perturbation_step,
    pixels,
    public_code,
    rate,
    schedule,
    stem,
    temporal_replay,
    threshold_sensitivity,
)
from walkback.studies.agreement import agreement_table
from walkback.studies.answers import Answers
from walkback.studies.changes import changes_table
from walkback.studies.findings import findings_table
from walkback.studies.study import Study
from walkback.studies.summary import summary_table
from walkback.studies.weak_penalty import weak_penalty_table

VALIDATIONS = (
    five_rule.STUDY,
    decision_utility.STUDY,
    temporal_replay.STUDY,
    early_epoch.STUDY,
    penalty.STUDY,
    controls.STUDY,
    cross_architecture.STUDY,
)
PARTS = (
    *VALIDATIONS,
    threshold_sensitivity.STUDY,
    bridges_and_ep.STUDY,
    schedule.STUDY,
    stem.STUDY,
    batch_size.STUDY,
    rate.STUDY,
    border.STUDY,
    encoding.STUDY,
    pixels.STUDY,
    penalty_reduction.STUDY,
    perturbation_step.STUDY,
    feedback_draw.STUDY,
    offset.STUDY,
    public_code.STUDY,
)
ARMS = tuple(arm for study in PARTS for arm in study.arms)
WHY = {
    "five-rule": "Accuracy and a positive cosine can both be there while trained blocks gain nothing.",
    "decision-utility": "A diagnostic that changes no decision would be decoration.",
    "temporal-replay": "A scale that breaks early need not be trained to its end; early D3 may yet turn.",
    "early-epoch": "While the reference is sound, a cosine near zero is the rule's own and no artefact.",
    "penalty": "If holding the scale down does not bring the blocks to learn, scale was not all of it.",
    "controls": "A cosine means something only beside what chance and the intervention alone give.",
    "cross-architecture": "What a terminal norm does must not be blamed on a learning rule.",
}


def table_4(answers: Answers) -> Table:
    """The seven validations: what was asked, what the paper and we see, why it matters."""
    columns = (
        Column("validation", ("name",), numeric=False),
        Column("question", ("question",), numeric=False),
        Column("observation, paper", ("paper",), numeric=False),
        Column("observation, measured", ("measured",), numeric=False),
        Column("why it matters", ("why",), numeric=False),
    )
    paper, measured = _paper_observations(), _observations(answers)
    rows = tuple(
        {
            "name": f"{place} {study.name}",
            "question": study.question,
            "paper": paper.get(study.name, ""),
            "measured": measured[study.name],
            "why": WHY[study.name],
        }
        for place, study in enumerate(VALIDATIONS, start=1)
    )
    fields = tuple(column.fields[0] for column in columns)
    caption = "Table 4. The seven validations, in numbers of the median seed. A dash: lost in the paper."
    return Table("table-4", caption, columns, fields, rows)


def _paper_observations() -> dict[str, str]:
    def text(row: str, quantity: str) -> str:
        number = published(row, quantity)
        assert number is not None
        return number.text

    strong, first, deep = "dfa+penalty(0.01)", "dfa, epoch 1", "deep cosine"
    return {
        "five-rule": "The status quo walks back none of five rules, the protocol three.",
        "early-epoch": f"Deep cosine {text(first, deep)} where ‖g_L‖ is {text(first, 'reference norm')}.",
        "penalty": f"λ = 1e-2: deep cosine {text(strong, deep)}, ρ {text(strong, 'rho')}.",
        "controls": f"Fresh feedback gives a deep cosine of {text(controls.FRESH, deep)}.",
    }


def _observations(answers: Answers) -> dict[str, str]:
    rows = five_rule.rows_of(answers)
    every = five_rule.counts(rows).rows[0]
    dfa, penalised = answers.one(five_rule.ARM, "dfa"), answers.of(penalty.ARM, penalty.RULES["dfa"][1:])
    return {
        "five-rule": every["quo"].capitalize() + "."
        if every["quo"] in ABSENT
        else f"The status quo walks back {every['quo']}; the protocol {every['protocol']} (logic "
        f"paper), {every['artifact']} (logic artifact).",
        "decision-utility": _evidence_counts(answers),
        "temporal-replay": _first_epochs(answers),
        "early-epoch": f"Epoch 1: {_numbers(dfa.at(1), _DIRECTION)}. {_by_layer(dfa.at(1))}",
        "penalty": f"{'; '.join(_penalised(a) for a in penalised)}. {_other_inputs(answers)}",
        "controls": _nulls(answers),
        "cross-architecture": f"{_verdicts_by_net(answers)} "
        + cross_architecture.floor_statement(cross_architecture.floor_rows(answers)),
    }


_DIRECTION = (CLAMPED, EXACT, VALIDITY)


def _penalised(answer: Answer) -> str:
    """Where its credit points, and whether its blocks are worth training."""
    if not answer.runs:
        return f"{answer.name}: {answer.gap}"
    depth = penalty.depth_of(answer)
    gain = depth["gain_gap"] or f"{words.points(depth['gain'])} pp"
    return f"{answer.name}: {_numbers(answer, _DIRECTION)}, gain over frozen {gain}, {answer.verdict}"


def _by_layer(answer: Answer) -> str:
    """The first deep layer and the others: the mean over all of them can be the first alone."""
    first, *others = (at_layer("alignment.cosine@1", n) for n in range(1, five_rule.DEPTH + 1))
    told = []
    for name, layers, read in (
        ("layer 1", [1], [first]),
        (f"layers 2 to {five_rule.DEPTH}", range(2, five_rule.DEPTH + 1), others),
    ):
        value = words.median_of([words.mean_of([one(run) for one in read]) for run in answer.runs])
        if value is not None:
            beyond = controls.outside(answer, layers)
            told.append(f"{name} {words.cosine(value)}{f' ({beyond})' if beyond else ''}")
    return f"Of it, exact: {'; '.join(told)}." if told else ""


def _other_inputs(answers: Answers) -> str:
    """Whether the penalised nets pass on the inputs of the controls too."""
    told = []
    for name, arm in (("a border of the mean colour", border.SHORT), ("pixels in 0…1", pixels.ARM)):
        found = answers.of(arm, penalty.RULES["dfa"][1:])
        told.append(f"with {name} {' and '.join(answer.verdict for answer in found)}")
    return f"On other inputs, in the same order: {', '.join(told)}."


def _verdicts_by_net(answers: Answers) -> str:
    """What becomes of DFA on each net."""
    found = [(case.name, answers.one(case.arm, "dfa").verdict) for case in cross_architecture.NETS]
    return f"DFA: {'; '.join(f'{net} {verdict}' for net, verdict in found)}."


def _numbers(answer: Answer, measures: Sequence[Measure]) -> str:
    """`deep cosine, exact +0.02, D2 r/128 3.1×10⁻⁵`, or that it was not run; the median seed's."""
    if not answer.runs:
        return answer.gap
    values = [(m, words.median_of([m.read(run) for run in answer.runs])) for m in measures]
    return ", ".join(f"{m.header} {m.show(value)}" for m, value in values)


def _evidence_counts(answers: Answers) -> str:
    decided = {a.name: decision_utility.decided(a) for a in five_rule.counted(answers)}
    ran = {name: row for name, row in decided.items() if row["full"] not in ABSENT}
    if not ran:
        return gap_of(five_rule.counted(answers)).capitalize() + "."
    count = five_rule.count_walked_back
    counts = (f"{name}: {count([row[name] for row in ran.values()])}" for name in EVIDENCE)
    return f"Walked back, of {words.listed(list(ran))}: {', '.join(counts)}."


def _first_epochs(answers: Answers) -> str:
    said, table = [], temporal_replay.first_table(answers)[0]
    for rule in ("bp", "dfa", "fa"):
        recipe = answers.one(five_rule.ARM, rule).recipe
        rows = [row for row in table.rows if (row["rule"], row["recipe"]) == (rule, recipe)]
        said.append(f"{rule}: " + ", ".join(f"{d} {_span(rows, d)}" for d in DETECTORS))
    return "First firing epoch: " + "; ".join(said) + "."


def _span(rows: Sequence[Row], check: str) -> str:
    """`3–4`, `never`, or why it is not known, over the seeds that were run."""
    ran = [row for row in rows if row[f"{check}_gap"] not in ABSENT]
    known = [row for row in ran if not row[f"{check}_gap"]]
    if not known:
        return "not known" if ran else next((row[f"{check}_gap"] for row in rows), NOT_RUN)
    fired = [row for row in known if row[f"{check}_first"] is not None]
    if not fired:
        return "never"
    epochs = [row[f"{check}_first"] for row in fired]
    span = f"{min(epochs)}" if min(epochs) == max(epochs) else f"{min(epochs)}–{max(epochs)}"
    notes = [f"on {len(fired)} of {len(known)} seeds"] * (len(fired) < len(known))
    stays = [row[f"{check}_stays"] for row in fired]
    notes += ["does not stay"] * (None in stays)
    last = max((epoch for epoch in stays if epoch is not None), default=0)
    notes += [f"on every seed from {last} on"] * (None not in stays and last > max(epochs))
    return f"{span} ({', '.join(notes)})" if notes else span


def _nulls(answers: Answers) -> str:
    strong, control = answers.of(penalty.ARM, [penalty.RULES[rule][-1] for rule in ("dfa", "bp")])
    return "; ".join(f"{a.name}: {_numbers(a, (EXACT, NULL_P))}" for a in (strong, control)) + "."


def tables(answers: Answers) -> list[Table]:
    """What was found in short, every table of every part once, then the comparison as a whole."""
    return [
        summary_table(answers),
        *(table for study in PARTS for table in study.tables(answers)),
        table_4(answers),
        agreement_table(answers),
        changes_table(answers),
        weak_penalty_table(answers),
        findings_table(answers),
        progress_table(answers),
        provenance_table(answers),
        published_table(),
    ]


def progress_table(answers: Answers) -> Table:
    """How far each study is; a run may serve several, and the last row counts each once."""
    rows = []
    for study in (*PARTS, STUDY):
        names = [spec.name for spec in study.runs(answers.data)]
        held = [answers.bundles[name] for name in names if name in answers.bundles]
        states = Counter(bundle.status["state"] for bundle in held)
        ended = [states["finished"], states["diverged"]]
        counts = (len(names), *ended, len(held) - sum(ended), len(names) - len(held))
        rows.append({"study": study.name, **dict(zip(_COUNTS, counts, strict=True))})
    columns = (Column("study", ("study",), numeric=False), *(Column(key, (key,)) for key in _COUNTS))
    caption = "Studies share runs; the last row counts each of them once."
    return Table("progress", caption, columns, ("study", *_COUNTS), tuple(rows))


_COUNTS = ("runs", "finished", "diverged", "running", NOT_RUN)


def published_table() -> Table:
    """The paper's numbers as it prints them."""
    named = tuple(Column(name, (name,), numeric=False) for name in ("where", "row", "quantity", "text"))
    columns = (*named, Column("mean over rows", ("rows",)))
    fields = ("where", "row", "quantity", "value", "sd", "text", "rows")
    rows = tuple(number._asdict() for number in (*NUMBERS, *NOTES))
    caption = (
        "What the FA paper prints, and where; then what the notes of its public code add. Over how many "
        "rows a gradient is averaged is from that code, too."
    )
    return Table("published", caption, columns, fields, rows)


def provenance_table(answers: Answers) -> Table:
    """One row per run: what it is, how it ended, and what computed it."""
    bundles = {b.id: b for arm in ARMS for answer in answers.of(arm) for b in answer.bundles}
    rows = tuple(_origin(identity, bundle) for identity, bundle in bundles.items())
    columns = tuple(Column(_HEADS.get(key, key), (key,), numeric=key in _NUMBERS) for key in _ORIGIN)
    caption = "Every run behind these tables. The first column is what they name under “runs”."
    return Table("provenance", caption, columns, _ORIGIN, rows)


_SPEC = ("net", "rule", "data", "seed", "epochs", "batch", "lr", "schedule")
_ORIGIN = ("run", *_SPEC, "state", "commits", "torch", "threads", "machine")
_HEADS, _NUMBERS = {"lr": "rate"}, ("seed", "epochs", "batch", "lr", "threads")


def _origin(identity: str, bundle: Bundle) -> Row:
    """A run that was stopped and went on can have been computed by several commits."""
    seen = [
        {
            "commits": _short(entry["commit"]),
            "torch": entry["libraries"]["torch"],
            "threads": str(entry["threads"]),
            "machine": f"{entry['machine']} {entry['instruction_set']}",
        }
        for entry in bundle.provenance
    ]
    return {
        "run": identity,
        **{key: bundle.spec[key] for key in _SPEC},
        "state": bundle.status["state"],
        **{key: ", ".join(dict.fromkeys(entry[key] for entry in seen)) for key in seen[0]},
    }


def _short(commit: str) -> str:
    """Twelve digits; what says that the tree had changes stays."""
    name, plus, changes = commit.partition("+")
    return f"{name[:12]}{plus}{changes}"


def figures(answers: Answers) -> list[Drawing]:
    return [drawing for study in PARTS for drawing in study.figures(answers)]


STUDY = Study(
    "paper",
    "Does the FA paper's whole evidence hold on CIFAR-10?",
    ARMS,
    ours=f"the list of runs: the paper counts {RUNS} without saying which, and ours is not padded to that",
    tables=tables,
    figures=figures,
)
