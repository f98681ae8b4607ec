"""Why a number of ours differs from the paper's: each a sentence, made from stored runs alone.

A control that was not run is named as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from walkback.report import words
from walkback.report.answer import (
    ACCURACY,
    CEILING,
    CLAMPED,
    EXACT,
    GAMMA,
    NOT_RUN,
    REFERENCE,
    RHO,
    STATE,
    Answer,
    Measure,
    at_layer,
    over_seeds,
)
from walkback.report.published import published, unclamped
from walkback.studies import (
    border,
    changes,
    controls,
    effect,
    feedback_draw,
    five_rule,
    penalty,
    penalty_reduction,
    perturbation_step,
    schedule,
)
from walkback.studies.answers import Answers
from walkback.studies.effect import Control, fine, mean, paired, seeds_of
from walkback.studies.point import Point


def of_accuracy(answers: Answers, rule: str) -> str:
    """Which change gives the paper's number, and which checkpoint rule or length would have."""
    paper, main = published(rule, "accuracy"), answers.one(five_rule.ARM, rule)
    assert paper is not None
    said = effect.summary(changes.OF_RULE[rule](answers), paper)
    return " ".join(filter(None, (said, _best_epoch(main), _on_the_way(main, rule))))


def of_border_elsewhere(answers: Answers) -> str:
    """One change for all rules: what gives one number of the paper may take another away."""
    told = []
    for rule in border.LONG.rules[1:]:
        paper, answer = published(rule, "accuracy"), answers.one(border.LONG, rule)
        if paper is not None and answer.runs:
            point = Point(rule, paper, answer, ACCURACY)
            told.append(f"{rule} {point.measured} (paper {paper.text}; {point.standing})")
    return f"With the same border: {'; '.join(told)}." if told else ""


def _best_epoch(answer: Answer) -> str:
    """What another checkpoint rule would have printed: ours is the last epoch, the paper's is not known."""
    last = [run.accuracy for run in answer.runs]
    tables = [run.measurements for run in answer.runs]
    known = [[t.number("accuracy.test@1", epoch) for epoch in t.epochs] for t in tables]
    best = [max((a for a in seen if a is not None), default=None) for seen in known]
    usual, top = words.mean_of(last), words.mean_of(best)
    if usual is None or top is None:
        return ""
    told, tops = (", ".join(fine(a) for a in some if a is not None) for some in (last, best))
    return (
        f"Seed by seed the last epoch gives {told}; the best one, chosen on the test split, {tops}: "
        f"{words.points(top - usual)} pp."
    )


def _on_the_way(answer: Answer, rule: str) -> str:
    """Accuracy need not only rise: whether a shorter run would have printed the paper's number."""
    paper, tables = published(rule, "accuracy"), [run.measurements for run in answer.runs]
    if paper is None or not tables:
        return ""
    shared = set.intersection(*(set(table.epochs) for table in tables)) - {0}
    means = {e: words.mean_of([t.number("accuracy.test@1", e) for t in tables]) for e in sorted(shared)}
    return passages({e: value for e, value in means.items() if value is not None}, paper.value)


def passages(curve: Mapping[int, float], number: float) -> str:
    """Where a curve over epochs is lowest and highest, and when it goes past a number."""
    if len(curve) < 2:
        return ""
    low, high = (extreme(curve, key=curve.__getitem__) for extreme in (min, max))
    told = (
        f"From the first epoch on, the mean over seeds is lowest after {low} ({fine(curve[low])}) and "
        f"highest after {high} ({fine(curve[high])})"
    )
    above = {epoch: value >= number for epoch, value in curve.items()}
    passed = [later for earlier, later in pairwise(curve) if above[earlier] != above[later]]
    if not passed:
        return f"{told}: always {'above' if above[low] else 'below'} the paper's."
    when = f"epoch {passed[0]}" if len(passed) == 1 else f"epochs {passed[0]} to {passed[-1]}"
    return f"{told}; it passes the paper's {words.plural(len(passed), 'time')}, in {when}."


def of_draws(answers: Answers) -> str:
    """Two seeds with each other's feedback."""
    usual = answers.one(penalty.ARM, "dfa")
    swaps = [
        Control(
            f"Seed {seed} with the feedback of seed {feedback_draw.other_than(seed)}",
            answers.of(arm)[0],
            usual,
            feedback_draw.STUDY.name,
            penalty.STUDY.name,
        )
        for seed, arm in feedback_draw.ARMS.items()
    ]
    return " ".join((*(swap.told() for swap in swaps), feedback_draw.statement(answers))).rstrip()


