"""What must be said beside the comparison with the paper: each a sentence, made from stored runs alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from walkback.report import words
from walkback.report.answer import (
    ACCURACY,
    CLAMPED,
    EXACT,
    NOT_RUN,
    REFERENCE,
    RHO,
    STATE,
    Answer,
    Measure,
    at_layer,
    gap_of,
)
from walkback.report.published import SEEDS, published
from walkback.report.table import Column, Table
from walkback.studies import (
    border,
    controls,
    encoding,
    five_rule,
    offset,
    penalty,
    penalty_reduction,
    pixels,
    schedule,
    stem,
)
from walkback.studies.answers import Answers
from walkback.studies.effect import Control, mean, paired, seeds_of
from walkback.studies.point import AGREES, BY_SPREAD, Point
from walkback.studies.printed import come_out, printed
from walkback.studies.reasons import penalised, reductions
from walkback.studies.study import Arm

ALPHA, UNKNOWN = 0.05, "not known"
T_975 = 4.303  # Student's 97.5 % point with two degrees of freedom: three seeds and nothing else


def findings_table(answers: Answers) -> Table:
    """One row per finding, so that the command that makes the tables makes these sentences too."""
    columns = tuple(Column(name, (name,), numeric=False) for name in ("about", "finding"))
    rows = tuple({"about": about, "finding": say(answers)} for about, say in FINDINGS.items())
    caption = "What the comparison with the paper does not show by itself."
    return Table("findings", caption, columns, ("about", "finding"), rows)


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


def first_deep_layer(answers: Answers) -> str:
    """A mean over deep layers can be one of them."""
    dfa = answers.one(controls.LONG, "dfa")
    exact = [_at("alignment.cosine@1", layer) for layer in range(1, five_rule.DEPTH + 1)]
    first, *others = (mean(dfa, measure) for measure in exact)
    if first is None or None in others:
        return f"How DFA's deep cosine is spread over layers: {dfa.gap or UNKNOWN}."
    early = mean(dfa.at(1), exact[0])
    begins = "" if early is None else f", and {words.cosine(early)} after the first epoch"
    rest = words.listed([words.cosine(value) for value in others])
    below = _outside(dfa, range(2, five_rule.DEPTH + 1))
    paper = published("dfa", five_rule.DEEP.paper)
    assert paper is not None and paper.seed is not None
    own = dfa.of_seeds({paper.seed})
    clamped = [
        words.cosine(mean(own, _at("alignment.cosine_compat@1", layer)))
        for layer in range(1, five_rule.DEPTH + 1)
    ]
    read = f"; so read, ours of that seed are {words.listed(clamped)}" if own.runs else ""
    return (
        "A mean over deep layers can be one of them. DFA's exact cosine at layer 1 is "
        f"{words.cosine(first)} after {dfa.spec['epochs']} epochs ({_outside(dfa, [1])}{begins}); at "
        f"layers 2 to {five_rule.DEPTH} it is {rest} ({below}). The paper gives {paper.text} for all of "
        f"them, as a library reads them{read}."
    )


def penalty_readings(answers: Answers) -> str:
    """How many of the paper's numbers for the penalised net each reading of the penalty gives."""
    measures = (REFERENCE, CLAMPED, RHO, STATE)
    told = []
    for reading in penalty_reduction.READINGS:
        answer = penalty_reduction.read_as(answers, penalty.WEIGHTS[-1], reading)
        points = [penalised(answers, answer, measure) for measure in measures]
        told.append(f"{reading}: {come_out(points)}")
    names = "; ".join(measure.header for measure in measures)
    return (
        "The paper does not say what its penalty is summed and averaged over. So many of its "
        f"{len(measures)} numbers for the penalised net ({names}) come out, by what is done over features: "
        f"{'; '.join(told)}. The last two readings were thought of after the others had missed the numbers."
    )


