"""Why a number of ours differs from the paper's: each a sentence, made from stored runs alone.

A control that was not run is named as such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from walkback.report import words
from walkback.report.answer import (
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
)
from walkback.report.published import SEEDS, published, unclamped
from walkback.studies import (
    batch_size,
    border,
    feedback_draw,
    five_rule,
    penalty,
    penalty_reduction,
    schedule,
    stem,
)
from walkback.studies.answers import Answers
from walkback.studies.point import Point

ALPHA = 0.05
T_975 = 4.303  # Student's 97.5 % point with two degrees of freedom: three seeds and nothing else


def ep_against_frozen() -> str:
    """The paper's own EP row under D3: below its frozen baseline, yet called trustworthy."""
    ep, frozen = published("ep", "accuracy"), published("frozen", "accuracy")
    assert ep is not None and frozen is not None and ep.sd is not None and frozen.sd is not None
    gain = ep.value - frozen.value
    reach = T_975 * math.hypot(ep.sd, frozen.sd) / math.sqrt(SEEDS)
    low, high = map(words.points, (gain - reach, gain + reach))
    return (
        f"The paper's EP ({ep.text}) lies under its own frozen blocks ({frozen.text}), by "
        f"{words.points(-gain).lstrip('+')} pp: the point rule of D3 fires on a row that the paper calls "
        f"trustworthy. Over its three seeds the gain lies in [{low}, {high}] pp (95 %), which leaves it "
        "INCONCLUSIVE."
    )


def weak_penalty(answers: Answers) -> str:
    """Whether the smaller penalty gives back a sound scale alone, or a direction too."""
    without, weak = answers.of(penalty.ARM, penalty.RULES["dfa"][:2])
    if not weak.runs:
        return f"What {weak.name} does to scale and direction: {NOT_RUN} (walkback audit penalty)."
    asked = [
        (f"Under {weak.name}", weak),
        ("Without the penalty", without),
        ("With a border of the mean colour", answers.one(border.SHORT, penalty.RULES["dfa"][1])),
        *_reductions(answers, penalty.WEIGHTS[0]),
    ]
    told = " ".join(
        f"{name} ‖h_L‖ is {words.number(_mean(answer, STATE))}, the exact deep cosine "
        f"{words.cosine(_mean(answer, EXACT))}{_outside(answer)}."
        for name, answer in asked
        if answer.runs
    )
    return f"A weak penalty could relieve the scale and leave the direction where it was. {told}"


def stem_effect(answers: Answers) -> str:
    """What DFA's blocks are worth under each stem, one and the same question asked twice."""
    told = ["Whether DFA's blocks are worth training is asked under two stems."]
    for name, rules in (("backprop", (stem.BP_STEM, "frozen")), ("DFA", ("dfa", stem.DFA_STEM))):
        trained, frozen = answers.of(stem.ARM, rules)
        told.append(_effect(f"Training them under a {name} stem", trained, frozen, "stem", "stem"))
    return " ".join(told)


def border_effect(answers: Answers) -> str:
    """What DFA is walked back for under each border: the scale is the input's doing too."""
    told = ["The border of crops may change what a rule is walked back for."]
    for arm, usual in ((border.SHORT, penalty.ARM), (border.LONG, five_rule.ARM)):
        both = answers.without_and_with(usual, "dfa", arm)
        if all(answer.runs for answer in both):
            sides = "; ".join(
                f"{name}: {answer.verdict}, ‖h_L‖ {words.number(_mean(answer, STATE))}"
                for name, answer in zip(border.BORDERS, both, strict=True)
            )
            seeds = words.plural(len(both[1].runs), "seed")
            told.append(f"DFA after {both[1].spec['epochs']} epochs ({seeds}): {sides}.")
    return " ".join(told) if len(told) > 1 else f"The border of crops under DFA: {NOT_RUN}."


