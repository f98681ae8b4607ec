"""What must be said beside the comparison with the paper: each a sentence, made from stored runs alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from walkback.judge.thresholds import Thresholds
from walkback.report import words
from walkback.report.answer import (
    ACCURACY,
    CLAMPED,
    GAMMA,
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
    as_coded,
    border,
    controls,
    encoding,
    five_rule,
    offset,
    penalty,
    penalty_reduction,
    pixels,
    stem,
    weak_penalty,
)
from walkback.studies.answers import Answers
from walkback.studies.effect import mean, paired, seeds_of
from walkback.studies.point import Point
from walkback.studies.printed import come_out, printed
from walkback.studies.reasons import penalised
from walkback.studies.study import Arm

UNKNOWN = "not known"
LEVEL = f"{100 * (1 - 2 * Thresholds().alpha):g} %"
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
    sample, population = (
        f"[{words.points(gain - reach)}, {words.points(gain + reach)}]"
        for seeds in (SEEDS, SEEDS - 1)
        for reach in [T_975 * math.hypot(ep.sd, frozen.sd) / math.sqrt(seeds)]
    )
    return (
        f"The paper's EP ({ep.text}) lies under its own frozen blocks ({frozen.text}), by "
        f"{words.points(-gain).lstrip('+')} pp: the point rule of D3 fires on a row that the paper calls "
        f"trustworthy. Over its three seeds the gain lies in {sample} pp (95 %), or in {population} if "
        "its deviations are of a population, as the notes of its code say; either leaves it INCONCLUSIVE."
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
        f"many come out in each reading. {' '.join(told)} In the second the credit shown at a layer is not "
        "the one its block learned from. The last two were thought of after the first had missed."
    )


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
    told = []
    for name, trained, frozen in stem.contrasts(answers):
        depth, epochs = stem.worth_of(trained, frozen), trained.spec["epochs"]
        gain = penalty.gain_of(depth, trained.gap or frozen.gap or UNKNOWN)
        shown = penalty.GAIN.cell(gain)
        said = "" if depth is None else f" pp (D3 {words.fires(depth)})"
        told.append(f"a stem trained by {name}, {epochs} epochs: {shown}{said}")
    return (
        "What DFA's blocks gain over frozen ones hangs on the stem that both stand on, and on who trained "
        f"it: {'; '.join(told)}."
    )


def border_effect(answers: Answers) -> str:
    """What each border makes of the rules: the scale is the input's doing too."""
    change = "a border of the mean colour changes, in place of a black one"
    arms = border.SHORT, border.LONG
    told = _changed_verdicts(answers, arms, "The border of crops", change)
    return f"{told} {_coming_out(answers, border.LONG, 'each border', border.BORDERS)}".rstrip()


def encoding_effect(answers: Answers) -> str:
    """Whether anything hangs on how the images were coded."""
    if encoding.nothing_to_compare(answers):
        return "Lossless images: those that all runs were trained on are, so there is nothing to compare."
    change = f"{encoding.LOSSLESS} changes, in place of {encoding.IMAGES[0]}"
    arms = encoding.SHORT, encoding.LONG
    told = _changed_verdicts(answers, arms, "Lossless images", change)
    return f"{told} {_coming_out(answers, encoding.LONG, 'either kind of image', encoding.IMAGES)}".rstrip()


def pixels_effect(answers: Answers) -> str:
    """What normalising the input makes of verdicts."""
    change = "pixels in 0…1 change, in place of normalised ones"
    return _changed_verdicts(answers, (pixels.ARM,), "Pixels that are not normalised", change)