def penalty_layers(answers: Answers) -> str:
    """Whether the penalised net has a direction below its first block depends on that reading too."""
    told = []
    deeper = range(2, five_rule.DEPTH + 1)
    for reading in penalty_reduction.READINGS:
        answer = penalty_reduction.read_as(answers, penalty.WEIGHTS[-1], reading)
        cosines = [mean(answer, _at("alignment.cosine@1", n)) for n in (1, *deeper)]
        rest = words.mean_of(cosines[1:])
        if cosines[0] is None or rest is None:
            told.append(f"{reading}: {answer.gap or UNKNOWN}")
            continue
        told.append(
            f"{reading}: {words.cosine(cosines[0])} and {words.cosine(rest)} ({_outside(answer, deeper)})"
        )
    return (
        "Whether the penalised net has a direction in all deep layers depends on that too. Its exact "
        f"cosine at layer 1, and the mean of layers 2 to {five_rule.DEPTH}, by what is done over features: "
        f"{'; '.join(told)}."
    )


def index_readings(answers: Answers) -> str:
    """How many of the numbers that the paper prints of DFA each reading of an index gives."""
    told = [
        f"{name}: {come_out(offset.points(answers, reading))}." for reading, name in offset.NAMES.items()
    ]
    count = len(offset.points(answers, offset.OWN))
    return (
        "The paper does not say whether a block learns by the credit of the state it makes or of the one "
        f"it reads, nor which of the two is diagnosed. Of the {count} numbers that it prints of DFA, so "
        f"many come out. {' '.join(told)} In the second case no deep layer is diagnosed by the credit that "
        "trained it. The last two were thought of after the first had missed."
    )


def weak_penalty(answers: Answers) -> str:
    """Whether the smaller penalty gives back a sound scale alone, or a direction too."""
    weak_rule = penalty.RULES["dfa"][1]
    without, weak = answers.of(penalty.ARM, ("dfa", weak_rule))
    if not weak.runs:
        return f"What {weak.name} does to scale and direction: {weak.gap} (walkback audit penalty)."
    asked = [
        (f"Under {weak.name}", weak),
        ("Without the penalty", without),
        ("Under it, with a border of the mean colour", answers.one(border.SHORT, weak_rule)),
        ("Under it, on lossless images", answers.one(encoding.SHORT, weak_rule)),
        ("Under it, on pixels that are not normalised", answers.one(pixels.ARM, weak_rule)),
        ("Under it, at a constant rate", answers.one(schedule.SHORT, weak_rule)),
        *reductions(answers, penalty.WEIGHTS[0]),
        (
            "Under it, with an index that is off by one",
            offset.read_as(answers, offset.WEAK, offset.LABEL),
        ),
    ]
    deep = range(1, five_rule.DEPTH + 1)
    told = " ".join(
        f"{name}, ‖h_L‖ is {words.number(mean(answer, STATE))}, the exact deep cosine "
        f"{words.cosine(mean(answer, EXACT))} ({_outside(answer, deep)})."
        for name, answer in asked
        if answer.runs
    )
    return f"What the weak penalty does to the scale, and what to the direction. {told}"


def penalty_baselines(answers: Answers) -> str:
    """The penalised nets beside two baselines: frozen blocks need not be the better one."""
    frozen, shallow = answers.one(stem.ARM, "frozen"), answers.one(stem.ARM, "shallow")
    means = [mean(answer.beside(shallow), ACCURACY) for answer in (frozen, shallow)]
    if None in means or not shallow.runs:
        return f"The penalised nets beside a net of which the head alone learns: {NOT_RUN}."
    told = []
    for answer in answers.of(penalty.ARM, penalty.RULES["dfa"]):
        over = [_gain(answer, baseline) for baseline in (frozen.beside(shallow), shallow)]
        if None not in over:
            told.append(f"{answer.name} gains {over[0]} pp over frozen blocks and {over[1]} over the head")
    both = " and ".join(words.share(value) for value in means)
    return (
        f"Which baseline it is matters after {frozen.spec['epochs']} epochs: frozen blocks and a head that "
        f"learns alone reach {both} ({seeds_of(shallow)}). {'; '.join(told)}. D3 asks for frozen blocks, "
        "and for two points."
    )