def _outside(answer: Answer) -> str:
    """`, with 3 of 4 layers outside the null of fresh feedback`, counted over seeds."""
    ranks = [
        run.number("alignment.null_p@1", layer)
        for run in answer.runs
        for layer in run.measurements.layers(run.epoch)[1:]
    ]
    known = [p for p in ranks if p is not None]
    if not known:
        return ""
    outside, seeds = sum(p <= ALPHA for p in known), len(answer.runs)
    over = f" over {seeds} seeds" if seeds > 1 else ""
    return (
        f", with {outside} of {len(known)} layers{over} outside the null of fresh feedback (p ≤ {ALPHA:g})"
    )


def of_recipes(answers: Answers, rule: str) -> str:
    """What schedule, batch size and length are worth, each by a run that changes it alone."""
    main, short = answers.one(five_rule.ARM, rule), answers.one(penalty.ARM, rule)
    constant, twice = answers.one(schedule.ARM, rule), answers.one(batch_size.ARM, rule)
    return " ".join(
        (
            _effect("A constant rate", constant, main, "schedule", "five-rule"),
            _effect("Twice the batch", twice, short, "batch-size", "penalty"),
            _border(answers, rule),
            _effect("Less training", short, main, "penalty", "five-rule"),
            _best_epoch(main),
            _on_the_way(main, rule),
        )
    ).rstrip()


def _border(answers: Answers, rule: str) -> str:
    """The colour around crops, at both lengths."""
    lengths = ((border.SHORT, penalty.ARM, "penalty"), (border.LONG, five_rule.ARM, "five-rule"))
    told = (
        _effect(
            "A border of the mean colour", answers.one(arm, rule), answers.one(usual, rule), "border", main
        )
        for arm, usual, main in lengths
    )
    return " ".join(dict.fromkeys(told))


def _best_epoch(answer: Answer) -> str:
    """What another checkpoint rule would have printed: ours is the last epoch, the paper's is not known."""
    last = [run.accuracy for run in answer.runs]
    tables = [run.measurements for run in answer.runs]
    known = [[t.number("accuracy.test@1", epoch) for epoch in t.epochs] for t in tables]
    best = [max((a for a in seen if a is not None), default=None) for seen in known]
    mean, top = words.mean_of(last), words.mean_of(best)
    if mean is None or top is None:
        return ""
    told, tops = (", ".join(_fine(a) for a in some if a is not None) for some in (last, best))
    return (
        f"Seed by seed the last epoch gives {told}; the best one, chosen on the test split, {tops}: "
        f"{words.points(top - mean)} pp."
    )


def _on_the_way(answer: Answer, rule: str) -> str:
    """Accuracy need not only rise: whether a shorter run would have printed the paper's number."""
    paper, tables = published(rule, "accuracy"), [run.measurements for run in answer.runs]
    if paper is None or not tables:
        return ""
    shared = set.intersection(*(set(table.epochs) for table in tables)) - {0}
    means = {e: words.mean_of([t.number("accuracy.test@1", e) for t in tables]) for e in sorted(shared)}
    return passages({e: mean for e, mean in means.items() if mean is not None}, paper.value)


