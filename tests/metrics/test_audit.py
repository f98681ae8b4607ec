"""The metric audit on tables whose truth is known, and on published ones whose numbers are."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from walkback.cli.main import run
from walkback.core.errors import BadInput
from walkback.core.verdict import Outcome
from walkback.metrics import MBEEvaluator, MetricAudit
from walkback.metrics.admissible import Claim, confounder_matrix, is_monotone_copy
from walkback.metrics.compat import classify, partial_spearman, ranks
from walkback.metrics.crossfit import LEARNERS, CrossFit, FitTask, cross_fit, fold_rows
from walkback.metrics.decision import Decision, Findings
from walkback.metrics.ledger import design, drop_repeats, read_tables, same_runs
from walkback.metrics.multiple import permutation_battery
from walkback.metrics.several import audit_all
from walkback.metrics.simulate import Truth, simulate
from walkback.metrics.twin import twin_test

DATA = Path(os.environ.get("WALKBACK_DATA", "data")) / "metric_audit"
published = pytest.mark.skipif(not DATA.is_dir(), reason="the published tables are not under WALKBACK_DATA")
DEFAULT = ["lr", "wd", "dropout", "optimizer", "arch", "task", "seed"]


def table(seed: int = 0, n: int = 150, effect: float = 0.0, shape=lambda b: b) -> pd.DataFrame:
    """A loss that drives metric and target along `shape`, and `effect` between what is left of them."""
    rng = np.random.default_rng(seed)
    loss = rng.normal(size=n)
    rest = rng.multivariate_normal([0, 0], [[1, effect], [effect, 1]], n)
    return pd.DataFrame({"m": shape(loss) + rest[:, 0], "loss": loss, "acc": rest[:, 1] - shape(loss)})


def outcome(frame: pd.DataFrame, **options) -> Outcome:
    return MetricAudit(frame, "m", "acc", "loss", **options).run().outcome


def slow_partial(metric, target, controls):
    """Partial correlation from the inverse of the correlation matrix of ranks."""
    columns = np.column_stack([ranks(metric), ranks(target), controls])
    inverse = np.linalg.inv(np.corrcoef(columns.T))
    return -inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1])


def test_partial_spearman_is_that_of_the_inverse_correlation_matrix():
    frame = table(1, effect=0.3)
    controls = design(frame.assign(wd=frame.m**2), ["loss", "wd"])
    found = partial_spearman(frame.m.to_numpy(), frame.acc.to_numpy(), controls)
    assert found.partial == pytest.approx(slow_partial(frame.m, frame.acc, controls), abs=1e-12)
    assert found.k == 2
    assert found.raw == pytest.approx(frame.m.corr(frame.acc, method="spearman"), abs=1e-12)


def test_degrees_of_freedom_count_only_independent_control_columns():
    frame = table(2, n=60)
    once, twice = design(frame, ["loss"]), np.repeat(design(frame, ["loss"]), 2, axis=1)
    metric, target = frame.m.to_numpy(), frame.acc.to_numpy()
    one, two = (partial_spearman(metric, target, controls) for controls in (once, twice))
    assert (one.k, one.p) == (two.k, pytest.approx(two.p))


@pytest.mark.parametrize(
    ("raw", "partial", "kind"),
    [
        (float("nan"), 0.5, "insufficient-data"),
        (0.5, 0.05, "washout"),
        (-0.3, 0.3, "sign-inversion"),
        (0.3, -0.3, "reverse-inversion"),
        (0.1, -0.3, "hidden-after-control"),
        (-0.5, -0.3, "survives"),
        (0.5, 0.15, "weak-or-mixed"),
        (0.2, 0.2, "survives"),
        (-0.2, 0.1, "weak-or-mixed"),
    ],
)
def test_classes_follow_the_published_order(raw, partial, kind):
    assert classify(raw, partial) == kind


@published
@pytest.mark.parametrize(
    ("summary", "extra"),
    [
        ("jmlr_image_combined_480_audit_summary.csv", []),
        ("jmlr_image_combined_480_strict_loss_mbe_summary.csv", ["val_loss"]),
    ],
)
def test_every_published_row_of_the_480_runs_is_reproduced(summary, extra):
    pool = read_tables([DATA / f"jmlr_{name}_image_results.csv" for name in ("confirm", "scale")])
    rows = pd.read_csv(DATA / summary)
    assert len(rows) > 230
    for row in rows.itertuples():
        part, names = pool, DEFAULT + extra
        if row.group.startswith("arch="):
            part, names = pool[pool.arch == row.group[5:]], [name for name in names if name != "arch"]
        names = [name for name in names if name != row.metric]
        part = part[[row.metric, "final_acc", *names]].dropna()
        found = partial_spearman(
            part[row.metric].to_numpy(), part.final_acc.to_numpy(), design(part, names)
        )
        assert found.raw == pytest.approx(row.raw_spearman, abs=1e-10)
        assert found.partial == pytest.approx(row.mbe_partial, abs=1e-10)
        assert (found.n, found.kind) == (row.n, row.classification)


@published
@pytest.mark.parametrize(
    ("file", "metric", "raw", "partial", "kind"),
    [
        ("unified_grid", "fim_norm", -0.8030, 0.0556, "washout"),
        ("unified_grid", "sam_sharpness", -0.4387, 0.3991, "sign-inversion"),
        ("unified_grid", "asam_sharpness", 0.1442, 0.5810, "hidden-after-control"),
        ("unified_grid", "asam_sharpness_ep5", 0.4395, -0.3512, "reverse-inversion"),
        ("large_grid_v3_asam", "fim_norm", -0.8149, 0.0334, "washout"),
        ("large_grid_v3_asam", "sam_sharpness", -0.3822, 0.4253, "sign-inversion"),
        ("large_grid_v3_asam", "weight_norm", 0.8145, -0.0339, "washout"),
    ],
)
def test_the_golden_rows_of_the_grids_are_reproduced_to_their_digits(
    file, metric, raw, partial, kind, capsys
):
    command = ["metric", "audit", str(DATA / f"{file}.csv"), "--metric", metric, "--target", "final_acc"]
    code = run([*command, "--controls", "lr,wd", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert round(answer["compat"]["raw"], 4) == raw and round(answer["compat"]["partial"], 4) == partial
    assert answer["compat"]["class"] == kind and answer["n"] == 1000
    assert answer["outcome"] != "INDEPENDENT", "a curved effect of lr and wd is not news"
    assert code == Outcome(answer["outcome"]).exit_code


@published
def test_pooled_files_name_their_repeated_rows_before_any_verdict():
    files = [DATA / f"jmlr_{name}_image_results.csv" for name in ("confirm", "scale")]
    pool = read_tables([*files, files[1]])
    verdict = MetricAudit(pool, "fim_norm", "final_acc", "val_loss", DEFAULT).run()
    assert verdict.evidence["duplicates"]["identical"] >= 160
    assert verdict.evidence["duplicates"]["same_design"] >= verdict.evidence["duplicates"]["identical"]
    assert "rows equal an earlier one" in verdict.notes[0]


COPIES = {
    "exp": lambda b, rng: np.exp(b),
    "itself": lambda b, rng: b,
    "falling": lambda b, rng: -(b**3),
    "rounding noise": lambda b, rng: 2 * b + 1e-12 * rng.normal(size=len(b)),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_the_baseline_is_a_proxy_for_every_seed(name):
    for seed in range(200):
        frame = table(seed, n=60)
        frame["m"] = COPIES[name](frame.loss.to_numpy(), np.random.default_rng(seed))
        verdict = MetricAudit(frame, "m", "acc", "loss").run()
        assert verdict.verdict == "PROXY (exact)", seed
        assert verdict.evidence["compat"] is not None, "the compatibility numbers are always there"


def test_an_exact_combination_of_controls_is_a_proxy_too():
    frame = table(3).assign(lr=lambda t: np.arange(len(t)) % 7)
    frame["m"] = 3 * frame.loss - 2 * frame.lr
    verdict = MetricAudit(frame, "m", "acc", "loss", ["lr"]).run()
    assert verdict.verdict == "PROXY (exact)" and "loss, lr" in verdict.reasons[0].sentence


def test_huge_values_do_not_make_a_copy_of_what_is_not_one():
    rng = np.random.default_rng(0)
    loss = rng.normal(size=200)
    steep = np.exp(12 * loss) + rng.normal(size=200)
    assert not is_monotone_copy(steep, loss)
    assert is_monotone_copy(np.exp(12 * loss), loss)


REFUSALS = {
    "constant": (lambda t: t.assign(m=1.0), {}, "m is constant"),
    "text": (lambda t: t.assign(m="high"), {}, "it is text"),
    "numbers as text": (lambda t: t.assign(m=t.m.astype(str)), {}, "stored as text"),
    "all missing": (lambda t: t.assign(m=np.nan), {}, "No row has all"),
    "run ids": (lambda t: t.assign(run=[f"r{i}" for i in t.index]), {"controls": ["run"]}, "unique id"),
    "no freedom": (lambda t: t.head(7), {}, "degrees of freedom"),
    "the target": (lambda t: t.assign(m=2 * t.acc), {}, "function of the target"),
    "a control that is the target": (
        lambda t: t.assign(c=-t.acc),
        {"controls": ["c"]},
        "The target acc is an exact function of control c:",
    ),
    "controls that add up to the target": (
        lambda t: t.assign(c=t.acc - 2 * t.loss),
        {"controls": ["c"]},
        "exact function of control loss, c:",
    ),
    "a baseline that is the target": (
        lambda t: t.assign(acc=2 * t.loss + 1),
        {},
        "exact function of the baseline loss:",
    ),
    "five clusters": (lambda t: t.assign(c=t.index % 5), {"cluster": "c"}, "5 clusters"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_asked_of_a_table_is_refused_with_its_reason(name):
    change, options, words = REFUSALS[name]
    verdict = MetricAudit(change(table(4)), "m", "acc", "loss", **options).run()
    assert verdict.outcome is Outcome.REFUSED
    assert words in verdict.reasons[0].sentence


def test_unique_numbers_may_be_controls():
    frame = table(5, n=150, effect=0.6).assign(lr=lambda t: np.linspace(1e-4, 1e-2, len(t)))
    assert outcome(frame, controls=["lr"]) is Outcome.INDEPENDENT


def test_columns_may_be_called_anything():
    frame = table(6, n=150, effect=0.6).rename(columns={"m": "Target", "acc": "Metric", "loss": "Baseline"})
    verdict = MetricAudit(frame, "Target", "Metric", "Baseline").run()
    assert verdict.outcome is Outcome.INDEPENDENT
    assert list(frame.columns) == ["Target", "Baseline", "Metric"], "the table is left as it was"


def test_rows_with_gaps_are_left_out_and_counted():
    frame = table(7, n=150, effect=0.6)
    frame.loc[[3, 4], "m"] = [np.nan, np.inf]
    verdict = MetricAudit(frame, "m", "acc", "loss").run()
    assert (verdict.evidence["n"], verdict.evidence["dropped"]) == (148, 2)
    assert "2 rows were left out" in verdict.notes[0]


def test_a_true_effect_is_found_and_capped_in_words_without_a_twin():
    verdict = MetricAudit(table(8, effect=0.6), "m", "acc", "loss").run()
    assert verdict.verdict == "INDEPENDENT (of this reading of the loss)"
    assert "second, noisy reading" in " ".join(verdict.notes)


def test_a_wrong_sign_is_not_support():
    frame = table(8, effect=0.6)
    assert outcome(frame, direction="positive") is Outcome.INDEPENDENT
    verdict = MetricAudit(frame, "m", "acc", "loss", direction="negative").run()
    assert verdict.verdict == "FAIL(wrong sign)"


def test_few_rows_are_never_independent_and_a_noisy_proxy_is_not_called_one():
    assert outcome(table(9, n=90, effect=0.7)) is Outcome.INCONCLUSIVE
    for seed in range(20):
        assert outcome(table(seed, n=20)) is Outcome.INCONCLUSIVE


def test_a_proxy_needs_rows_enough_to_show_that_nothing_is_there():
    verdict = MetricAudit(table(10, n=400), "m", "acc", "loss").run()
    assert verdict.outcome is Outcome.PROXY
    small = MetricAudit(table(10, n=60), "m", "acc", "loss").run()
    assert small.outcome is Outcome.INCONCLUSIVE
    assert "needs n ≥" in next(r.sentence for r in small.reasons if r.check == "equivalence")


SHAPES = {
    "linear": lambda b: b,
    "U": lambda b: 2 * b**2,
    "oscillating": lambda b: 2 * np.sin(3 * b),
    "step": lambda b: 4.0 * (b > 0.3),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_confounder_of_any_shape_is_seldom_taken_for_news(name):
    """Twelve tables each; the benchmark takes a thousand. P(more than 4 | rate .07) < .001."""
    hits = sum(outcome(table(seed, n=200, shape=SHAPES[name])) is Outcome.INDEPENDENT for seed in range(12))
    assert hits <= 4


def readings(seed: int, effect: float = 0.0, n: int = 200) -> pd.DataFrame:
    """Two noisy readings of a loss, and a metric that is a third one, plus what the effect adds."""
    rng = np.random.default_rng(seed)
    loss = rng.normal(size=n)
    rest = rng.multivariate_normal([0, 0], [[1, effect], [effect, 1]], n)
    noisy = {name: loss + 0.5 * rng.normal(size=n) for name in ("loss", "again")}
    return pd.DataFrame({"m": loss + 0.5 * rest[:, 0], "acc": 0.5 * rest[:, 1] - loss, **noisy})


def test_a_second_noisy_reading_of_the_loss_is_unmasked_by_a_twin():
    alone = [outcome(readings(seed)) is Outcome.INDEPENDENT for seed in range(15)]
    twinned = [outcome(readings(seed), twin="again") is Outcome.INDEPENDENT for seed in range(15)]
    assert sum(alone) >= 9, "one noisy reading lets it pass"
    assert sum(twinned) <= 4
    assert outcome(readings(0, effect=-0.7), twin="again") is Outcome.INDEPENDENT


def test_an_effect_that_a_noisy_baseline_masks_is_not_called_a_proxy():
    """Here what is left of the loss pulls one way and the effect the other: one reading sees nothing."""
    masked = readings(0, effect=0.7)
    assert outcome(masked) is Outcome.PROXY
    assert outcome(masked, twin="again") is Outcome.INCONCLUSIVE


def test_the_twin_control_recovers_the_true_partial_covariance():
    frame = readings(1, effect=0.5, n=20_000)
    found = twin_test(
        *(frame[name].to_numpy() for name in ("m", "acc", "loss", "again")), np.empty((len(frame), 0))
    )
    assert found.r == pytest.approx(0.5, abs=0.05)
    assert found.reliability == pytest.approx(1 / 1.25, abs=0.03)
    null = readings(2, n=20_000)
    z = twin_test(
        *(null[name].to_numpy() for name in ("m", "acc", "loss", "again")), np.empty((20_000, 0))
    ).z
    assert abs(z) < 3.5


def test_groups_are_audited_apart_without_their_own_column():
    frame = table(11, n=240, effect=0.6).assign(arch=lambda t: np.where(t.index % 2, "cnn", "vit"))
    verdict = MetricAudit(frame, "m", "acc", "loss", ["arch"], group="arch").run()
    rows = verdict.evidence["groups"]
    assert [row["group"] for row in rows] == ["arch=cnn", "arch=vit"]
    part = frame[frame.arch == "cnn"]
    alone = partial_spearman(part.m.to_numpy(), part.acc.to_numpy(), design(part, ["loss"]))
    assert rows[0]["partial"] == pytest.approx(alone.partial)


def test_several_metrics_are_corrected_for_each_other():
    rng = np.random.default_rng(0)
    frame = table(12, effect=0.6).assign(**{f"noise{i}": rng.normal(size=150) for i in range(6)})
    audits = audit_all(frame, ["m", *(f"noise{i}" for i in range(6))], "acc", "loss")
    assert audits.verdicts["m"].outcome is Outcome.INDEPENDENT
    assert audits.adjusted["m"]["max_t"] < 0.01
    for name, found in audits.adjusted.items():
        assert found["p"] <= found["bh"] + 1e-12 <= found["max_t"] + 0.5, name
    assert sum(found["max_t"] < 0.05 for found in audits.adjusted.values()) == 1


@pytest.mark.parametrize("metric", [np.ones(40), np.arange(40.0)])
def test_the_drop_in_calls_nothing_a_proxy_of_which_no_p_is_known(metric, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    told, bars = [], []
    monkeypatch.setattr(Axes, "text", lambda self, x, y, words, **how: told.append((x, words)))
    monkeypatch.setattr(Axes, "bar", lambda self, x, height, **how: bars.append((x, height)))
    loss, acc = np.arange(40.0), np.random.default_rng(0).normal(size=40)
    report = MBEEvaluator().evaluate(metric, loss, acc, output_dir=str(tmp_path))
    assert math.isnan(report.partial_p) and report.is_loss_proxy is None
    known = not math.isnan(report.absolute_r)
    assert told == [(place, "not known") for place in ([1] if known else [0, 1])]
    assert bars == ([(0, abs(report.absolute_r))] if known else [])


def test_the_drop_in_has_the_originals_fields_and_a_verdict(tmp_path, capsys):
    frame = table(13, effect=0.6)
    columns = (frame.m, frame.loss, frame.acc)
    report = MBEEvaluator("fim", "val loss").evaluate(*columns, output_dir=str(tmp_path / "mbe_reports"))
    expected = partial_spearman(frame.m.to_numpy(), frame.acc.to_numpy(), design(frame, ["loss"]))
    assert (report.absolute_r, report.partial_r) == (expected.raw, expected.partial)
    assert report.is_loss_proxy is False and report.verdict.outcome is Outcome.INDEPENDENT
    assert "INDEPENDENT" in capsys.readouterr().out
    assert [file.name for file in (tmp_path / "mbe_reports").iterdir()] == ["fim_mbe_report.png"]
    quiet = MBEEvaluator().evaluate(np.exp(frame.loss), frame.loss, frame.acc, quiet=True)
    assert quiet.verdict.verdict == "PROXY (exact)" and capsys.readouterr().out == ""
    with pytest.raises(BadInput, match="differ in length"):
        MBEEvaluator().evaluate([1, 2, 3], [1, 2], [1, 2, 3], quiet=True)


def test_without_baseline_and_controls_the_raw_association_is_audited():
    verdict = MetricAudit(table(3, n=120, effect=0.6).assign(m=lambda f: f.m - f.loss), "m", "acc").run()
    assert verdict.verdict == "INDEPENDENT" and verdict.evidence["partial"] == verdict.evidence["raw"]
    assert [test["learner"] for test in verdict.evidence["tests"]["learners"]] == ["linear"]


def test_the_simulation_knows_when_there_is_nothing_and_when_there_is():
    frame = table(14, n=120, effect=0.3)
    claim = Claim("m", "acc", "loss")
    rates = simulate(frame, claim, effect=0.7, runs=6)
    assert rates["false_positive"].found <= 2
    assert rates["power"].found >= 5
    low, high = rates["power"].interval
    assert 0 <= low <= rates["power"].share <= high <= 1


def test_the_simulation_reads_a_known_loss_twice_where_there_is_a_twin():
    frame, claim = readings(3, n=400), Claim("m", "acc", "loss", twin="again")
    truth = Truth.of(frame, claim)
    assert truth.misread == pytest.approx(0.5, abs=0.05), "each reading was off by .5"
    drawn = truth.draw(0.0, np.random.default_rng(0))
    off = [drawn[name].to_numpy() - truth.loss for name in ("loss", "again")]
    assert [error.std() for error in off] == pytest.approx([0.5, 0.5], abs=0.06)
    assert abs(np.corrcoef(off)[0, 1]) < 0.15, "two readings err on their own"
    assert simulate(frame, claim, runs=10)["false_positive"].found <= 3


def test_what_is_refused_cannot_be_simulated():
    with pytest.raises(BadInput, match="carry no audit to simulate"):
        simulate(table(14).assign(m=1.0), Claim("m", "acc", "loss"), runs=1)


def test_an_audit_prints_its_own_error_rates_beside_the_verdict(tmp_path, capsys):
    table(14, n=120, effect=0.6).to_csv(tmp_path / "runs.csv", index=False)
    command = [str(tmp_path / "runs.csv"), "--metric", "m", "--target", "acc", "--baseline", "loss"]
    assert run(["metric", "audit", *command, "--simulate", "3", "--json"]) == 0
    rates = json.loads(capsys.readouterr().out)["simulated"]
    assert {name: rate["runs"] for name, rate in rates.items()} == {"false_positive": 3, "power": 3}
    assert run(["metric", "audit", *command, "--simulate", "3"]) == 0
    told = capsys.readouterr().out
    assert "With nothing there, " in told and "of 3 simulated tables" in told
    assert run(["metric", "simulate", *command, "--runs", "3"]) == 0
    alone = capsys.readouterr().out
    assert "Verdict: INDEPENDENT" in alone and "With a true partial correlation of 0.4" in alone


def test_many_clusters_get_bootstrap_intervals_that_no_test_depends_on():
    frame = table(5, n=120, effect=0.5)
    many, few = frame.assign(c=np.arange(120) % 24), frame.assign(c=np.arange(120) % 8)
    drawn = MetricAudit(many, "m", "acc", "loss", cluster="c").run().evidence["bootstrap"]
    low, high = drawn["bca"]
    assert low < drawn["partial"] < high and drawn["clusters"] == 24
    assert MetricAudit(few, "m", "acc", "loss", cluster="c").run().evidence["bootstrap"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--metric", "none", "--target", "acc"], "no column 'none'"),
        (["--metric", "m", "--target", "acc", "--group", "g"], "no column 'g'"),
        (["--metric", "m", "--target", "acc", "--direction", "up"], "'positive' or 'negative'"),
        (["--metric", "m", "--target", "acc", "--delta", "2"], "delta lies in"),
        (["--metric", "m", "--target", "acc", "--twin", "loss"], "name the baseline too"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(arguments, words, tmp_path, capsys):
    table(15, n=50).to_csv(tmp_path / "runs.csv", index=False)
    assert run(["metric", "audit", str(tmp_path / "runs.csv"), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "m,acc\n", 'a,b\n1,2\n3,"4\n5,6,7,8\n'])
def test_broken_tables_are_named(content, tmp_path, capsys):
    (tmp_path / "runs.csv").write_text(content)
    assert run(["metric", "audit", str(tmp_path / "runs.csv"), "--metric", "m", "--target", "acc"]) == 2
    assert "runs.csv" in capsys.readouterr().err


def test_a_metric_audited_among_others_has_the_bits_of_one_audited_alone():
    frame = table(15, n=120, effect=0.5).assign(other=lambda t: t.m.rolling(3, min_periods=1).mean())
    frame["gap"] = (frame.m**2).where(frame.index > 4)  # has fewer rows than the rest
    together = audit_all(frame, ["m", "other", "gap", "loss"], "acc", "loss").verdicts
    for name in ("m", "other", "gap"):
        alone = MetricAudit(frame, name, "acc", "loss").run()
        assert alone.evidence == together[name].evidence and alone.reasons == together[name].reasons
    assert together["gap"].evidence["n"] == 115


def gaussians(old, asks):
    """Kernel among the rows seen and from those asked for, in every width."""
    gaps, asked = (((rows[:, None] - old[None]) ** 2).sum(axis=2) for rows in (old, asks))
    typical = np.median(gaps[gaps > 1e-12])
    return [(np.exp(-gaps / (w * typical)), np.exp(-asked / (w * typical))) for w in (0.01, 0.1, 0.5, 2.0)]


def anova(old, asks):
    """Products of kernels of single confounders, entry by entry."""

    def along(a, b):
        u, v = stats.norm.cdf([a, b])
        two, four = (np.polynomial.Polynomial(c) for c in ([1 / 6, -1, 1], [-1 / 30, 0, 1, -2, 1]))
        assert two.integ()(1) == pytest.approx(0) and four.integ()(1) == pytest.approx(0)
        curve = two(u) * two(v) / 4 - four(abs(u - v)) / 24
        return 0.45 * 12 * (u - 0.5) * (v - 0.5) + 0.45 * a * b + 0.1 * 360 * curve

    def kernel(rows, size):
        return np.array(
            [
                [math.prod(1 + size / len(o) * along(a, b) for a, b in zip(r, o, strict=True)) for o in old]
                for r in rows
            ]
        )

    return [(kernel(old, size), kernel(asks, size)) for size in (0.3, 1.2, 4.8)]


@pytest.mark.parametrize("name, kernels, fits", [("kernel ridge", gaussians, 1), ("products", anova, 2)])
def test_kernel_learners_take_the_kernel_and_shrinkage_that_leave_one_out_would(name, kernels, fits):
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(25, 2)), rng.normal(size=(4, 2))
    y = np.sin(2 * x[:, 0]) + x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=25)

    def score(value: float, known: np.ndarray) -> float:
        place = ((known < value).sum() + (known <= value).sum()) / 50
        return stats.norm.ppf(min(max(place, 0.02), 0.98))

    old, asks = (
        np.array([[score(v, x[:, j]) for j, v in enumerate(row)] for row in rows]) for rows in (x, new)
    )
    best = (np.inf, None)
    for kernel, asked in kernels(old, asks):
        for shrink in (1e-3, 1e-2, 1e-1, 1.0, 10.0):
            error = 0.0
            for i in range(25):
                rest = np.delete(np.arange(25), i)
                dual = np.linalg.solve(
                    kernel[np.ix_(rest, rest)] + shrink * np.eye(24), (y - y.mean())[rest]
                )
                error += ((y - y.mean())[i] - kernel[i, rest] @ dual) ** 2
            left, found = y - y.mean(), y.mean() * np.ones(4)
            for _ in range(fits):
                whole = np.linalg.solve(kernel + shrink * np.eye(25), left)
                left, found = left - kernel @ whole, found + asked @ whole
            best = min(best, (error, found), key=lambda pair: pair[0])
    np.testing.assert_allclose(LEARNERS[name](x, new)(y), best[1], atol=1e-8)


def test_a_kernel_on_which_divide_and_conquer_does_not_converge_is_decomposed_all_the_same():
    rng = np.random.default_rng([7, 124])
    lr = rng.choice(10.0 ** np.arange(-5, 0), 200)
    curve, loss = ((np.log10(lr) + 3) ** 2 - 2) / 1.7, rng.normal(size=200)
    m, acc = curve + loss + rng.normal(size=200), rng.normal(size=200) - curve - loss
    frame = pd.DataFrame({"loss": loss, "m": m, "acc": acc, "lr": lr})
    assert MetricAudit(frame, "m", "acc", "loss", ["lr"], seed=124).run().evidence["tests"]


def test_groups_are_corrected_for_all_metrics_and_groups():
    rng = np.random.default_rng(3)
    frame = table(11, n=240).assign(arch=lambda t: np.array(["cnn", "mlp", "vit"])[t.index % 3])
    frame["noise"] = rng.normal(size=240)
    frame.loc[frame.arch == "vit", "m"] += 2 * frame.acc
    frame = frame.sort_values("acc")  # the order that draws go by
    audits = audit_all(frame, ["m", "noise"], "acc", "loss", ["arch"], group="arch")
    masks = [(frame.arch == name).to_numpy() for name in ("cnn", "mlp", "vit")]
    expected = permutation_battery(
        frame[["m", "noise"]].to_numpy(),
        frame.acc.to_numpy(),
        design(frame, ["loss"]),
        rng=np.random.default_rng(0),
        draws=9999,
        groups=masks,
    )
    for place, label in enumerate(("arch=cnn", "arch=mlp", "arch=vit")):
        for index, name in enumerate(("m", "noise")):
            found = audits.by_group[name][label]
            assert found["max_t"] == expected.p_max[place, index] and found["n"] == 80
            assert found["bh"] == expected.p_bh[place, index] >= found["p"] - 1e-12
    small = {k for name in ("m", "noise") for k, v in audits.by_group[name].items() if v["max_t"] < 0.05}
    assert small == {"arch=vit"} and audits.by_group["noise"]["arch=vit"]["max_t"] > 0.05
    plain = audit_all(frame, ["m", "noise"], "acc", "loss", ["arch"])
    assert plain.by_group == {} and plain.adjusted == audits.adjusted != {}


def test_the_seed_of_several_audits_is_that_of_their_corrections_too():
    frame = table(12).assign(noise=np.random.default_rng(0).normal(size=150))
    found = [audit_all(frame, ["m", "noise"], "acc", "loss", seed=seed).adjusted for seed in (5, 5, 0)]
    assert found[0] == found[1] != found[2]
    with pytest.raises(TypeError, match="no_such"):
        audit_all(frame, ["m"], "acc", no_such=1)


def test_one_metric_in_several_groups_is_corrected_too_and_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    frame = table(11, n=240, effect=0.6).assign(arch=lambda t: np.where(t.index % 2, "cnn", "vit"))
    frame.to_csv(tmp_path / "runs.csv", index=False)
    command = ["metric", "audit", str(tmp_path / "runs.csv"), "--metric", "m", "--target", "acc"]
    command += ["--baseline", "loss", "--group", "arch"]
    assert run(command) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("arch=")]
    assert run([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    told = answer["adjusted_groups"]["m"]
    assert answer["adjusted"] == {} and [line[0] for line in shown] == list(told) == [
        "arch=cnn",
        "arch=vit",
    ]
    assert [float(line[-1]) for line in shown] == pytest.approx(
        [g["max_t"] for g in told.values()], rel=0.05
    )


def twins(seed: int, shape, n: int = 300) -> pd.DataFrame:
    """Two noisy readings of a loss; metric and target are one function of it and share nothing else."""
    rng = np.random.default_rng(seed)
    loss = rng.normal(size=n)
    noise = 0.5 * rng.normal(size=(2, n))
    readings = {name: loss + 0.3 * rng.normal(size=n) for name in ("loss", "again")}
    return pd.DataFrame({**readings, "m": shape(loss) + noise[0], "acc": noise[1] - shape(loss)})


@pytest.mark.parametrize(
    "shape", [lambda b: np.tanh(3 * b), lambda b: 1.5 * np.maximum(b, 0), lambda b: b**2 / 1.4]
)
def test_a_curved_effect_behind_noisy_twins_is_not_called_news(shape):
    for seed in range(3):
        verdict = MetricAudit(twins(seed, shape), "m", "acc", "loss", twin="again").run()
        assert verdict.outcome is Outcome.INCONCLUSIVE
        bend = next(reason for reason in verdict.reasons if reason.check == "bend")
        assert bend.fires and "cannot be told from news" in bend.sentence


def test_a_straight_effect_shows_no_bend_and_a_real_one_is_still_found():
    bends, found = [], 0
    for seed in range(40):
        frame = twins(seed, lambda b: b)
        news = np.random.default_rng([seed, 1]).normal(size=300)
        columns = (frame[name].to_numpy() for name in ("m", "acc", "loss", "again"))
        bends.append(twin_test(*columns, np.empty((300, 0))).curvature < 0.05)
        if seed < 3:
            real = frame.assign(m=frame.m + 0.7 * news, acc=frame.acc + 0.7 * news)
            found += (
                MetricAudit(real, "m", "acc", "loss", twin="again").run().outcome is Outcome.INDEPENDENT
            )
    assert sum(bends) <= 2 and found == 3


def test_a_bend_of_the_metric_alone_is_no_reason_to_doubt_the_twin():
    alone = []
    for seed in range(20):
        bent = twins(seed, lambda b: b).assign(m=twins(seed, lambda b: np.tanh(3 * b)).m)
        columns = (bent[name].to_numpy() for name in ("m", "acc", "loss", "again"))
        alone.append(twin_test(*columns, np.empty((300, 0))).curvature < 0.05)
    assert sum(alone) <= 3


@pytest.mark.parametrize("twin", ["loss", "m", "acc", "lr", "copy", "line", "flat"])
def test_a_twin_that_is_no_second_reading_is_refused(twin):
    frame = table(3).assign(copy=lambda t: t.loss, line=lambda t: 3 - 2 * t.loss, flat=1.0)
    frame["lr"] = np.random.default_rng(1).normal(size=len(frame))
    verdict = MetricAudit(frame, "m", "acc", "loss", ["lr"], twin=twin).run()
    assert verdict.outcome is Outcome.REFUSED and twin in verdict.reasons[0].sentence


def test_a_grid_of_few_rates_that_acts_along_a_curve_is_not_called_news():
    wrong = 0
    for seed in range(12):
        rng = np.random.default_rng([9, seed])
        decade, loss = rng.integers(-2, 3, 250), rng.normal(size=250)
        acts, noise = (decade**2 - 2) / 1.7 + loss, rng.normal(size=(2, 250))
        frame = pd.DataFrame({"lr": 10.0 ** (decade - 3), "loss": loss, "m": acts + noise[0]})
        frame["acc"] = noise[1] - acts
        wrong += MetricAudit(frame, "m", "acc", "loss", ["lr"]).run().outcome is Outcome.INDEPENDENT
    assert wrong <= 2


def test_where_no_test_can_be_computed_no_sign_is_wrong():
    decision = Decision(Claim("m", "acc", "loss", direction="negative"), delta=0.2, alpha=0.05)
    partial = replace(partial_spearman(*table(1)[["m", "acc"]].to_numpy().T), partial=math.nan)
    nothing = Findings(partial, math.nan, CrossFit((), {}), grouped=None, twin=None, units=150)
    reasons = decision.reasons(nothing)
    assert {reason.status for reason in reasons} == {"missing"}
    assert decision.decide(nothing, reasons)[0] is Outcome.INCONCLUSIVE


def test_a_sign_is_wrong_only_if_every_test_that_counts_says_so():
    rng = np.random.default_rng(0)
    z, w, noise = rng.normal(size=(3, 300))
    size = np.abs(z)
    frame = pd.DataFrame({"loss": z, "m": 2 * size + w, "acc": 2 * size - 0.6 * w + 0.3 * noise})
    for direction in ("negative", None):
        verdict = MetricAudit(frame, "m", "acc", "loss", direction=direction).run()
        assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.verdict == "INCONCLUSIVE (the tests find opposite signs)"


@pytest.mark.parametrize("factor", [1.0, 1e200])
@pytest.mark.parametrize("outlier", [None, 1e8, 1e20])
def test_one_run_that_diverged_does_not_make_the_metric_a_function_of_the_loss(outlier, factor):
    frame = table(14, n=150, effect=0.8)
    if outlier:
        frame.loc[0, ["m", "loss"]] = outlier
    frame[["m", "loss"]] *= factor
    verdict = MetricAudit(frame, "m", "acc", "loss").run()
    assert verdict.outcome is Outcome.INDEPENDENT
    exact = frame.assign(m=3 * frame.loss / factor - 1)
    assert MetricAudit(exact, "m", "acc", "loss").run().verdict == "PROXY (exact)"


def test_no_learner_is_asked_far_beyond_what_it_has_seen():
    frame = table(14, n=150)
    frame.loc[2, "loss"] = 1e8
    frame["lr"] = np.random.default_rng(1).normal(size=150)
    given = confounder_matrix(frame, ["loss", "lr"])
    folds = fold_rows(150, np.random.default_rng(0))
    left = cross_fit(FitTask(frame.m.to_numpy(), frame.acc.to_numpy(), given, folds)).residuals
    assert {name: np.abs(each).max() < 8 for name, each in left.items()} == dict.fromkeys(LEARNERS, True)


def test_one_loss_that_diverged_still_controls_the_others():
    rng = np.random.default_rng(3)
    loss = rng.normal(size=200)
    frame = pd.DataFrame({"loss": loss, "m": loss + 0.3 * rng.normal(size=200)})
    frame["acc"] = 0.3 * rng.normal(size=200) - loss
    frame.loc[0, "loss"] = 1e20
    tests = MetricAudit(frame, "m", "acc", "loss").run().evidence["tests"]["learners"]
    counted = [test for test in tests if test["eligible"]]
    assert counted and all(abs(test["r"]) < 0.2 for test in counted)


def test_a_table_with_a_comma_at_the_end_of_each_row_keeps_its_columns(tmp_path):
    plain = table(1).to_csv(index=False)
    head, *rows = plain.splitlines()
    (tmp_path / "comma.csv").write_text("\n".join([head, *(row + "," for row in rows)]))
    (tmp_path / "plain.csv").write_text(plain)
    pd.testing.assert_frame_equal(
        read_tables([tmp_path / "comma.csv"]), read_tables([tmp_path / "plain.csv"])
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("m,acc,m\n1,2,3\n", "more than one column 'm'"),
        ("m,acc\n1,2\n3,4,5\n", "line 3: more values than there are columns"),
    ],
)
def test_a_table_that_pandas_would_bend_into_shape_is_refused(tmp_path, content, words):
    (tmp_path / "runs.csv").write_text(content)
    with pytest.raises(BadInput, match=words):
        read_tables([tmp_path / "runs.csv"])


def test_a_category_called_none_is_a_category(tmp_path):
    (tmp_path / "runs.csv").write_text("m,sched\n1,None\n,cosine\nnan,null\n")
    frame = read_tables([tmp_path / "runs.csv"])
    assert frame.sched.tolist() == ["None", "cosine", "null"] and frame.m.isna().tolist() == [
        False,
        True,
        True,
    ]


def test_a_simulation_asks_the_claim_that_was_audited(monkeypatch):
    asked = []

    class Asked(MetricAudit):
        def __init__(self, *args, **options):
            asked.append(options)
            super().__init__(*args, **options)

    monkeypatch.setattr("walkback.metrics.simulate.MetricAudit", Asked)
    frame = table(14, n=120)
    simulate(frame, Claim("m", "acc", direction="negative"), runs=1, delta=0.3, alpha=0.01)
    assert [(o["direction"], o["delta"], o["alpha"]) for o in asked] == [("negative", 0.3, 0.01)] * 2
    for direction, sign in (("negative", -1), ("positive", 1)):
        claim = Claim("m", "acc", "loss", direction=direction)
        power = simulate(frame, claim, effect=0.8, runs=4)["power"]
        assert power.effect == sign * 0.8 and power.found >= 3


def test_regret_reads_a_baseline_in_the_direction_it_has():
    rng = np.random.default_rng(0)
    loss = rng.normal(size=60)
    frame = pd.DataFrame({"m": rng.normal(size=60), "val": loss, "test": loss + 0.01 * rng.normal(size=60)})
    regret = MetricAudit(frame, "m", "test", "val").canon()["regret"]
    assert regret["baseline"] < 0.1 < regret["random"]


def test_a_table_that_is_named_twice_counts_once(tmp_path, capsys):
    frame = table(16, n=60, effect=0.7)
    frame.to_csv(tmp_path / "runs.csv", index=False)
    command = ["metric", "audit", str(tmp_path / "runs.csv")]
    claim = ["--metric", "m", "--target", "acc", "--baseline", "loss", "--json"]
    assert run([*command, *claim]) == 3
    once = json.loads(capsys.readouterr().out)
    assert run([*command, command[-1], *claim]) == 3
    twice = json.loads(capsys.readouterr().out)
    for name in ("n", "verdict", "raw", "partial", "p", "tests"):
        assert once[name] == twice[name], name
    assert any("count once: 60 were left out" in note for note in twice["notes"])


def test_equal_rows_of_a_coarse_metric_are_runs_of_their_own():
    rng = np.random.default_rng(0)
    coarse = pd.DataFrame({"m": rng.integers(3, size=200), "acc": rng.integers(4, size=200)})
    assert len(drop_repeats(coarse, ["m", "acc"], ["m", "acc"])) == 200
    assert len(drop_repeats(pd.concat([table(), table()]), list(table()), ["m"])) == 150


def test_a_coarse_metric_does_not_make_chance_of_equal_losses():
    frame = table(16, n=60, effect=0.7).assign(seed=range(60))
    frame["m"] = frame["m"].round(0)
    once = MetricAudit(frame, "m", "acc", "loss").run()
    twice = MetricAudit(pd.concat([frame, frame]), "m", "acc", "loss").run()
    assert twice.evidence["n"] == once.evidence["n"] == 60
    assert twice.outcome is once.outcome and twice.evidence["tests"] == once.evidence["tests"]


def test_groups_are_made_of_the_rows_that_the_audit_counts():
    frame = table(3, n=130).assign(arch=np.resize(list("abc"), 130))
    frame.loc[::11, "m"] = np.inf
    frame.loc[5, "arch"] = None
    verdict = MetricAudit(frame, "m", "acc", "loss", group="arch").run()
    assert sum(row["n"] for row in verdict.evidence["groups"]) == verdict.evidence["n"] - 1
    kept = frame[np.isfinite(frame["m"]) & (frame["arch"] == "b")]
    alone = MetricAudit(kept, "m", "acc", "loss").run()
    assert verdict.evidence["groups"][1]["partial"] == alone.evidence["partial"]


def test_corrections_count_the_rows_that_all_audits_count():
    frame = table(3, n=260).assign(other=np.arange(260.0) % 7)
    frame.iloc[0, frame.columns.get_loc("other")] = np.nan
    found = audit_all(frame, ["m", "other"], "acc", "loss")
    assert found.verdicts["m"].evidence["n"] == 260
    assert {adjusted["n"] for adjusted in found.adjusted.values()} == {259}


def measured_again(seed: int, runs: int, effect: float = 0.0) -> pd.DataFrame:
    """Every run four times: the same loss and target, and a metric that differs by its noise alone."""
    once = table(seed, n=runs, effect=effect).assign(lr=np.random.default_rng([seed, 1]).normal(size=runs))
    again = pd.concat([once] * 4, ignore_index=True)
    return again.assign(m=again.m + 1e-6 * np.random.default_rng([seed, 2]).normal(size=4 * runs))


def test_a_run_that_is_measured_four_times_is_one_run():
    verdict = MetricAudit(measured_again(0, 60, effect=0.7), "m", "acc", "loss", ["lr"]).run()
    assert verdict.verdict == "INCONCLUSIVE (fewer than 100 independent rows)"
    assert any(note.startswith("240 rows are 60 runs:") for note in verdict.notes)
    assert verdict.evidence["n"] == 240 and verdict.evidence["tests"]["clusters"]["clusters"] == 60
    many = MetricAudit(measured_again(0, 110, effect=0.7), "m", "acc", "loss", ["lr"]).run()
    assert many.outcome is Outcome.INDEPENDENT


def test_runs_that_share_few_values_by_chance_are_runs_of_their_own():
    rng = np.random.default_rng(0)
    coarse = pd.DataFrame({"acc": rng.integers(9, size=200), "lr": rng.choice([0.1, 0.01, 0.001], 200)})
    assert same_runs(coarse, ["acc"]) is None and same_runs(coarse, ["acc", "lr"]) is None
    fine = measured_again(0, 60)
    assert same_runs(fine, ["acc"]) is None, "one column may agree by chance"
    assert same_runs(fine, ["acc", "loss"]).max() == 59
    assert same_runs(pd.concat([fine[:60], fine[:3]]), ["acc", "loss"]) is None, "a tenth is let pass"


@pytest.mark.parametrize("role", ["metric", "target", "baseline", "twin", "cluster"])
def test_a_column_without_a_name_is_refused(role):
    named = {"metric": "m", "target": "acc", "baseline": "loss", role: ""}
    with pytest.raises(BadInput, match=f"name of the {role} is empty"):
        MetricAudit(table(), **named).run()


def test_a_learner_that_predicts_clearly_worse_than_the_best_does_not_count():
    curved = table(16, n=200, shape=SHAPES["U"])
    metric, target = (curved[name].to_numpy() for name in ("m", "acc"))
    folds = fold_rows(len(target), np.random.default_rng(0))
    fitted = cross_fit(FitTask(metric, target, curved[["loss"]].to_numpy(), folds))
    counted = {test.learner: test.eligible for test in fitted.tests}
    assert fitted.best.eligible and not counted["linear"]
    assert any(counted[name] for name in ("spline", "kernel ridge"))


def test_a_product_that_changes_its_sign_is_followed_by_a_learner_that_has_products():
    """No other learner follows it at this size, and what they miss in both looks like news."""
    rng, seen = np.random.default_rng(11), []
    for _ in range(8):
        x = rng.uniform(-0.45, 0.45, (300, 3))
        acts = x.prod(axis=1)
        noise = 0.4 * acts.std() * rng.normal(size=(2, 300))
        task = FitTask(acts + noise[0], acts + noise[1], x, fold_rows(300, rng))
        tests = {test.learner: test for test in cross_fit(task).tests}
        assert tests["products"].eligible and not tests["trees"].eligible
        seen.append([(tests[name].r, tests[name].left) for name in ("kernel ridge", "products")])
    (kernel, more), (products, less) = np.mean(seen, axis=0)
    assert kernel > 0.1 and products < kernel / 2 and less < more
    one = cross_fit(FitTask(task.metric, task.target, x[:, :1], task.folds))
    assert "products" not in {test.learner for test in one.tests}, "one confounder has none"


def test_a_product_of_the_controls_is_not_called_news_of_its_own():
    rng = np.random.default_rng(5)
    x = rng.uniform(0.1, 1, (300, 3))
    metric = x.prod(axis=1)
    noise = metric.std() * rng.normal(size=(2, 300))
    frame = pd.DataFrame(
        {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "m": metric, "acc": metric + 0.4 * noise[0]}
    )
    verdict = MetricAudit(frame, "m", "acc", controls=["a", "b", "c"]).run()
    said = {reason.check: reason for reason in verdict.reasons}
    assert not said["kernel ridge"].fires, "it finds what it misses in both"
    assert said["products"].fires and said["products"].status == "ok"
    assert verdict.verdict == "INCONCLUSIVE (nuisance-sensitive)"
    assert said["rest"].fires and "cannot be told from news" in said["rest"].sentence
    news = frame.assign(m=metric + 0.4 * noise[1], acc=metric + 0.4 * noise.sum(axis=0))
    assert MetricAudit(news, "m", "acc", controls=["a", "b", "c"]).run().verdict == "INDEPENDENT"