def stem_effect(answers: Answers) -> str:
    """What DFA's blocks are worth under each stem, one and the same question asked twice."""
    told = ["Whether DFA's blocks are worth training is asked under two stems."]
    for name, rules in (("backprop", (stem.BP_STEM, "frozen")), ("DFA", ("dfa", stem.DFA_STEM))):
        trained, frozen = answers.of(stem.ARM, rules)
        told.append(Control(f"Training them under a {name} stem", trained, frozen, "stem", "stem").told())
    return " ".join(told)


def border_effect(answers: Answers) -> str:
    """What each border makes of the rules: the scale is the input's doing too."""
    change = "a border of the mean colour changes, in place of a black one"
    arms = border.SHORT, border.LONG
    return _input_effect(answers, arms, "The border of crops", change, "each border", border.BORDERS)


def encoding_effect(answers: Answers) -> str:
    """Whether anything hangs on how the images were coded."""
    if encoding.nothing_to_compare(answers):
        return "Lossless images: those that all runs were trained on are, so there is nothing to compare."
    change = f"{encoding.LOSSLESS} changes, in place of {encoding.IMAGES[0]}"
    arms = encoding.SHORT, encoding.LONG
    return _input_effect(answers, arms, "Lossless images", change, "either kind of image", encoding.IMAGES)


def _input_effect(
    answers: Answers,
    arms: tuple[Arm, Arm],
    subject: str,
    changes: str,
    with_which: str,
    values: tuple[str, str],
) -> str:
    """Verdicts that another input changes, at either length, and what comes out with each at the longer."""
    told, missing = [], []
    for arm, usual in zip(arms, (penalty.ARM, five_rule.ARM), strict=True):
        for rule in arm.rules:
            both = answers.without_and_with(usual, rule, arm)
            if not all(answer.runs for answer in both):
                missing.append(f"{both[1].name} for {arm.recipe['epochs']} epochs")
            elif both[0].verdict != both[1].verdict:
                sides = " instead of ".join(
                    f"{a.verdict} (‖h_L‖ {_size(a)}{_gained(a)})" for a in reversed(both)
                )
                told.append(
                    f"{both[1].name} after {arm.recipe['epochs']} epochs ({seeds_of(both[1])}): {sides}"
                )
    if not any(answer.runs for arm in arms for answer in answers.of(arm)):
        return f"{subject}: {NOT_RUN}."
    change = "; ".join(told) if told else "none"
    if missing:
        change += f" (not there with both: {', '.join(missing)})"
    agreeing = [
        f"{name}: {come_out(points)}, among them of accuracies {words.listed(_accuracies(points))}"
        for side, name in enumerate(values)
        for points in [_after_long(answers, arms[1], side)]
    ]
    known = words.listed([rule for rule in arms[1].rules if published(rule, ACCURACY.paper)])
    return (
        f"Verdicts that {changes}: {change}. One seed is judged by the point rule, two points. So many "
        f"of the numbers that the paper prints of {known}, without ρ, come out with {with_which} after "
        f"{arms[1].recipe['epochs']} epochs: {'; '.join(agreeing)}."
    )


def _gained(answer: Answer) -> str:
    gain = penalty.depth_of(answer)["gain"]
    return "" if gain is None else f", gain {words.points(gain)} pp"


def _after_long(answers: Answers, changed: Arm, side: int) -> list[Point]:
    """The paper's numbers of whole rules, at their first epoch and at their last, beside those without (0)
    or with (1) a change, over the seeds of the change."""

    def answer_of(row: str) -> Answer | None:
        rule, _, when = row.partition(", ")
        if rule not in changed.rules:
            return None
        answer = answers.without_and_with(five_rule.ARM, rule, changed)[side]
        return answer.at(1) if when == "epoch 1" else answer

    return [point for point in printed(answer_of) if point.measure is not RHO]


def _accuracies(points: Sequence[Point]) -> list[str]:
    agreeing = [point for point in points if point.measure is ACCURACY and point.agrees]
    return [p.what if p.standing == AGREES else f"{p.what} ({BY_SPREAD})" for p in agreeing]