def passages(curve: Mapping[int, float], number: float) -> str:
    """Where a curve over epochs is lowest and highest, and when it goes past a number."""
    if len(curve) < 2:
        return ""
    low, high = (extreme(curve, key=curve.__getitem__) for extreme in (min, max))
    told = (
        f"From the first epoch on, the mean over seeds is lowest after {low} ({_fine(curve[low])}) and "
        f"highest after {high} ({_fine(curve[high])})"
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
    study, main = feedback_draw.STUDY.name, penalty.STUDY.name
    effects = [
        _effect(f"In seed {seed} {answers.of(arm)[0].name}", answers.of(arm)[0], usual, study, main)
        for seed, arm in feedback_draw.ARMS.items()
    ]
    return " ".join((*effects, feedback_draw.statement(answers))).rstrip()


def of_frozen(answers: Answers) -> str:
    dfa_stem, bp_stem = answers.of(stem.ARM, (stem.DFA_STEM, "frozen"))
    untrained, trained = answers.of(five_rule.ARM, ("shallow", "frozen"))
    return " ".join(
        (
            of_recipes(answers, "frozen"),
            _effect("A stem trained by DFA", dfa_stem, bp_stem, "stem", "stem"),
            _effect("A stem that is not trained (shallow)", untrained, trained, "five-rule", "five-rule"),
        )
    )


def _effect(change: str, changed: Answer, main: Answer, study: str, main_study: str) -> str:
    """Accuracy with a change against the same without it, over the seeds that both have."""
    if changed.runs and not main.runs:
        return f"{change}: run, but not what it is compared with (walkback audit {main_study})."
    theirs = {run.seed: run.accuracy for run in main.runs}
    pairs = [
        (run.accuracy, theirs[run.seed])
        for run in changed.runs
        if run.accuracy is not None and theirs.get(run.seed) is not None
    ]
    if not pairs:
        return f"{change}: {NOT_RUN} (walkback audit {study} decides it)."
    one, other = (words.mean_of([pair[side] for pair in pairs]) for side in (0, 1))
    assert one is not None and other is not None
    epochs = " instead of ".join(
        str(n) for n in dict.fromkeys((changed.spec["epochs"], main.spec["epochs"]))
    )
    return (
        f"{change} gives {_fine(one)} instead of {_fine(other)} after {epochs} "
        f"epochs ({words.plural(len(pairs), 'seed')}): {words.points(one - other)} pp."
    )


def _fine(share: float) -> str:
    """With one digit more than tables have, so that a reader's subtraction gives the difference."""
    return f"{share:.4f}".removeprefix("0")


def of_solver(solved: Answer, few_step: Answer, bp: Answer) -> str:
    """Settled EP against backprop, and hurried EP against settled: whether the solver is the difference."""
    study = "bridges-and-ep"
    settled = _effect("EP that settles in place of backprop", solved, bp, study, study)
    hurried = _effect("A few steps of descent in place of settling", few_step, solved, study, study)
    return f"{settled} {hurried} {ep_against_frozen()}"


def of_settling(ep: Answer, few_step: Answer) -> str:
    """Γ where the states come to rest, and where they do not: which of the two the paper's is like."""
    residual = words.mean_of([run.number("settling.residual@1") for run in ep.runs])
    if residual is None:
        return ""
    settled = (
        f"Where the states come to rest the credit is the gradient; residual {words.number(residual)}."
    )
    hurried, left = _mean(few_step, GAMMA), [run.number("settling.residual@1") for run in few_step.runs]
    if hurried is None:
        return settled
    moving = words.number(words.mean_of(left))
    return f"{settled} After a few steps of descent Γ is {words.cosine(hurried)}; residual {moving}."


def of_layer_0(dfa: Answer) -> str:
    """How much of Γ is layer 0."""
    whole, deep = _mean(dfa, GAMMA), _mean(dfa, CLAMPED)
    if whole is None or deep is None:
        return ""
    return f"Without layer 0 the mean clamped cosine is {words.cosine(deep)}, not {words.cosine(whole)}."


def of_gamma(bp: Answer) -> str:
    """Backprop's exact cosine is 1 by definition: what it lacks, the clamp took."""
    exact = _mean(bp, EXACT)
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
    read = [_mean(answer, _at(layer)) for layer in layers]
    if None in read:
        return ""
    deeper = words.mean_of(read[1:])
    listed = ", ".join(words.cosine(value) for value in read)
    return f"Layers 1 to {len(read)}, clamped: {listed}; {words.cosine(deeper)} without the first."


def _at(layer: int) -> Measure:
    return Measure(f"layer {layer}", "", at_layer("alignment.cosine_compat@1", layer), words.cosine)


def of_scale(answers: Answers) -> str:
    changed = answers.one(schedule.ARM, "dfa")
    norm = _mean(changed, STATE)
    if norm is None:
        return f"The scale grows with the sum of rates. Constant rate: {NOT_RUN} (walkback audit schedule)."
    seeds = _by_seed(answers.one(five_rule.ARM, "dfa"), STATE)
    return f"The scale grows with the sum of rates: at a constant rate it is {words.number(norm)}.{seeds}"


def of_batch(answer: Answer) -> str:
    """The mean-reduced norm by another batch: the same gradients, divided by another count."""
    norm = _mean(answer, REFERENCE)
    if norm is None:
        return ""
    rows = answer.bundles[0].card["measured"]["batch"]
    others = (f"over {batch} {words.number(norm * rows / batch)}" for batch in (256, 128))
    told = f"Mean-reduced over {rows} rows; {', '.join(others)}. The paper does not say how many it took."
    return told + _by_seed(answer, REFERENCE)


def _by_seed(answer: Answer, measure: Measure) -> str:
    """A mean over seeds that differ by powers of ten is the largest of them."""
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
    clamped, exact = _mean(answer, CLAMPED), _mean(answer, EXACT)
    if clamped is None or exact is None:
        return said
    return f"{said} Ours: {words.cosine(clamped)} clamped, {words.cosine(exact)} exact."


def of_reductions(answers: Answers, measure: Measure) -> str:
    """A number of the penalised net under the other readings of what its penalty is averaged over."""
    return " ".join(
        f"{told}: {point.measured}, {point.standing}."
        if point.answer.runs
        else f"{told}: {NOT_RUN} (walkback audit penalty-reduction decides it)."
        for told, answer in _reductions(answers, penalty.WEIGHTS[-1])
        for point in [_penalised(answers, answer, measure)]
    )


def penalty_readings(answers: Answers) -> str:
    """How many of the paper's numbers for the penalised net each reading of the penalty gives."""
    measures = (REFERENCE, CLAMPED, RHO, STATE)
    told = []
    for reading in penalty_reduction.READINGS:
        answer = penalty_reduction.read_as(answers, penalty.WEIGHTS[-1], reading)
        standings = [_penalised(answers, answer, measure).standing for measure in measures]
        seeds = words.plural(len(answer.runs), "seed")
        agree = f"{standings.count('agrees')} agree ({seeds})" if answer.runs else NOT_RUN
        told.append(f"{reading}: {agree}")
    names = "; ".join(measure.header for measure in measures)
    return (
        f"What a penalty is summed and averaged over decides what it does. Of the paper's {len(measures)} "
        f"numbers for the penalised net ({names}), over features: {'; '.join(told)}."
    )


def _penalised(answers: Answers, answer: Answer, measure: Measure) -> Point:
    """A number of the paper's penalised net beside an answer's."""
    row = penalty_reduction.read_as(answers, penalty.WEIGHTS[-1], penalty_reduction.SUMMED).name
    paper = published(row, measure.paper)
    assert paper is not None, (row, measure.paper)
    return Point(row, paper, answer, measure)


def _reductions(answers: Answers, weight: str) -> list[tuple[str, Answer]]:
    readings = {
        penalty_reduction.AVERAGED: "With the penalty averaged over features",
        penalty_reduction.ERROR_SUMMED: "With the error summed over the batch besides",
    }
    return [(told, penalty_reduction.read_as(answers, weight, by)) for by, told in readings.items()]


def of_rho(answer: Answer) -> str:
    ceiling = _mean(answer, CEILING)
    if ceiling is None:
        return "Full tier not measured: walkback measure adds it." if answer.runs else ""
    return (
        f"Our step is relative to ‖h‖, and the exact gradient reaches {words.cosine(ceiling)}. The paper "
        "does not state its step; one that does not grow with ‖h‖ drowns in rounding where ‖h‖ is large."
    )


def _mean(answer: Answer, measure: Measure) -> float | None:
    return words.mean_of([measure.read(run) for run in answer.runs])