def _changed_verdicts(answers: Answers, arms: Sequence[Arm], subject: str, changes: str) -> str:
    """Verdicts that another input changes, at either length."""
    if not any(answer.runs for arm in arms for answer in answers.of(arm)):
        return f"{subject}: {NOT_RUN}."
    told, missing = [], []
    for arm, usual in zip(arms, (penalty.ARM, five_rule.ARM), strict=False):
        for rule in arm.rules:
            both = answers.without_and_with(usual, rule, arm)
            length = f"{arm.recipe['epochs']} epochs"
            if not all(answer.runs for answer in both):
                missing.append(f"{both[1].name} for {length}")
            elif both[0].verdict != both[1].verdict:
                sides = " instead of ".join(
                    f"{a.verdict} (‖h_L‖ {_size(a)}{_gained(a)})" for a in reversed(both)
                )
                told.append(f"{both[1].name} after {length} ({seeds_of(both[1])}): {sides}")
    change = "; ".join(told) if told else "none"
    if missing:
        change += f" (not there with both: {', '.join(missing)})"
    return f"Verdicts that {changes}: {change}. One seed is judged by the point rule, two points."


def _coming_out(answers: Answers, arm: Arm, with_which: str, values: tuple[str, str]) -> str:
    """How many of the paper's numbers come out with either input at the paper's length."""
    if not any(answer.runs for answer in answers.of(arm)):
        return ""
    known = words.listed([rule for rule in arm.rules if published(rule, ACCURACY.paper)])
    sides = [(name, _after_long(answers, arm, side)) for side, name in enumerate(values)]
    agreeing = "; ".join(
        f"{name}: {come_out(points)}; accuracies among them: {words.listed(_accuracies(points))}"
        for name, points in sides
    )
    return (
        f"Of the {len(sides[0][1])} numbers that the paper prints of {known}, without ρ, so many come out "
        f"with {with_which} after {arm.recipe['epochs']} epochs. {agreeing}."
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
    accuracies = [point for point in points if point.measure is ACCURACY]
    return [p.what if p.agrees else f"{p.what} ({p.standing})" for p in accuracies if p.agrees or p.near]


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
        f"D3 is open where its {LEVEL} interval holds the threshold of two points, though every seed may "
        f"lie on one side of it. Seed by seed, {'; '.join(told)}.{lost}"
    )


def status_quo(answers: Answers) -> str:
    """A Γ above zero asks for so little that noise gives it."""
    told = []
    for answer in five_rule.counted(answers):
        read = [GAMMA.read(run) for run in answer.runs]
        centre = words.mean_of(read)
        if centre is not None and centre <= 0 and five_rule.decided(answer)["quo"] == "trustworthy":
            seeds = ", ".join(f"{value:+.5f}".replace("-", "−") for value in read if value is not None)
            told.append(f"{answer.name}, seed by seed {seeds}, mean {words.cosine(centre)}")
    if not told:
        return "No rule is trusted by the status quo whose mean Γ is not above zero."
    return (
        "Beside an accuracy above chance the status quo asks only for a positive Γ, each in two thirds of "
        "the seeds, and noise gives that Γ: "
        f"{'; '.join(told)}."
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
    """`3 seeds; p ≤ 0.05, two-sided: above fresh feedback in 4 and below it in 2 of 12 readings`."""
    beyond = controls.outside(answer, layers)
    return (
        f"{seeds_of(answer)}; p ≤ {controls.ALPHA:g}, two-sided: {beyond}" if beyond else seeds_of(answer)
    )


FINDINGS: dict[str, Callable[[Answers], str]] = {
    "EP in the paper": lambda answers: ep_against_frozen(),
    "the public code": as_coded.finding,
    "what an index hides": as_coded.hidden_by_the_index,
    "layer 1": first_deep_layer,
    "readings of the penalty": penalty_readings,
    "layers of the penalised net": penalty_layers,
    "the index of a credit": index_readings,
    "the weak penalty": weak_penalty.statement,
    "baselines of the penalty": penalty_baselines,
    "the stem": stem_effect,
    "the border": border_effect,
    "the encoding": encoding_effect,
    "the input's scale": pixels_effect,
    "the status quo": status_quo,
    "what decides": depth_decides,
    "what is open": open_depth,
}