def depth_decides(answers: Answers) -> str:
    """How many rules of Table 1 fail, and how many of those without D3 too."""
    judged = [a.artifact for a in five_rule.counted(answers) if a.artifact]
    failed = [item for item in judged if item.verdict.verdict.startswith("FAIL")]
    if not judged:
        return f"Which detector decides: {gap_of(five_rule.counted(answers))}."
    fires = [{reason.check for reason in item.verdict.reasons if reason.fires} for item in failed]
    scale = sum({"D1", "D2"} <= checks for checks in fires)
    depth = sum("D3" in checks for checks in fires)
    return (
        f"Of the {len(judged)} rules of Table 1 that were run, {len(failed)} fail by logic artifact: "
        f"{depth} by D3, {scale} by D1 and D2. Where D3 fires too, D1 and D2 change no verdict; they tell "
        "why the cosine is not to be believed."
    )


def open_depth(answers: Answers) -> str:
    """The rules of Table 1 of which depth is not decided, with what each seed gains."""
    judged = [(a, a.artifact.verdict.reasons[2]) for a in five_rule.counted(answers) if a.artifact]
    if not judged:
        return f"Whether depth is decided: {gap_of(five_rule.counted(answers))}."
    told, unknown = [], []
    for answer, depth in judged:
        if depth.fires is None and depth.status != "open":
            unknown.append(answer.name)
        if depth.status == "open" and depth.interval is not None and answer.case is not None:
            pairs = [
                (run.accuracy, base.accuracy)
                for run, base in zip(answer.runs, answer.case.baselines, strict=True)
                if base is not None
            ]
            gains = [one - other for one, other in pairs if one is not None and other is not None]
            low, high = map(words.points, depth.interval)
            told.append(f"{answer.name} gains {', '.join(map(words.points, gains))} pp ([{low}, {high}])")
    lost = f" Of {words.listed(unknown)} depth is not known." if unknown else ""
    if not told:
        rest = len(judged) - len(unknown)
        return f"Depth is decided for {rest} of the {len(judged)} rules of Table 1 that were run.{lost}"
    return (
        "Depth is left open where the interval over seeds holds the threshold of two points, though every "
        f"seed may lie on one side of it. Seed by seed, {'; '.join(told)}.{lost}"
    )


def _gain(answer: Answer, baseline: Answer) -> str | None:
    pairs = paired(answer, baseline, ACCURACY)
    gain = words.mean_of([one - other for one, other in pairs]) if pairs else None
    return None if gain is None else words.points(gain)


def _size(answer: Answer) -> str:
    return words.number(words.median_of([STATE.read(run) for run in answer.runs]))


def _at(quantity: str, layer: int) -> Measure:
    return Measure(f"layer {layer}", "", at_layer(quantity, layer), words.cosine)


def _outside(answer: Answer, layers: Sequence[int]) -> str:
    """`3 seeds; above fresh feedback in 4 and below it in 2 of 12 readings`: every layer of every seed.

    The rank p is two-sided, so that the side must be told: a credit that points uphill is outside too.
    """
    read = [
        (run.number("alignment.null_p@1", layer), run.number("alignment.null_z@1", layer))
        for run in answer.runs
        for layer in layers
    ]
    known = [(p, z) for p, z in read if p is not None and z is not None]
    if not known:
        return seeds_of(answer)
    above, below = (sum(p <= ALPHA and side * z > 0 for p, z in known) for side in (1, -1))
    beneath = f" and below it in {below}" * bool(below)
    return (
        f"{seeds_of(answer)}; p ≤ {ALPHA:g}, two-sided: above fresh feedback in {above}{beneath} of "
        f"{len(known)} readings"
    )


FINDINGS: dict[str, Callable[[Answers], str]] = {
    "EP in the paper": lambda answers: ep_against_frozen(),
    "layer 1": first_deep_layer,
    "readings of the penalty": penalty_readings,
    "layers of the penalised net": penalty_layers,
    "the index of a credit": index_readings,
    "the weak penalty": weak_penalty,
    "baselines of the penalty": penalty_baselines,
    "the stem": stem_effect,
    "the border": border_effect,
    "the encoding": encoding_effect,
    "what decides": depth_decides,
    "what is open": open_depth,
}
