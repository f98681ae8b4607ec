"""`summary`: what the runs say of the FA paper, in a few sentences made from them."""

from __future__ import annotations

from walkback.report import words
from walkback.report.answer import ACCURACY, EXACT, STATE, Answer, Measure, over_seeds, spread_column
from walkback.report.published import published
from walkback.report.table import Column, Table
from walkback.studies import border, bridges_and_ep, five_rule, offset, penalty, public_code
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
    bordered = answers.one(border.LONG, "bp")
    weak, strong = answers.of(penalty.ARM, penalty.RULES["dfa"][1:])
    coded = {row: public_code.read_as(answers, row, public_code.BY_SAMPLE) for row in public_code.ROWS}
    return {
        "bp": f"Backprop reaches {_reached(bp)}{_beside('bp')}, {_judged(bp)}; with a border of the mean "
        f"colour around crops, in place of a black one, {_reached(bordered)}.",
        "dfa": f"DFA reaches {_reached(dfa)}{_beside('dfa')} where frozen random blocks reach "
        f"{_reached(frozen)}{_beside('frozen')}, {_judged(dfa)}; ‖h_L‖ {_size(dfa)} by the median seed.",
        "fa": f"Feedback alignment, a rule without backprop's transport, reaches {_reached(fa)}, "
        f"{_judged(fa)}.",
        "ep": f"EP that settles is backprop by another road, {_reached(settled)}{_beside('ep')}, "
        f"{_judged(settled)}; with a hurried solver it reaches {_reached(hurried)}, {_judged(hurried)}.",
        "penalty": f"With a penalty on its branches DFA has, λ = 1e-2: {_pointing(strong)}; λ = 1e-4: "
        f"{_pointing(weak)}.",
        "agreement": tally(points_of(answers)),
        "public code": "With what its public code has and the paper does not state (a square block that "
        "begins near the identity, feedback numbered by the state that a block reads, one length for each "
        f"sample's credit) backprop reaches {_reached(coded['bp'])}, DFA {_reached(coded[offset.LAST])}, "
        f"‖h_L‖ {_size(coded[offset.LAST])}, and frozen blocks under a stem of DFA's "
        f"{_reached(coded['frozen'])}; penalised, λ = 1e-2: {_pointing(coded[offset.STRONG])}; λ = 1e-4: "
        f"{_pointing(coded[offset.WEAK])}. Of the numbers that the paper prints of these, so many come "
        f"out: {_coming_out(answers, public_code.BY_SAMPLE)}; as we read the paper, "
        f"{_coming_out(answers, public_code.OURS)}.",
    }


def _coming_out(answers: Answers, reading: str) -> str:
    return come_out(public_code.points(answers, reading))


def _reached(answer: Answer) -> str:
    return _shown(answer, ACCURACY)


def _shown(answer: Answer, measure: Measure) -> str:
    """`.598 ± .003`, or why there is no number."""
    return spread_column("", "value", measure.show).cell(over_seeds("value", answer, measure.read))


def _beside(row: str) -> str:
    number = published(row, "accuracy")
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