def of_solver(answers: Answers) -> str:
    """Which of solver and length gives the paper's number of EP."""
    paper = published("ep", "accuracy")
    assert paper is not None
    return effect.summary(changes.of_ep(answers), paper)


def of_settling(ep: Answer, few_step: Answer) -> str:
    """Γ where the states come to rest, and where they do not: which of the two the paper's is like."""
    residual = words.mean_of([run.number("settling.residual@1") for run in ep.runs])
    if residual is None:
        return ""
    settled = (
        f"Where the states come to rest the credit is the gradient; residual {words.number(residual)}."
    )
    hurried, left = mean(few_step, GAMMA), [run.number("settling.residual@1") for run in few_step.runs]
    if hurried is None:
        return settled
    moving = words.number(words.mean_of(left))
    return f"{settled} After a few steps of descent Γ is {words.cosine(hurried)}; residual {moving}."


def of_layer_0(dfa: Answer) -> str:
    """How much of Γ is layer 0."""
    whole, deep = mean(dfa, GAMMA), mean(dfa, CLAMPED)
    if whole is None or deep is None:
        return ""
    return f"Without layer 0 the mean clamped cosine is {words.cosine(deep)}, not {words.cosine(whole)}."


def of_gamma(bp: Answer) -> str:
    """Backprop's exact cosine is 1 by definition: what it lacks, the clamp took."""
    exact = mean(bp, EXACT)
    if exact is None:
        return ""
    return (
        f"A library's cosine has a floor, which takes from small gradients. Exact: {words.cosine(exact)}."
    )


def of_layers(answer: Answer) -> str:
    """The deep layers one by one: their mean can be the first alone."""
    if not answer.runs:
        return ""
    layers = range(1, five_rule.DEPTH + 1)
    read = [mean(answer, _at(layer)) for layer in layers]
    if None in read:
        return ""
    deeper = words.mean_of(read[1:])
    listed = ", ".join(words.cosine(value) for value in read)
    return f"Layers 1 to {len(read)}, clamped: {listed}; {words.cosine(deeper)} without the first."


def _at(layer: int) -> Measure:
    return Measure(f"layer {layer}", "", at_layer("alignment.cosine_compat@1", layer), words.cosine)


def of_scale(answers: Answers) -> str:
    """What twice the sum of rates does to the scale, in the seeds that have both."""
    usual = answers.one(five_rule.ARM, "dfa")
    pairs = paired(answers.one(schedule.ARM, "dfa"), usual, STATE)
    if not pairs:
        return f"Constant rate: {NOT_RUN} (walkback audit schedule decides what it does to the scale)."
    one, other = (words.number(words.median_of([pair[side] for pair in pairs])) for side in (0, 1))
    seeds = words.plural(len(pairs), "seed")
    return (
        f"A constant rate, which is twice the sum of rates, gives {one} instead of {other} ({seeds})."
        f"{_by_seed(usual, STATE)}"
    )


def of_batch(answer: Answer) -> str:
    """The mean-reduced norm by another batch: the same gradients, divided by another count."""
    norm = words.median_of([REFERENCE.read(run) for run in answer.runs])
    if norm is None:
        return ""
    rows = answer.batch
    others = (f"over {batch} {words.number(norm * rows / batch)}" for batch in (1024, 128))
    told = (
        f"Mean-reduced over {rows} rows, as in our tables, {words.number(norm)}; {', '.join(others)}. The "
        "paper does not say how many it took. Its public code reads batches of 128 in its audit and 1024 "
        "rows behind Table 2; each number is compared at its own."
    )
    return told + _by_seed(answer, REFERENCE)


def _by_seed(answer: Answer, measure: Measure) -> str:
    """Seeds may differ by powers of ten, and then neither mean nor median tells of all of them."""
    values = [measure.read(run) for run in answer.runs]
    if len(values) < 2 or None in values:
        return ""
    return f" Seed by seed: {', '.join(measure.show(value) for value in values)}."


