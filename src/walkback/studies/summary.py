"""`summary`: what the runs say of the FA paper, in a few sentences made from them."""

from __future__ import annotations

from walkback.report import words
from walkback.report.answer import ACCURACY, EXACT, STATE, Answer, Measure, over_seeds, spread_column
from walkback.report.published import published
from walkback.report.table import Column, Table
from walkback.studies import as_coded, border, bridges_and_ep, five_rule, offset, penalty, public_code, stem
from walkback.studies.agreement import points_of, tally
from walkback.studies.answers import Answers
from walkback.studies.effect import mean
from walkback.studies.printed import come_out


def summary_table(answers: Answers) -> Table:
    """One row per sentence, so that the command that makes the tables makes them too."""
    columns = tuple(Column(name, (name,), numeric=False) for name in ("about", "finding"))
    rows = tuple({"about": about, "finding": said} for about, said in sentences(answers).items())
    caption = "What the runs say, in short; a verdict by logic artifact, then by logic paper."
    return Table("summary", caption, columns, ("about", "finding"), rows)


def sentences(answers: Answers) -> dict[str, str]:
    bp, dfa, frozen, fa = answers.of(five_rule.ARM, ("bp", "dfa", "frozen", "fa"))
    settled, hurried = answers.of(bridges_and_ep.ARM)[:2]
    bordered, own_stem = answers.one(border.LONG, "bp"), answers.one(stem.LONG, stem.DFA_STEM)
    weak, strong = answers.of(penalty.ARM, penalty.RULES["dfa"][1:])
    coded = {row: public_code.read_as(answers, row, public_code.BY_SAMPLE) for row in public_code.ROWS}
    elsewhere = answers.of(border.SHORT, penalty.RULES["dfa"][1:])
    counts = five_rule.counts(five_rule.rows_of(answers)).rows[0]
    return {
        "as its public code has it": "With what that has and the paper does not state (a square block that "
        "begins near the identity, feedback numbered by the state that a block reads, one length for each "
        "sample's credit, where its notes do not say whether of a sample or of a batch) "
        f"backprop reaches {_reached(coded['bp'])}{_beside('bp')}, DFA "
        f"{_reached(coded[offset.LAST])}{_beside('dfa')} with ‖h_L‖ "
        f"{_size(coded[offset.LAST])}{_beside('dfa', STATE)}, and "
        f"frozen blocks under a stem of DFA's {_reached(coded['frozen'])}{_beside('frozen')}; penalised, "
        f"30 epochs, λ = 1e-2: {_pointing(coded[offset.STRONG])}; λ = 1e-4: "
        f"{_pointing(coded[offset.WEAK])}. Of the "
        "numbers that the paper prints of these, so many come out: "
        f"{_coming_out(answers, public_code.BY_SAMPLE)}; as we read the paper, "
        f"{_coming_out(answers, public_code.OURS)}.",
        "as we read the paper": f"Backprop reaches {_reached(bp)}{_beside('bp')}, {_judged(bp)}; with a "
        f"border of the mean colour around crops {_reached(bordered)}; its public code has a black one, as "
        "we have.",
        "DFA": f"It reaches {_reached(dfa)}{_beside('dfa')}, {_judged(dfa)}; ‖h_L‖ {_size(dfa)} by the "
        f"median seed. Frozen random blocks with all else trained by backprop reach {_reached(frozen)}"
        f"{_beside('frozen')}, with a stem that DFA trained {_reached(own_stem)}: over those, what its "
        f"blocks gain is {_own_worth(answers)}.",
        "other rules": "Feedback alignment, which sends the error back through fixed random matrices, "
        "reaches "
        f"{_reached(fa)}, {_judged(fa)}. EP that settles computes backprop's gradient: "
        f"after 30 epochs {_reached(settled)}{_beside('ep')}, {_judged(settled)}; with a hurried "
        "solver it reaches "
        f"{_reached(hurried)}, {_judged(hurried)}. Both bridges are our own reading of two names, and no "
        "reproduction.",
        "DFA with a penalty on its branches": f"After 30 epochs, λ = 1e-2: {_pointing(strong)}; λ = 1e-4: "
        f"{_pointing(weak)}. That hangs on the input: with a border of the mean colour "
        f"{' and '.join(a.verdict for a in reversed(elsewhere))}, in the same order.",
        "who is walked back": f"Of the paper's five rules, by name: {counts['quo']} by accuracy and Γ, "
        f"{counts['protocol']} by the paper's rule (logic paper), {counts['artifact']} by ours (logic "
        "artifact).",
        "all numbers": f"{tally(points_of(answers))} That is as we read the paper.",
    }


def _own_worth(answers: Answers) -> str:
    """What training DFA's blocks is worth where the stem of both is its own, after the paper's length."""
    *_, (_, trained, frozen) = stem.contrasts(answers)
    depth = stem.worth_of(trained, frozen)
    gap = trained.gap or frozen.gap or "not known on the same seeds"
    gain = penalty.GAIN.cell(penalty.gain_of(depth, gap))
    return gain if depth is None else f"{gain} pp (D3 {words.fires(depth)})"


def _coming_out(answers: Answers, reading: str) -> str:
    return come_out(as_coded.points(answers, reading))


def _reached(answer: Answer) -> str:
    return _shown(answer, ACCURACY)


def _shown(answer: Answer, measure: Measure) -> str:
    """`.598 ± .003`, or why there is no number."""
    return spread_column("", "value", measure.show).cell(over_seeds("value", answer, measure.read))


def _beside(row: str, measure: Measure = ACCURACY) -> str:
    number = published(row, measure.paper)
    return f" (paper {number.text})" if number else ""


def _judged(answer: Answer) -> str:
    """Both logics; a rule that was not run has no verdict in either."""
    if answer.artifact is None or answer.paper is None:
        return f"verdict {answer.gap}"
    return f"{answer.verdict}, {answer.paper.verdict.verdict}"


def _size(answer: Answer) -> str:
    return answer.gap or words.number(words.median_of([STATE.read(run) for run in answer.runs]))


def _pointing(answer: Answer) -> str:
    if not answer.runs:
        return answer.gap
    return f"‖h_L‖ {_size(answer)}, deep cosine {words.cosine(mean(answer, EXACT))}, {answer.verdict}"
