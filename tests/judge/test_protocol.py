"""The verdict logic over every combination of known and unknown detectors, and what each detector does."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from walkback.core.errors import BadInput
from walkback.core.quantities import Measurements
from walkback.core.verdict import Outcome, Reason
from walkback.judge import Evidence, Thresholds, judge
from walkback.judge.ablate import decisions
from walkback.judge.assemble import Judged
from walkback.judge.protocol import decide

LAYERS = 3
TRIPLES = list(itertools.product([True, False, None], repeat=3))


def evidence(
    *,
    growth=2.0,
    validity=1e-3,
    compat=1e-5,
    accuracy=0.9,
    items=400,
    seed=0,
    split="s",
    label="dfa",
    **more,
):
    """A run with the given readings; `accuracy` of `items` test items are right, spread evenly."""
    table = Measurements()
    for layer in range(LAYERS):
        table.add(5, "scale.state_norm@1", 10.0 * (layer + 1), layer)
        table.add(5, "reference.norm@1", 0.1, layer)
        table.add(5, "alignment.cosine@1", 0.3, layer)
        table.add(5, "alignment.cosine_compat@1", 0.2, layer)
        table.add(5, "alignment.n_valid@1", 512, layer)
        if layer:
            table.add(5, "scale.growth@1", growth if layer == 2 else 1.0, layer)
    for quantity, value in {
        "scale.growth_max@1": growth,
        "scale.growth_total@1": growth,
        "reference.validity@1": validity,
        "reference.compat@1": compat,
        "reference.unit_probe@1": min(1.0, compat / 1e-8),
        "reference.float64_relerr@1": 1e-6,
        "alignment.deep_cosine@1": 0.3,
        "alignment.gamma_mean@1": 0.2,
    }.items():
        if value is not None:
            table.add(5, quantity, value)
    correct = None if items == 0 else np.random.default_rng(seed).permutation(items) < accuracy * items
    fields = {
        "label": label,
        "measurements": table,
        "epoch": 5,
        "seed": seed,
        "classes": 10,
        "split": split,
    }
    return Evidence(**{**fields, "accuracy": accuracy, "correct": correct, **more})


def frozen(accuracy=0.7, **more):
    return evidence(label="frozen", accuracy=accuracy, role="baseline", **more)


def reason(check, fires, status="ok"):
    return Reason(check, check, fires, 0.0, 1.0, "", status if fires is None else "ok")


@pytest.mark.parametrize("d1, d2, d3", TRIPLES)
def test_artifact_logic_fails_on_d1_and_d2_or_d3_and_passes_only_if_all_is_known(d1, d2, d3):
    outcome, words = decide(
        [reason("D1", d1, "missing"), reason("D2", d2, "missing"), reason("D3", d3, "missing")], "artifact"
    )
    known = [(a, b, c) for a in _worlds(d1) for b in _worlds(d2) for c in _worlds(d3)]
    fails = {(a and b) or c for a, b, c in known}
    if fails == {True}:
        assert outcome is Outcome.FAIL
        named = (["D1", "D2"] if d1 and d2 else []) + (["D3"] if d3 else [])
        assert words == f"FAIL({'+'.join(named)})"
    elif None not in (d1, d2, d3):
        assert (outcome, words) == (Outcome.PASS, "PASS")
    else:
        unknown = [
            name for name, fires in zip(("D1", "D2", "D3"), (d1, d2, d3), strict=True) if fires is None
        ]
        assert (outcome, words) == (Outcome.INCOMPLETE, f"INCOMPLETE({'+'.join(unknown)})")


@pytest.mark.parametrize("d1, d2, d3", TRIPLES)
def test_paper_logic_lets_each_detector_suffice(d1, d2, d3):
    outcome, words = decide(
        [reason("D1", d1, "open"), reason("D2", d2, "open"), reason("D3", d3, "open")], "paper"
    )
    fails = {a or b or c for a in _worlds(d1) for b in _worlds(d2) for c in _worlds(d3)}
    if fails == {True}:
        assert (outcome, words) == (Outcome.FAIL, "walked back")
    elif fails == {False}:
        assert (outcome, words) == (Outcome.PASS, "trustworthy")
    else:
        assert outcome is Outcome.INCONCLUSIVE


def _worlds(state):
    return [True, False] if state is None else [state]


def test_without_a_baseline_and_with_nothing_else_failing_it_is_incomplete():
    verdict = judge([evidence()])
    assert (verdict.verdict, verdict.outcome.exit_code) == ("INCOMPLETE(D3)", 3)
    assert verdict["diagnostics"]["D3_depth_utility"]["status"] == "missing"


def test_d1_and_d2_fail_even_if_d3_was_not_measured():
    verdict = judge([evidence(growth=900.0, validity=1e-9)])
    assert verdict.verdict == "FAIL(D1+D2)"
    assert "not measured" in verdict["diagnostics"]["D3_depth_utility"]["sentence"]


def test_d1_alone_does_not_fail_the_artifact_logic_but_does_fail_the_papers():
    runs, baselines = [evidence(growth=900.0)], [frozen()]
    assert judge(runs, baselines).outcome is Outcome.PASS
    assert judge(runs, baselines, logic="paper").verdict == "walked back"


def test_paper_logic_uses_the_papers_own_number():
    runs, baselines = [evidence(validity=1e-3, compat=1e-9)], [frozen()]
    assert judge(runs, baselines).outcome is Outcome.PASS
    literal = judge(runs, baselines, logic="paper")
    assert literal.verdict == "walked back"
    assert literal["diagnostics"]["D2_ref_validity"]["detail"]["cause"] == "fit or batch size"


def test_an_unmeasured_detector_is_never_a_pass():
    for growth in (2.0, 900.0, math.nan):
        assert judge([evidence(growth=growth, validity=math.nan)], [frozen()]).outcome is Outcome.INCOMPLETE
    for validity in (1e-3, 1e-9):
        assert (
            judge([evidence(growth=math.nan, validity=validity)], [frozen()]).outcome is Outcome.INCOMPLETE
        )


def test_infinite_growth_fires_and_is_not_taken_for_missing():
    verdict = judge([evidence(growth=math.inf, validity=0.0)])
    assert verdict.verdict == "FAIL(D1+D2)"
    assert verdict["diagnostics"]["D1_scale_growth"]["status"] == "inf"


@pytest.mark.parametrize("exploded, expected", [(3, True), (2, True), (1, False), (0, False)])
def test_over_seeds_two_thirds_must_fire(exploded, expected):
    runs = [evidence(growth=900.0 if i < exploded else 2.0, seed=i) for i in range(3)]
    d1 = judge(runs)["diagnostics"]["D1_scale_growth"]
    assert (d1["fires"], d1["seeds"]) == (expected, f"{exploded}/3")


def test_a_seed_without_a_number_leaves_the_vote_open_only_if_it_matters():
    growths = [900.0, 900.0, math.nan]
    assert judge([evidence(growth=g, seed=i) for i, g in enumerate(growths)])["diagnostics"][
        "D1_scale_growth"
    ]["fires"]
    growths = [900.0, 2.0, math.nan]
    assert (
        judge([evidence(growth=g, seed=i) for i, g in enumerate(growths)])["diagnostics"][
            "D1_scale_growth"
        ]["fires"]
        is None
    )


def depth(gain, seeds, items=4000, spread=0.0):
    runs = [
        evidence(accuracy=0.7 + gain + spread * (i - 1), seed=10 + i, items=items) for i in range(seeds)
    ]
    return judge(runs, [frozen(seed=50 + i, items=items) for i in range(seeds)])


def test_d3_needs_the_whole_interval_on_one_side_once_there_are_three_seeds():
    assert depth(-0.3, 3).verdict == "FAIL(D3)"
    assert depth(0.2, 3).outcome is Outcome.PASS
    assert depth(0.02, 3, items=200).verdict == "INCONCLUSIVE(D3)"
    assert depth(0.1, 3, spread=0.1).verdict == "INCONCLUSIVE(D3)"
    assert depth(0.02, 3, items=200).outcome.exit_code == 3


def test_with_one_or_two_seeds_the_point_decides_and_the_sentence_says_so():
    verdict = depth(0.021, 1, items=1000)
    reason = verdict["diagnostics"]["D3_depth_utility"]
    assert verdict.outcome is Outcome.PASS and reason["interval"][0] < 0.02 < reason["interval"][1]
    assert "the point decides" in reason["sentence"]
    assert depth(0.01, 2, items=1000).verdict == "FAIL(D3)"


def test_an_accuracy_without_items_gives_a_point_and_no_interval():
    verdict = judge([evidence(items=0)], [frozen(items=0)])
    assert verdict["diagnostics"]["D3_depth_utility"]["interval"] is None
    assert verdict.outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": "other"}, "another net"),
        ({"split": "other"}, "tested on other items"),
        ({"trained_on": "other"}, "trained on other data"),
    ],
)
def test_an_unmatched_baseline_is_refused_not_compared(change, words):
    run = evidence(fingerprint="a", trained_on="b")
    verdict = judge([run], [frozen(**{"fingerprint": "a", "trained_on": "b", **change})])
    assert verdict.verdict == "INCOMPLETE(D3)"
    assert words in verdict["diagnostics"]["D3_depth_utility"]["sentence"]


def test_a_rule_a_diverged_run_or_another_epoch_is_no_baseline():
    trained = {"status": {"state": "finished"}}
    for baseline, words in (
        (evidence(label="fa"), "fa is not a frozen baseline"),
        (frozen(accuracy=0.0, status={"state": "diverged"}), "the baseline diverged"),
        (frozen(epoch=1, **trained), "the baseline was measured at epoch 1, the run at epoch 5"),
    ):
        verdict = judge([evidence(**trained)], [baseline])
        assert verdict.verdict == "INCOMPLETE(D3)"
        assert words in verdict["diagnostics"]["D3_depth_utility"]["sentence"]


def test_a_gain_that_is_surely_positive_but_not_surely_two_points_is_inconclusive():
    """The whole interval above zero is not enough: the margin is what decides."""
    verdict = depth(0.025, 3, items=6000)
    low, high = verdict["diagnostics"]["D3_depth_utility"]["interval"]
    assert 0 < low < 0.02 < high
    assert verdict.verdict == "INCONCLUSIVE(D3)"


def test_items_that_share_sources_widen_the_interval():
    shared = np.repeat(np.arange(10), 40)[:, None]
    rng = np.random.default_rng(0)
    right = np.repeat(rng.random(10) < 0.9, 40)
    runs = [evidence(correct=right, accuracy=float(right.mean()), sources=s) for s in (None, shared)]
    wrong = [frozen(correct=np.zeros(400, bool), accuracy=0.0, items=400)]
    narrow, wide = (judge([run], wrong)["diagnostics"]["D3_depth_utility"]["interval"] for run in runs)
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])


def test_two_seeds_give_the_interval_of_items_alone():
    runs = [evidence(accuracy=a, seed=i, items=4000) for i, a in enumerate((0.85, 0.75))]
    baselines = [frozen(seed=9, items=4000) for _ in range(2)]
    low, high = judge(runs, baselines)["diagnostics"]["D3_depth_utility"]["interval"]
    assert high - low < 0.1


def test_one_item_or_one_source_gives_a_point_not_a_crash():
    one = judge([evidence(items=1, accuracy=1.0)], [frozen(items=1, accuracy=0.0)])
    assert one["diagnostics"]["D3_depth_utility"]["interval"] is None
    source = np.zeros((400, 1), dtype=int)
    assert (
        judge([evidence(sources=source)], [frozen()])["diagnostics"]["D3_depth_utility"]["interval"] is None
    )


def test_companions_say_what_they_should():
    run = evidence(growth=900.0, validity=1e-9, compat=1e-9)
    run.measurements.add(0, "scale.state_norm@1", 2.0, 0)
    found = judge([run])["diagnostics"]
    assert found["D1_scale_growth"]["detail"]["stem_norm_against_init"] == 5.0
    detail = found["D2_ref_validity"]["detail"]
    assert (detail["cause"], detail["recoverable"], detail["unit_probe"]) == ("scale", True, 0.1)
    lost = [r._replace(value=0.5) if "float64" in r.quantity else r for r in run.measurements]
    run.measurements.readings = lost
    assert judge([run])["diagnostics"]["D2_ref_validity"]["detail"]["recoverable"] is False


def test_layers_are_medians_over_seeds_and_the_least_number_of_valid_rows():
    runs = [evidence(seed=i) for i in range(4)]
    for i, run in enumerate(runs):
        swap = {"scale.state_norm@1": 10.0**i, "alignment.n_valid@1": 512 - i}
        run.measurements.readings = [
            r._replace(value=swap[r.quantity]) if r.layer == 2 and r.quantity in swap else r
            for r in run.measurements
        ]
    row = judge(runs)["layers"][2]
    assert (row["state_norm"], row["n_valid"]) == (55.0, 509)


def test_a_missing_sibling_of_one_seed_leaves_d3_open():
    verdict = judge([evidence(seed=0), evidence(seed=1)], [frozen(), None])
    assert verdict.verdict == "INCOMPLETE(D3)"


def test_a_baseline_gets_no_verdict():
    verdict = judge([frozen()])
    assert (verdict.verdict, verdict.outcome) == ("BASELINE", Outcome.SKIPPED)


def test_thresholds_are_obeyed_and_checked():
    runs, baselines = [evidence(growth=30.0, validity=1e-9)], [frozen()]
    assert judge(runs, baselines).outcome is Outcome.PASS
    assert judge(runs, baselines, thresholds=Thresholds(growth=20)).verdict == "FAIL(D1+D2)"
    with pytest.raises(BadInput):
        Thresholds(growth=-1)
    with pytest.raises(BadInput):
        Thresholds(alpha=0.7)


def test_growth_spread_over_depth_is_said_even_where_d1_does_not_fire():
    run = evidence(growth=40.0)
    run.measurements.readings = [
        r._replace(value=64_000.0) if r.quantity == "scale.growth_total@1" else r for r in run.measurements
    ]
    reason = judge([run])["diagnostics"]["D1_scale_growth"]
    assert reason["fires"] is False and "growth spread over depth" in reason["sentence"]


def test_the_chain_says_which_sentence_survives_each_step():
    failed = judge([evidence(growth=900.0, validity=1e-9, accuracy=0.3)], [frozen()])
    assert [step["survives"] for step in failed.chain] == [True, False, False, False]
    assert "Mode 1" in failed.chain[3]["sentence"]
    passed = judge([evidence()], [frozen()])
    assert [step["survives"] for step in passed.chain] == [True, True, True, True]
    unknown = judge([evidence()])
    assert [step["survives"] for step in unknown.chain] == [True, True, None, None]
    direction = judge([evidence(accuracy=0.5)], [frozen()])
    assert "Mode 2" in direction.chain[3]["sentence"]


@pytest.mark.parametrize(
    ("readings", "logic", "words"),
    [
        ({"growth": 900.0}, "paper", "The stream explodes (D1), though the reference is still measurable"),
        ({"compat": 1e-9}, "paper", "too small to be measured (D2), though no block explodes"),
        ({"growth": 900.0, "accuracy": 0.5}, "artifact", "The stream explodes (D1)"),
        ({"growth": 900.0}, "artifact", "None that decides (D1 alone fires)"),
    ],
)
def test_the_kind_of_failure_follows_the_detectors_that_fired(readings, logic, words):
    sentence = judge([evidence(**readings)], [frozen()], logic=logic).chain[3]["sentence"]
    assert words in sentence and "scale is sane" not in sentence


def test_a_negative_gamma_does_not_support_the_status_quo_claim():
    run = evidence()
    run.measurements.readings = [
        r._replace(value=-0.1) if r.quantity == "alignment.gamma_mean@1" else r for r in run.measurements
    ]
    assert judge([run], [frozen()]).chain[0]["survives"] is False


def test_at_chance_even_the_status_quo_claim_falls():
    assert judge([evidence(accuracy=0.05)], [frozen()]).chain[0]["survives"] is False


def test_layers_carry_the_documented_columns():
    rows = judge([evidence()])["layers"]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert set(rows[0]) == {"index", "state_norm", "reference_norm", "cosine", "cosine_compat", "n_valid"}


@pytest.mark.parametrize(
    "state, words", [("diverged", "diverged in epoch 3: loss is nan"), ("running", "still training")]
)
def test_a_run_that_diverged_or_still_runs_is_named_in_the_notes(state, words):
    verdict = judge([evidence(status={"state": state, "epoch": 3, "reason": "loss is nan"})])
    assert any(words in note for note in verdict.notes)
    assert any("certifies nothing" in note for note in verdict.notes)


@pytest.mark.parametrize("logic", ["artifact", "paper"])
@pytest.mark.parametrize("state, words", [("diverged", "diverged"), ("running", "still training")])
def test_a_run_that_has_not_come_to_its_end_never_passes(state, words, logic):
    whole, cut = evidence(), evidence(status={"state": state, "epoch": 3, "reason": "loss is nan"})
    assert judge([whole], [frozen()], logic=logic).outcome is Outcome.PASS
    verdict = judge([whole, cut], [frozen(), frozen()], logic=logic)
    assert (verdict.outcome, verdict.verdict) == (Outcome.INCOMPLETE, f"INCOMPLETE({words})")


def test_depth_does_not_count_against_a_rule_that_still_trains_but_a_broken_scale_does():
    half = {"state": "running", "epoch": 3, "reason": ""}
    for logic in ("artifact", "paper"):
        late = judge([evidence()], [frozen(accuracy=0.99)], logic=logic)
        assert late.outcome is Outcome.FAIL
        early = judge([evidence(), evidence(status=half)], [frozen(accuracy=0.99)] * 2, logic=logic)
        assert (early.outcome, early.verdict) == (Outcome.INCOMPLETE, "INCOMPLETE(still training)")
        assert early.reasons[2].fires is None and "too early" in early.reasons[2].sentence
        assert early.chain[2]["survives"] is None and early.chain[3]["survives"] is None
        broken = judge([evidence(growth=900.0, validity=1e-9, status=half)], [frozen(accuracy=0.99)])
        assert broken.verdict == "FAIL(D1+D2)"
    gone = {"state": "diverged", "epoch": 3, "reason": "loss is nan"}
    assert judge([evidence(status=gone)], [frozen(accuracy=0.99)]).outcome is Outcome.FAIL


def test_a_baseline_of_another_seed_is_told():
    other = judge([evidence(seed=123)], [frozen(seed=42)])
    assert other.outcome is Outcome.PASS
    assert "not paired by seed: seed 123 against a baseline of seed 42" in other.reasons[2].sentence
    assert "paired by seed" not in judge([evidence(seed=42)], [frozen(seed=42)]).reasons[2].sentence


def test_without_a_credit_nothing_is_said_of_a_cosine_or_of_direction():
    run = evidence(accuracy=0.5)
    run.measurements.readings = [
        r for r in run.measurements.readings if not r.quantity.startswith("alignment.")
    ]
    chain = judge([run], [frozen()]).chain
    assert chain[1]["sentence"].endswith("no cosine was measured.")
    assert "Mode 2" not in chain[3]["sentence"]
    assert chain[3]["sentence"].endswith("(D3). No direction was measured.")


def test_a_gamma_that_the_clamp_has_eaten_is_not_called_readable():
    def said(compat: float) -> str:
        run = evidence()
        run.measurements.readings = [
            r._replace(value=compat) if r.quantity == "alignment.gamma_mean@1" else r
            for r in run.measurements.readings
        ]
        return judge([run], [frozen()]).chain[1]["sentence"]

    assert "Γ is read through a clamp, and the exact mean cosine is +0.30" in said(0.2)
    assert said(0.3).endswith("the cosine can be read.")


def test_a_captured_model_is_not_compared_with_a_baseline_that_still_trains():
    half = {"state": "running", "epoch": 5, "reason": ""}
    verdict = judge([evidence(status={"state": "captured"})], [frozen(status=half)])
    assert verdict.verdict == "INCOMPLETE(D3)"
    assert "the baseline is still training (epoch 5)" in verdict.reasons[2].sentence
    both = judge([evidence(status=half)], [frozen(status=half)])
    assert both.reasons[2].fires is False, "two runs at one epoch of their training are comparable"


def test_a_gain_of_exactly_the_margin_is_enough_whatever_rounding_says():
    assert 0.36 - 0.34 < 0.02
    assert judge([evidence(accuracy=0.36)], [frozen(accuracy=0.34)]).verdict == "PASS"
    assert judge([evidence(accuracy=0.3599)], [frozen(accuracy=0.34)]).verdict == "FAIL(D3)"


def test_three_seeds_without_items_are_judged_by_an_interval_over_the_seeds():
    accuracies = (0.73, 0.70, 0.78)
    runs = [evidence(accuracy=a, items=0, seed=i) for i, a in enumerate(accuracies)]
    depth = judge(runs, [frozen(accuracy=0.7, items=0)] * 3).reasons[2]
    gains = np.array(accuracies) - 0.7
    reach = stats.t.ppf(0.98, 2) * gains.std(ddof=1) / 3**0.5
    assert depth.interval == pytest.approx((gains.mean() - reach, gains.mean() + reach))
    assert depth.fires is None and "seeds alone" in depth.sentence
    two = judge(runs[:2], [frozen(accuracy=0.7, items=0)] * 2).reasons[2]
    assert two.interval is None and "point estimate" in two.sentence


def test_sentences_of_seeds_that_disagree_say_so():
    split = judge([evidence(growth=4000, validity=1e-9), evidence(seed=1)], [frozen(), frozen(seed=1)])
    scale, reference = split.reasons[:2]
    assert scale.sentence.startswith("Too few seeds have a block that explodes: the median is 2000")
    assert reference.sentence.startswith("Too few seeds have a reference gradient that is too small")
    quiet = judge([evidence(growth=2), evidence(growth=9, seed=1)], [frozen(), frozen(seed=1)])
    assert "by more than 9.00 (limit 50)" in quiet.reasons[0].sentence


def test_a_reference_near_the_clamp_that_still_reads_true_is_not_called_unmeasurable():
    close = judge([evidence(validity=5e-8, compat=1e-6)]).reasons[1].sentence
    assert "within a factor of ten" in close and "reads 1.00 × the truth" in close
    gone = judge([evidence(validity=5e-9, compat=1e-9)]).reasons[1].sentence
    assert "too small to be measured" in gone


def test_before_the_first_epoch_no_net_is_walked_back():
    start = replace(evidence(), epoch=0, status={"state": "running", "epoch": 0, "reason": ""})
    verdict = judge([start], [frozen()])
    assert (
        verdict.outcome is Outcome.INCOMPLETE and "nothing was trained yet" in verdict.reasons[2].sentence
    )


def test_questions_that_make_no_sense_are_refused():
    for call in (
        lambda: judge([]),
        lambda: judge([evidence()], logic="majority"),
        lambda: judge([evidence()], [None, None]),
        lambda: judge([evidence(), evidence(label="fa")]),
    ):
        with pytest.raises(BadInput):
            call()


def test_three_seeds_that_share_one_test_item_get_the_interval_over_seeds():
    def judged(right):
        runs = [
            evidence(accuracy=float(r), items=1, seed=i, correct=np.array([r])) for i, r in enumerate(right)
        ]
        wrong = {"accuracy": 0.0, "items": 1, "correct": np.array([False])}
        return judge(runs, [frozen(seed=i, **wrong) for i in range(len(right))])

    verdict = judged([True, True, False])
    low, high = verdict.reasons[2].interval
    reach = stats.t.ppf(0.98, 2) * np.std([1, 1, 0], ddof=1) / math.sqrt(3)
    assert (low, high) == pytest.approx((2 / 3 - reach, 2 / 3 + reach))
    assert verdict.verdict == "INCONCLUSIVE(D3)"
    assert "interval over 3 seeds alone: one test item has no spread" in verdict.reasons[2].sentence
    assert judged([True, True]).reasons[2].interval is None


def test_one_seed_without_an_accuracy_leaves_depth_utility_unknown():
    runs = [evidence(seed=i, accuracy=a, items=0) for i, a in enumerate((0.9, 0.9, None))]
    verdict = judge(runs, [frozen(seed=i, items=0) for i in range(3)])
    assert verdict.verdict == "INCOMPLETE(D3)"
    assert "an accuracy is missing" in verdict.reasons[2].sentence


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("open", "open"), "INCONCLUSIVE(D1+D3)"),
        (("open", "missing"), "INCOMPLETE(D1+D3)"),
        (("missing", "open"), "INCOMPLETE(D1+D3)"),
    ],
)
def test_one_open_and_one_missing_detector_are_incomplete_not_inconclusive(states, expected):
    first, last = states
    found = decide([reason("D1", None, first), reason("D2", False), reason("D3", None, last)], "artifact")
    assert found[1] == expected


def test_a_layer_whose_credit_is_no_number_has_no_cosine():
    run = evidence()
    run.measurements.readings = [
        r._replace(value=math.nan, status="nan") if r.quantity == "alignment.deep_cosine@1" else r
        for r in run.measurements.readings
    ]
    found = judge([run, evidence(seed=1)]).evidence["C_credit_direction"]
    assert math.isnan(found["value"][0]) and found["value"][1] == 0.3
    assert found["sentence"] == "The direction of the credit is not a number."


def test_the_status_quo_is_the_same_in_the_chain_and_in_the_ablation():
    def without_gamma(run):
        run.measurements.readings = [r for r in run.measurements if "gamma" not in r.quantity]
        return run

    for make, expected in ((lambda r: r, True), (without_gamma, None)):
        run = make(evidence())
        verdict = judge([run], [frozen()])
        words = decisions(Judged([], [run], verdict))["accuracy + Γ"]
        assert verdict.chain[0]["survives"] is expected
        assert words == {True: "trustworthy", None: "not known"}[expected]