def of_clamp(answer: Answer, row: str) -> str:
    """What the floor of library cosines took away, in the paper and here."""
    number, norm = published(row, "deep cosine"), published(row, "reference norm")
    assert number is not None and norm is not None
    read, true = number.value, unclamped(number.value, norm.value)
    said = (
        f"A sample whose ‖g‖ is {norm.text} is read {words.number(true / read)} times too small; if all "
        f"were, the paper's {words.cosine(read)} would be {words.cosine(true)}."
    )
    if true == read:
        said = f"At the paper's ‖g‖, {norm.text}, the clamp takes nothing away."
    clamped, exact = mean(answer, CLAMPED), mean(answer, EXACT)
    if clamped is None or exact is None:
        return said
    return f"{said} Ours: {words.cosine(clamped)} clamped, {words.cosine(exact)} exact."


def of_fresh(answer: Answer) -> str:
    """The spread over draws: the mean of a null is near zero whatever it is a null of."""
    paper = published(controls.FRESH, "deep cosine")
    assert paper is not None and paper.sd is not None
    spread = mean(answer, controls.NULL[1])
    if spread is None:
        return ""
    return (
        "A mean over draws is near zero on any net. What tells nulls apart is the deviation over draws: "
        f"{words.number(spread)} here, {words.number(paper.sd)} in the paper. It does not say on which "
        "net, nor over how many layers and rows; by the notes of its code it was the penalised one of "
        f"seed 42.{_of_one_layer(answer)}"
    )


def _of_one_layer(answer: Answer) -> str:
    """The null of a single layer is wider than that of the mean over four."""
    layers = range(1, five_rule.DEPTH + 1)
    read = [mean(answer, Measure("", "", at_layer("alignment.null_sd@1", n))) for n in layers]
    known = [sd for sd in read if sd is not None]
    if not known:
        return ""
    return f" Of one layer alone it is {words.number(min(known))} to {words.number(max(known))} here."


def of_reductions(answers: Answers, measure: Measure) -> str:
    """A number of the penalised net under the other readings of what its penalty is averaged over."""
    return " ".join(
        f"{told}: {point.measured} ({seeds_of(answer)}), {point.standing}."
        if point.answer.runs
        else f"{told}: {answer.gap} (walkback audit penalty-reduction decides it)."
        for told, answer in reductions(answers, penalty.WEIGHTS[-1])
        for point in [penalised(answers, answer, measure)]
    )


def penalised(answers: Answers, answer: Answer, measure: Measure) -> Point:
    """A number of the paper's penalised net beside an answer's."""
    row = penalty_reduction.read_as(answers, penalty.WEIGHTS[-1], penalty_reduction.SUMMED).name
    paper = published(row, measure.paper)
    assert paper is not None, (row, measure.paper)
    return Point(row, paper, answer, measure)


def reductions(answers: Answers, weight: str) -> list[tuple[str, Answer]]:
    readings = {
        penalty_reduction.AVERAGED: "With the penalty averaged over features",
        penalty_reduction.ERROR_SUMMED: "With that and the error summed over the batch",
        penalty_reduction.OFF_BY_ONE: "With the penalty averaged and an index that is off by one",
    }
    return [(told, penalty_reduction.read_as(answers, weight, by)) for by, told in readings.items()]


def of_rho(answer: Answer, row: str) -> str:
    """What our step and a fixed one read of the same nets; the paper states no step."""
    paper, ceiling = published(row, "rho"), mean(answer, CEILING)
    assert paper is not None
    if ceiling is None:
        gap = over_seeds("rho", answer, CEILING.read)["rho_gap"]
        hint = ": walkback measure adds it" if "not measured" in gap else ""
        return f"ρ of the exact gradient: {gap}{hint}." if answer.runs else ""
    return (
        f"Our step is relative to ‖h‖, and the exact gradient reaches {words.cosine(ceiling)}. The paper "
        "does not state its step; its public code takes 1e-3 whatever ‖h‖ is. "
        f"{perturbation_step.statement(answer, paper)}"
    )


def of_penalised_rho(answers: Answers, answer: Answer, row: str) -> str:
    """The same of the penalised net, then the other readings of its penalty, the last by both steps."""
    paper, last = published(row, "rho"), reductions(answers, penalty.WEIGHTS[-1])[-1][1]
    assert paper is not None
    said = [of_rho(answer, row), of_reductions(answers, RHO)]
    if last.runs:
        said.append(f"In that last reading: {perturbation_step.statement(last, paper)}")
    return " ".join(filter(None, said))
