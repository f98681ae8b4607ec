"""The paper's studies: every run once, every table from stored numbers, a gap wherever one is missing."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.studies.conftest import DATA, rows_of, take
from tests.studies.made_up import ENVIRONMENT, write_run
from walkback import credit_metrics
from walkback.cli.main import run
from walkback.core.errors import BadInput
from walkback.core.spec import RunSpec
from walkback.judge.replay import histories
from walkback.judge.sweep import CHECKS, firing_rates
from walkback.judge.thresholds import Thresholds
from walkback.report import answer as report_answer
from walkback.report import words
from walkback.report.figures import save_figure
from walkback.report.markdown import render_table
from walkback.report.paper_figures import draw_five_rules
from walkback.report.published import NUMBERS, Published, published, unclamped
from walkback.rules import resolve_rule
from walkback.store import Store
from walkback.store.bundle import Member
from walkback.studies import (
    agreement,
    batch_size,
    border,
    bridges_and_ep,
    changes,
    controls,
    cross_architecture,
    decision_utility,
    encoding,
    feedback_draw,
    findings,
    five_rule,
    offset,
    paper,
    penalty,
    penalty_reduction,
    perturbation_step,
    pixels,
    public_code,
    rate,
    reasons,
    schedule,
    stem,
    temporal_replay,
    threshold_sensitivity,
)
from walkback.studies.answers import Answers, data_of
from walkback.studies.effect import mean
from walkback.studies.point import compare


def names(study):
    return [spec.name for spec in study.runs(DATA)]


def test_the_paper_study_lists_every_run_of_its_parts_once():
    planned = names(paper.STUDY)
    assert len(planned) == len(set(planned)) < sum(len(names(study)) for study in paper.PARTS)
    assert set(planned) == {name for study in paper.PARTS for name in names(study)}


def test_the_headline_runs_are_those_that_were_asked_for():
    specs = five_rule.STUDY.runs(DATA)
    assert {(s.epochs, s.schedule, s.batch, s.lr, s.weight_decay) for s in specs} == {
        (100, "cosine", 128, 1e-3, 0.01)
    }
    assert [s.rule.name for s in specs if s.seed == 456] == ["bp", "dfa", "frozen", "fa", "shallow"]
    assert {str(s.net) for s in specs} == {"resmlp(depth=4,expansion=4,terminal_norm=layer,width=256)"}
    assert {(str(s.net), s.epochs) for s in cross_architecture.STUDY.runs(DATA) if s.net.name == "vit"} == {
        ("vit(depth=4,expansion=4,heads=4,patch=4,pool=token,width=64)", 10)
    }


def test_the_full_tier_is_asked_for_where_table_2_reads_it():
    wanted = paper.STUDY.full_epochs(DATA)
    for spec in controls.LONG.plan(DATA["cifar10"]):
        assert {1, 100} <= set(wanted[spec])
    assert {tuple(epochs) for spec, epochs in wanted.items() if spec.epochs == 30} == {(30,)}


def test_with_every_run_there_is_no_gap(answers):
    for table in paper.tables(answers):
        if table.name != "progress":
            assert "not run" not in render_table(table), table.name


def test_a_seed_that_is_not_the_studys_own_changes_no_number(tmp_path):
    specs = [s for s in five_rule.ARM.plan(DATA["cifar10"]) if s.rule.name in ("dfa", "frozen")]
    store = Store(tmp_path)
    for spec in specs:
        write_run(store, spec)
    before = [render_table(table) for table in five_rule.tables(Answers(store, DATA))]
    for spec in specs[:2]:
        write_run(store, replace(spec, seed=7))
    assert [render_table(table) for table in five_rule.tables(Answers(store, DATA))] == before


def test_a_cell_is_the_mean_and_the_deviation_over_seeds(answers):
    table = {found.name: found for found in five_rule.tables(answers)}["table-1"]
    (row,) = rows_of(table, rule="dfa")
    values = [r.accuracy for r in answers.one(five_rule.ARM, "dfa").runs]
    assert len(values) == 3
    assert (row["accuracy"], row["accuracy_sd"]) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert (row["accuracy_paper"], row["accuracy_text"]) == (0.306, ".306 ± .006")
    assert (row["protocol"], row["protocol_paper"]) == ("walked back", "walked back")
    assert (row["quo"], row["quo_paper"]) == ("trustworthy", "trustworthy")
    assert row["artifact"] == "FAIL(D1+D2+D3)"
    (counts,) = rows_of(five_rule.counts(five_rule.rows_of(answers)), rules="all five")
    assert (counts["quo_paper"], counts["protocol_paper"]) == ("0 of 5", "3 of 5")


@pytest.mark.parametrize("arm, rule", [(five_rule.ARM, "dfa"), (penalty.ARM, "dfa+penalty(1e-2)")])
def test_a_rule_that_was_taken_away_is_shown_as_not_run_and_never_as_zero(copied, answers, arm, rule):
    label = answers.one(arm, rule).name
    take(copied, arm, rule)
    before = {table.name: table for table in paper.tables(answers)}
    after = {table.name: table for table in paper.tables(Answers(copied, DATA))}
    assert {name: len(t.rows) for name, t in before.items() if name != "provenance"} == {
        name: len(t.rows) for name, t in after.items() if name != "provenance"
    }, "no row is dropped"
    name = "table-1" if arm is five_rule.ARM else "penalty"
    (row,) = rows_of(after[name], rule=label)
    shown = dict(zip(after[name].titles, after[name].cells()[after[name].rows.index(row)], strict=True))
    assert shown["accuracy"] == "not run" and row["accuracy"] is None
    assert shown["seeds"] == "0 of 3" and row["runs"] == ""
    assert "not run" in render_table(after["agreement"])
    (counts,) = rows_of(after["table-1-counts"], rules="all five")
    assert counts["artifact"] == ("2 of 4 (1 not run)" if arm is five_rule.ARM else "3 of 5")


def test_where_runs_came_from_tells_other_rates_and_every_commit_apart(tmp_path):
    store = Store(tmp_path)
    for arm in (penalty.ARM, rate.ARM):
        for spec in arm.plan(DATA[arm.data]):
            if (str(spec.rule), spec.seed) == ("bp", 42):
                bundle = write_run(store, spec)
    bundle.commit([], environment={**ENVIRONMENT, "commit": "f" * 40 + "+changes"})
    table = paper.provenance_table(Answers(store, DATA))
    usual, fast = table.rows
    assert (usual["lr"], fast["lr"]) == (1e-3, 3e-3) and "rate" in table.titles
    assert usual["commits"] == ENVIRONMENT["commit"][:12]
    assert fast["commits"] == f"{ENVIRONMENT['commit'][:12]}, {'f' * 12}+changes"
    assert fast["torch"] == usual["torch"], "what did not change is told once"


def test_one_seed_less_is_counted_and_a_running_one_is_not_used(copied):
    take(copied, five_rule.ARM, "dfa", seeds=(123,))
    spec = next(s for s in five_rule.ARM.plan(DATA["cifar10"]) if (s.rule.name, s.seed) == ("dfa", 123))
    dfa = Answers(copied, DATA).one(five_rule.ARM, "dfa")
    assert (len(dfa.runs), dfa.planned, dfa.running) == (2, 3, 0)
    write_run(copied, spec, state="running")
    dfa = Answers(copied, DATA).one(five_rule.ARM, "dfa")
    assert (len(dfa.runs), dfa.running) == (2, 1)
    table = five_rule.tables(Answers(copied, DATA))[0]
    assert rows_of(table, rule="dfa")[0]["seeds"] == 2
    assert any(cells[0] == "dfa" and "2 of 3 (1 running)" in cells for cells in table.cells())


def test_a_run_that_diverged_counts_and_is_named(copied):
    take(copied, five_rule.ARM, "dfa", seeds=(123,))
    spec = next(s for s in five_rule.ARM.plan(DATA["cifar10"]) if (s.rule.name, s.seed) == ("dfa", 123))
    write_run(copied, spec, state="diverged")
    table = five_rule.tables(Answers(copied, DATA))[0]
    assert any(cells[0] == "dfa" and "3 (1 diverged)" in cells for cells in table.cells())


def test_a_run_that_lacks_the_full_tier_is_not_measured_rather_than_not_run(copied):
    take(copied, five_rule.ARM, "dfa", seeds=(42,))
    spec = next(s for s in five_rule.ARM.plan(DATA["cifar10"]) if (s.rule.name, s.seed) == ("dfa", 42))
    write_run(copied, spec, full=False)
    table = controls.table_2(Answers(copied, DATA))
    row = rows_of(table, rule="dfa, converged")[0]
    assert row["rho_gap"] == "not measured in 1 of 3 seeds" and row["rho"] is None
    assert row["clamped_gap"] == ""


def test_steps_of_rho_are_compared_over_the_seeds_that_were_measured_with_both(copied, answers):
    read = {row["rule"]: row for row in perturbation_step.step_table(answers)[0].rows}
    assert len(read) == 4 and all(row["seeds"] == 3 for row in read.values())
    late = read["dfa, converged"]
    assert late["fixed"] < late["rho"] and late["rho_text"] == "+.002"
    for seed in (123, 456):
        spec = next(s for s in perturbation_step.LONG.plan(DATA["cifar10"]) if s.seed == seed)
        shutil.rmtree(copied.path / spec.name)
        write_run(copied, spec, fixed_step=False)
    fewer = Answers(copied, DATA)
    row = rows_of(perturbation_step.step_table(fewer)[0], rule="dfa, converged")[0]
    (run,) = answers.one(five_rule.ARM, "dfa").of_seeds({42}).runs
    assert (row["seeds"], row["rho"]) == (1, pytest.approx(report_answer.RHO.read(run)))
    why = {point.what: point.why for point in agreement.points_of(fewer)}["dfa, converged: ρ"]
    assert "(1 seed)" in why and "not measured" not in why
    spec = next(s for s in perturbation_step.LONG.plan(DATA["cifar10"]) if s.seed == 42)
    shutil.rmtree(copied.path / spec.name)
    write_run(copied, spec, fixed_step=False)
    none = Answers(copied, DATA)
    row = rows_of(perturbation_step.step_table(none)[0], rule="dfa, converged")[0]
    assert (row["seeds"], row["fixed"], row["fixed_gap"]) == (3, None, "not measured")
    why = {point.what: point.why for point in agreement.points_of(none)}["dfa, converged: ρ"]
    assert "is not measured (walkback audit perturbation-step decides it)" in why


def _without_a_number(run):
    table = type(run.measurements)([*run.measurements])
    table.readings = [
        r._replace(value=math.nan, status="nan") if r.quantity == "perturbation.rho_compat@1" else r
        for r in table.readings
    ]
    return replace(run, measurements=table)


def test_a_fixed_step_that_gives_the_papers_rho_is_said_to(answers):
    paper_rho = published("dfa, converged", "rho")
    dfa = answers.one(five_rule.ARM, "dfa")
    lost = replace(dfa, case=replace(dfa.case, runs=[_without_a_number(run) for run in dfa.runs]))
    assert perturbation_step.statement(lost, paper_rho) == "By a fixed step ρ is not a number."
    held = answers.one(perturbation_step.SHORT, perturbation_step.STRONG)
    read = mean(held, perturbation_step.FIXED)
    near, far = (paper_rho._replace(value=read + off, sd=0.01) for off in (0.0, 0.5))
    assert perturbation_step.statement(held, near).endswith("(3 seeds): agrees.")
    assert "differs by −0.500" in perturbation_step.statement(held, far)
    assert perturbation_step.statement(dfa, near).endswith("the same step reads 0.000.")


def test_a_reading_that_is_not_a_number_is_told_apart_from_one_that_was_never_taken(copied):
    take(copied, five_rule.ARM, "dfa", seeds=(42,))
    spec = next(s for s in five_rule.ARM.plan(DATA["cifar10"]) if (s.rule.name, s.seed) == ("dfa", 42))
    write_run(copied, spec, state="diverged", cosine=math.nan)
    found = Answers(copied, DATA)
    table = {t.name: t for t in five_rule.tables(found)}["table-1-scale"]
    row = rows_of(table, rule="dfa")[0]
    assert row["exact_gap"] == "not a number in 1 of 3 seeds" and row["exact"] is None
    assert row["clamped_gap"] == "not a number in 1 of 3 seeds"
    assert "not known" in findings.first_deep_layer(found) and "not run" not in findings.first_deep_layer(
        found
    )


def test_a_seed_that_diverged_agrees_with_nothing(copied):
    """Its accuracy is what it had then: a mean over it would be wide enough to agree with anything."""
    take(copied, five_rule.ARM, "dfa", seeds=(123,))
    spec = next(s for s in five_rule.ARM.plan(DATA["cifar10"]) if (s.rule.name, s.seed) == ("dfa", 123))
    write_run(copied, spec, state="diverged", accuracy=0.0)
    points = {point.what: point for point in agreement.points_of(Answers(copied, DATA))}
    assert points["dfa, accuracy"].standing == "diverged in 1 of 3 seeds"
    assert not points["dfa, accuracy"].agrees
    row = _change(Answers(copied, DATA), "dfa", "A border of the mean colour", "100")
    assert (row["seeds"], row["diverged"]) == (3, ", 1 unchanged diverged")
    row = _change(Answers(copied, DATA), "dfa", "A constant rate", "100")
    assert row["seeds"] == 1 and not row["diverged"], "seed 42 stands beside seed 42 alone"
    assert " cannot be judged" in agreement.agreement_table(Answers(copied, DATA)).caption


def test_a_rule_that_is_still_training_is_running_and_not_not_run(copied, answers):
    take(copied, five_rule.ARM, "dfa")
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "dfa":
            write_run(copied, spec, state="running")
    tables = {t.name: t for t in five_rule.tables(Answers(copied, DATA))}
    row = rows_of(tables["table-1"], rule="dfa")[0]
    assert {row[key] for key in ("accuracy_gap", "quo", "protocol", "artifact")} == {"running"}
    (counts,) = rows_of(tables["table-1-counts"], rules="all five")
    assert counts["artifact"] == "2 of 4 (1 running)"
    (drawing,) = decision_utility.figures(Answers(copied, DATA))
    assert b"running" in save_figure("figure-5", drawing.draw, ["svg"])["svg"]
    found = Answers(copied, DATA)
    first = rows_of(
        temporal_replay.first_table(found)[0], rule="dfa", recipe=found.one(five_rule.ARM, "dfa").recipe
    )
    assert {row["D1_gap"] for row in first} == {"running"}
    one = found.one(five_rule.ARM, "dfa").of_seeds({42})
    assert (one.running, one.gap) == (1, "running")
    progress = rows_of(paper.progress_table(Answers(copied, DATA)), study="five-rule")[0]
    assert (progress["finished"], progress["running"], progress["not run"]) == (12, 3, 0)


def test_first_firing_tells_never_from_not_known_and_not_run(copied):
    take(copied, five_rule.ARM, "frozen", seeds=(42,))
    take(copied, five_rule.ARM, "bp", seeds=(123,))
    table = temporal_replay.first_table(Answers(copied, DATA))[0]
    recipe = Answers(copied, DATA).one(five_rule.ARM, "bp").recipe
    long = {row["seed"]: row for row in rows_of(table, rule="bp", recipe=recipe)}
    assert long[42]["D1_first"] is None and long[42]["D1_gap"] == ""
    assert long[42]["D3_gap"] == "not known" and long[123]["D1_gap"] == "not run"
    dfa = rows_of(table, rule="dfa", seed=456)[0]
    assert (dfa["D1_first"], dfa["D1_stays"]) == (10, 10)
    shown = render_table(table)
    assert "never" in shown and "not known" in shown and "not run" in shown


@pytest.mark.parametrize("name", list(threshold_sensitivity.NAMES))
def test_firing_by_threshold_is_what_the_detectors_say_one_by_one(answers, name):
    """Against judge.sweep, which asks the detector anew for every threshold."""
    values = threshold_sensitivity.values_of(answers)[name]
    arms = threshold_sensitivity.ARMS
    runs = [answer.bundles for arm in arms for answer in answers.of(arm, ("bp", "dfa"))]
    past = [history for bundles in runs for history in histories(bundles)]
    grid, logic = threshold_sensitivity.VALUES[name], "paper" if name == "compat" else "artifact"
    for value in (grid[0], grid[len(grid) // 2]):
        slow = firing_rates(past, CHECKS[name], logic, Thresholds(**{name: float(value)}))
        fast = {group: threshold_sensitivity.firing(name, seen, value) for group, seen in values.items()}
        assert (fast["bp"], len(values["bp"].values)) == slow["bp"]
        assert fast["dfa"] + fast["others"] == slow["dfa"][0]


def test_no_epoch_is_counted_twice_for_a_threshold(answers):
    """Ten epochs at a constant rate are the first ten of a hundred: the same readings again."""
    seen = []
    for arm in threshold_sensitivity.ARMS:
        for answer in answers.of(arm, ("bp", "dfa")):
            spec = {k: v for k, v in answer.spec.items() if k not in ("seed", "epochs")}
            kept = spec["schedule"] == "constant"
            seen += [(str(spec), run.seed) for run in answer.runs if kept]
    assert len(seen) == len(set(seen))


def test_calibration_says_what_backprop_at_its_worst_would_need(answers):
    values = threshold_sensitivity.values_of(answers)
    (row,) = rows_of(threshold_sensitivity.calibration_table(values), name="D1 growth")
    assert threshold_sensitivity.firing("growth", values["growth"]["bp"], row["worst"]) == 0
    assert threshold_sensitivity.firing("growth", values["growth"]["bp"], row["worst"] * 0.99) > 0


def net_row(net, norm, dfa, bp="0 of 3", epochs=10):
    return {"net": net, "norm": norm, "dfa_artifact": dfa, "bp_artifact": bp, "epochs": epochs}


def test_the_gradient_floor_statement_says_only_what_the_runs_carry():
    say = cross_architecture.floor_statement
    vit, cnn = net_row("ViT", "yes", "3 of 3, from epoch 4"), net_row("CNN", "no", "0 of 3")
    assert "fires on ViT (3 of 3 seeds), and not on CNN (0 of 3 seeds)." in say([vit, cnn])
    assert "So in these runs it fires only on terminal-normalised nets." in say([vit, cnn])
    missing = net_row("Student", "no", "not run", "not run")
    assert "Not run or not known: Student." in say([vit, cnn, missing])
    assert "without a terminal norm too: CNN" in say([vit, net_row("CNN", "no", "1 of 3, from epoch 9")])
    long = net_row("ResMLP", "yes", "3 of 3, from epoch 8", epochs=100)
    quiet = net_row("ViT", "yes", "0 of 3")
    assert "not decided" in say([long, quiet, cnn]), "ten quiet epochs of one net say nothing of another"
    assert "not known: no net was run" in say([missing])
    broken = net_row("ViT", "yes", "not known")
    assert "not known: ViT." in say([long, broken]) and "not on ViT" not in say([long, broken])
    assert "Under backprop it fires on ViT." in say(
        [net_row("ViT", "yes", "3 of 3", "1 of 3, from epoch 2")]
    )


def test_agreement_is_two_deviations_of_both_or_a_factor_of_three():
    number = Published("t", "r", "q", 0.30, ".30 ± .01", 0.01)
    assert compare(number, 0.319, None) == "agrees"
    assert compare(number, 0.321, None) == "differs by +0.021"
    assert compare(number, 0.321, 0.01) == "within our own spread"
    assert compare(number, 0.319, 0.01) == "agrees", "the paper's spread is enough"
    assert compare(number, 0.321, 0.004) == "within our own spread", "however narrow it is"
    rough = Published("t", "r", "q", 1e8, "~ 1e8")
    assert compare(rough, 2.9e8, None) == "agrees"
    assert compare(rough, 3.1e8, None) == "3.10 times the paper's"
    bare = Published("t", "r", "q", 0.10, ".10")
    assert compare(bare, 0.10, None).endswith("no spread to judge it by")
    span = Published("t", "r", "q", -0.015, "−.03 … 0", reach=0.015)
    assert compare(span, -0.029, None) == "agrees"
    assert compare(span, 0.016, 0.001) == "differs by +0.016", "from the end that is nearer"


@pytest.mark.parametrize(
    ("swapped", "part"),
    [
        (
            {42: 0.31, 456: 0.32},
            "neither * feedback alone nor * weights and batches alone are enough",
        ),
        (
            {42: 0.36, 456: 0.31},
            "* feedback alone is enough, * weights and batches alone are not",
        ),
        (
            {42: 0.30, 456: 0.37},
            "* weights and batches alone are enough, * feedback alone is not",
        ),
        (
            {42: 0.36, 456: 0.36},
            "* feedback alone is enough, and so are * weights and batches alone",
        ),
    ],
)
def test_what_makes_a_seed_differ_is_what_the_other_ends_like_when_it_has_it(swapped, part):
    part = part.replace("*", "seed 456's")
    told = feedback_draw.what_makes_it({42: 0.30, 456: 0.37}, swapped)
    above = "To bring a run above the middle of seeds 456 and 42 (.335)"
    assert told == f"{above}, {part}: four runs, no more."


def test_swaps_say_nothing_before_all_four_are_there(copied):
    full = feedback_draw.statement(Answers(copied, DATA))
    assert full.startswith("To bring a run above the middle of seeds")
    (spec,) = [s for s in feedback_draw.ARMS[42].plan(DATA["cifar10"]) if s.rule.name == "dfa"]
    shutil.rmtree(copied.path / spec.name)
    assert feedback_draw.statement(Answers(copied, DATA)) == ""


def test_a_median_that_agrees_says_how_many_seeds_do(tmp_path):
    store = Store(tmp_path)
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "dfa":
            write_run(store, spec, size={42: 1.1e8, 123: 6e7, 456: 4e6}[spec.seed])
    points = {point.what: point for point in agreement.points_of(Answers(store, DATA))}
    assert points["dfa, ‖h_L‖"].standing == "agrees, 2 of 3 seeds" and points["dfa, ‖h_L‖"].agrees


def test_the_tally_counts_every_number_once(answers, tmp_path):
    for found in (answers, Answers(Store(tmp_path), DATA)):
        table = agreement.agreement_table(found)
        tally = table.caption[table.caption.index("Of ") :]
        total, *parts = map(int, re.findall(r"(?:^Of |numbers |, )(\d+)", tally))
        assert total == sum(parts) == len(table.rows), tally
        differ = sum(
            row["standing"].startswith("differs") or "times" in row["standing"] for row in table.rows
        )
        assert f" {differ} differ" in tally if differ else "differ" not in tally
    assert tally == f"Of {len(table.rows)} numbers {len(table.rows)} have no finished run."


def test_the_deviation_of_a_null_is_told_of_one_layer_too(answers):
    (point,) = [p for p in agreement.points_of(answers) if p.what.startswith("fresh B")]
    layers = [
        np.mean([run.number("alignment.null_sd@1", layer) for run in point.answer.runs])
        for layer in range(1, 5)
    ]
    assert f"Of one layer alone it is {min(layers):.4f} to {max(layers):.4f} here." in point.why


def test_a_credit_outside_its_null_is_told_with_its_side(tmp_path):
    store = Store(tmp_path)
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "dfa" and spec.seed != 456:
            bundle = write_run(store, spec)
            tier = "".join(
                f"100,{layer},alignment.null_{name}@1,{value},ok\n"
                for layer, p, z in ((1, 0.005, 9.0), (2, 0.04, -3.0), (3, 0.06, -2.0), (4, 0.5, 0.1))
                for name, value in (("p", p), ("z", z))
            )
            text = f"epoch,layer,quantity,value,status\n{tier}".encode()
            bundle.commit([Member("full/epoch-0100.csv", "full", text, 100)], drop=["full/epoch-0001.csv"])
    dfa = Answers(store, DATA).one(five_rule.ARM, "dfa")
    told = "above fresh feedback in 2 and below it in 2 of 8 readings"
    assert controls.outside(dfa, range(1, 5)) == told
    assert controls.outside(dfa, [1]) == "above fresh feedback in 2 of 2 readings"


def test_a_number_of_one_seed_stands_beside_that_seed(answers):
    points = {point.what: point for point in agreement.points_of(answers)}
    assert [run.seed for run in points["dfa, cosine of layer 0"].answer.runs] == [42]
    assert [run.seed for run in points["dfa, Γ"].answer.runs] == [42, 123, 456]
    assert points["dfa, ‖g_L‖"].why.count("Seed by seed: ") == 1


def test_the_best_epoch_stands_beside_the_last_one(tmp_path):
    store = Store(tmp_path)
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "bp" and spec.seed in (42, 123):
            bundle = write_run(store, spec)
            text = bundle.light_tier().to_csv()
            raised, count = re.subn(r"(?m)^50,,accuracy\.test@1,[^,]*", "50,,accuracy.test@1,0.75", text)
            assert count == 1
            bundle.commit([Member("measurements.csv", "measurements", raised.encode())])
    point = agreement.points_of(Answers(store, DATA))[0]
    last = [run.accuracy for run in point.answer.runs]
    assert f"chosen on the test split, .7500, .7500: +{75 - 50 * sum(last):.1f} pp." in point.why


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ({1: 0.36, 2: 0.33, 5: 0.36, 9: 0.42}, "; it passes the paper's 2 times, in epochs 2 to 5."),
        ({1: 0.30, 2: 0.34, 3: 0.35}, "; it passes the paper's 1 time, in epoch 3."),
        ({1: 0.30, 2: 0.34}, "highest after 2 (.3400): always below the paper's."),
        (
            {1: 0.40, 2: 0.36},
            "lowest after 2 (.3600) and highest after 1 (.4000): always above the paper's.",
        ),
    ],
)
def test_a_curve_tells_when_it_had_the_papers_number(curve, words):
    assert reasons.passages(curve, 0.349).endswith(words)


def test_an_epoch_that_a_seed_lacks_is_not_part_of_the_curve(tmp_path):
    store = Store(tmp_path)
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "frozen" and spec.seed in (42, 123):
            bundle = write_run(store, spec)
            line = "" if spec.seed == 42 else "50,,accuracy.test@1,0.01,ok\n"
            text, count = re.subn(r"(?m)^50,,accuracy\.test@1,.*\n", line, bundle.light_tier().to_csv())
            assert count == 1
            bundle.commit([Member("measurements.csv", "measurements", text.encode())])
    (frozen,) = [p for p in agreement.points_of(Answers(store, DATA)) if p.what == "frozen, accuracy"]
    assert "the mean over seeds is lowest" in frozen.why and ".0100" not in frozen.why


def test_the_papers_ep_row_lies_under_its_own_frozen_one():
    said = findings.ep_against_frozen()
    assert "by 3.3 pp" in said and "[−10.8, +4.2]" in said and "INCONCLUSIVE" in said
    assert "[−12.4, +5.8] if its deviations are of a population" in said


def _reduced(reading, weight):
    return penalty_reduction.ARMS[reading], penalty_reduction.rule_of(weight, reading)


def test_a_penalised_number_is_told_under_each_reading_of_the_penalty_or_said_not_to_have_been_run(
    copied, answers
):
    (point,) = [p for p in agreement.points_of(answers) if p.what == "dfa+penalty(0.01): ‖h_L‖"]
    assert "averaged over features: " in point.why and "not run" not in point.why
    readings = point.why.partition(offset.OFF_BY_ONE)[0]
    assert readings.count("times the paper's") + readings.count("agrees") == 3
    take(copied, *_reduced(penalty_reduction.ERROR_SUMMED, "1e-2"))
    said = reasons.of_reductions(Answers(copied, DATA), report_answer.STATE)
    assert "over the batch: not run (walkback audit penalty-reduction decides it)." in said
    assert said.count("not run") == 1


def test_how_many_numbers_each_reading_of_the_penalty_gives_is_counted_or_said_not_to_have_been_run(
    copied, answers
):
    said = findings.penalty_readings(answers)
    assert re.search(
        r"sum: \d of 4.* \(3 seeds\); mean: \d of 4.* \(1 seed\); mean, error summed: \d of 4.* \(3 seeds",
        said,
    )
    take(copied, *_reduced(penalty_reduction.ERROR_SUMMED, "1e-2"))
    assert "mean, error summed: not run;" in findings.penalty_readings(Answers(copied, DATA))
    assert "mean, error summed: not run;" in findings.penalty_layers(Answers(copied, DATA))
    told = re.search(r"sum: (\S+) and (\S+) \(3 seeds; p ≤ 0.05", findings.penalty_layers(answers))
    strong = answers.one(penalty.ARM, penalty.RULES["dfa"][-1])
    layers = [np.mean([r.number("alignment.cosine@1", n) for r in strong.runs]) for n in range(1, 5)]
    assert told.groups() == tuple(f"{value:+.3f}" for value in (layers[0], np.mean(layers[1:])))


def test_an_error_summed_over_the_batch_makes_the_penalty_beside_it_smaller_by_the_batch():
    weights = [
        resolve_rule(penalty_reduction.rule_of("1e-2", reading)).plus[-1].params
        for reading in penalty_reduction.READINGS
    ]
    assert [w["over"] for w in weights] == ["sum", "mean", "mean", "mean"]
    assert [w["weight"] for w in weights] == [1e-2, 1e-2, 1e-2 / 128, 1e-2]


def test_a_number_of_table_2_is_told_with_an_index_that_is_off_by_one_or_said_not_to_have_been_run(
    copied, answers
):
    told = {point.what: point.why for point in agreement.points_of(answers)}
    numbers = [what for what, why in told.items() if offset.OFF_BY_ONE in why]
    assert len(numbers) == 11, "the ten of Table 2, and the range that the text gives"
    label = offset.read_as(answers, offset.FIRST, offset.LABEL)
    assert {run.epoch for run in label.runs} == {1} and len(label.runs) == 3
    shown = offset.point_of(answers, offset.FIRST, offset.LABEL, report_answer.CLAMPED).measured
    assert f"{offset.OFF_BY_ONE}: {shown} (3 seeds), " in told["dfa, epoch 1: deep cosine"]
    assert "(1 seed), " in told["dfa, cosine of deep layers"].partition(offset.OFF_BY_ONE)[2], "seed 42"
    take(copied, offset.ARMS[offset.LABEL][0], offset.rule_of(offset.LABEL))
    told = {point.what: point.why for point in agreement.points_of(Answers(copied, DATA))}
    assert f"{offset.OFF_BY_ONE}: not run (walkback audit offset decides it)." in told["dfa, converged: ρ"]


def test_how_many_numbers_each_reading_of_the_index_gives_is_counted_or_said_not_to_have_been_run(
    tmp_path,
):
    store = Store(tmp_path)
    assert findings.index_readings(Answers(store, DATA)).count(": not run") == 3
    for reading, cosine in ((offset.OWN, 0.4), (offset.LABEL, 0.155)):
        arm = offset.ARMS[reading][1]
        strong = str(resolve_rule(offset.rule_of(reading, penalty.WEIGHTS[-1])))
        for spec in arm.plan(DATA["cifar10"]):
            if str(spec.rule) == strong:
                write_run(store, spec, cosine=cosine)
    found = Answers(store, DATA)
    said = findings.index_readings(found)
    counts = re.findall(r": (\d+) of 16[^.]*; 12 not run \(3 seeds\)\.", said)
    own, label = (
        sum(point.agrees for point in offset.points(found, reading) if point.answer.runs)
        for reading in (offset.OWN, offset.LABEL)
    )
    assert counts == [str(own), str(label)] and label == own + 1
    assert "the state it reads, diagnosed by the same: not run." in said


def test_a_mean_over_the_papers_rows_is_drawn_as_it_would_be_over_ours(answers):
    """4e-4 over 128 rows is 1e-4 over our 512; what is no such mean stays as it is printed."""
    number = published("bp", "reference norm")
    assert (number.rows, number.shown) == (128, "~ 4e-4 over 128 rows")
    assert number.over(512) == pytest.approx(1e-4)
    plain = published("bp", "accuracy")
    assert (plain.over(512), plain.shown) == (plain.value, plain.text)
    (bp,) = answers.of(five_rule.ARM, ["bp"])
    panels = draw_five_rules([bp]).axes
    diamonds = [
        [x for line in panel.lines if line.get_marker() == "D" for x in line.get_xdata()]
        for panel in panels
    ]
    assert diamonds[0] == [plain.value] and diamonds[3] == [pytest.approx(1e-4)]


def test_a_number_that_the_paper_gives_of_one_seed_is_counted_by_that_seed(answers):
    points = offset.points(answers, offset.OWN)
    seeds = {point.paper.quantity: [run.seed for run in point.answer.runs] for point in points}
    assert seeds["cosine of layer 0"] == seeds["cosine of deep layers"] == [42]
    assert seeds["accuracy"] == [42, 123, 456]


def test_the_readings_of_an_offset_stand_side_by_side_and_no_gain_is_given_for_the_first_epoch(answers):
    table = offset.offset_table(answers)
    assert [row["rule"] for row in table.rows] == [name for name in offset.ROWS for _ in offset.READINGS]
    first = dict(zip(table.titles, table.cells()[0], strict=True))
    assert first["gain over frozen (pp)"] == first["verdict"] == "—"
    seeds = {(row["by"], row["shown"]): row["seeds"] for row in table.rows}
    assert seeds[offset.TOLD[offset.LABEL]] == 3 and seeds[offset.TOLD[offset.USE]] == 1
    specs = {
        reading: resolve_rule(offset.rule_of(reading, "1e-2")) for reading in (offset.LABEL, offset.USE)
    }
    assert [specs[r].plus[0].params["read"] for r in specs] == [offset.LABEL, offset.USE]
    assert {specs[r].plus[1] for r in specs} == {resolve_rule("dfa+penalty(1e-2)").plus[0]}


INPUTS = pytest.mark.parametrize(
    "study, tables, effect, what, values, unknown",
    [
        (
            border,
            border.border_table,
            findings.border_effect,
            "border",
            ("black", "mean colour"),
            "11 not run",
        ),
        (
            encoding,
            encoding.encoding_tables,
            findings.encoding_effect,
            "images",
            ("cifar10", "cifar10-lossless"),
            "1 cannot be judged, 11 not run",
        ),
    ],
    ids=["border", "encoding"],
)


@INPUTS
def test_what_another_input_does_to_a_verdict_is_told_where_both_were_run(
    tmp_path, study, tables, effect, what, values, unknown
):
    """Made-up runs have the same verdict on both, so one is made to fail."""
    store = Store(tmp_path)
    for arm in (penalty.ARM, study.SHORT):
        for spec in arm.plan(DATA[arm.data]):
            if spec.seed == 42 and spec.rule.name in ("dfa", "frozen"):
                write_run(store, spec, size=1.0 if arm is study.SHORT else 1e7)
    said = effect(Answers(store, DATA))
    assert "dfa after 30 epochs (1 seed): FAIL(D3)" in said and "instead of FAIL(D1+D2+D3)" in said
    assert "that the paper prints" not in said, "nothing was run at the paper's length"
    assert effect(Answers(Store(tmp_path / "none"), DATA)).endswith("not run.")


@INPUTS
def test_table_1_is_shown_with_either_input_and_judged_against_frozen_blocks_of_the_same(
    tmp_path, study, tables, effect, what, values, unknown
):
    store = Store(tmp_path)
    reached = {"bp": 0.6, "dfa": 0.31, "frozen": 0.36}
    for arm, gain in ((five_rule.ARM, 0.0), (study.LONG, 0.1)):
        for spec in arm.plan(DATA[arm.data]):
            if spec.rule.name in reached:
                better = gain * (spec.rule.name == "frozen")
                write_run(store, spec, accuracy=reached[spec.rule.name] + better, size=1.0)
    rows = [row for row in tables(Answers(store, DATA))[1].rows if row["rule"] in reached]
    assert [(row["rule"], row[what]) for row in rows] == [
        (rule, value) for rule in reached for value in values
    ]
    assert {row["seeds"] for row in rows} == {len(study.LONG.seeds)}
    assert [row["accuracy"] for row in rows[-2:]] == pytest.approx([0.36, 0.46])
    assert [row["protocol"] for row in rows] == [
        "trustworthy",
        "trustworthy",
        "walked back",
        "walked back",
        "baseline",
        "baseline",
    ]
    shutil.rmtree(store.path / study.LONG.plan(DATA[study.LONG.data])[0].name)
    (bp,) = rows_of(tables(Answers(store, DATA))[1], rule="bp", **{what: values[1]})
    assert bp["seeds"] == len(study.LONG.seeds) - 1 and bp["planned"] == len(study.LONG.seeds)


@INPUTS
def test_which_accuracies_come_out_with_each_input_is_listed(
    tmp_path, study, tables, effect, what, values, unknown
):
    store = Store(tmp_path)
    for arm, accuracy in ((five_rule.ARM, 0.5), (study.LONG, 0.615)):
        for spec in arm.plan(DATA[arm.data]):
            if spec.rule.name == "bp":
                write_run(store, spec, accuracy=accuracy)
    said = effect(Answers(store, DATA))
    seeds = words.plural(len(study.LONG.seeds), "seed")
    told = re.search(
        rf"{values[0]}: (\d+) of 14[^;]*; {unknown} \({seeds}\); accuracies among "
        rf"them: none; {values[1]}: (\d+) of 14[^;]*; {unknown} \({seeds}\); "
        r"accuracies among them: bp\.$",
        said,
    )
    assert told, said
    assert "Of the 14 numbers that the paper prints of bp, dfa and frozen, without ρ" in said
    assert int(told[2]) == int(told[1]) + 1


@INPUTS
def test_a_control_asked_alone_stands_beside_the_headlines_runs_of_the_store(
    whole, study, tables, effect, what, values, unknown
):
    own = data_of(whole, [arm.data for arm in study.STUDY.arms])
    assert "cifar10" not in own
    for table in tables(Answers(whole, own)):
        assert "not run" not in render_table(table)
        assert {row[what] for row in table.rows} == set(values)


def test_images_that_are_lossless_everywhere_are_not_compared_with_themselves(whole):
    same = dict.fromkeys(DATA, DATA["cifar10"])
    assert findings.encoding_effect(Answers(whole, same)).endswith("so there is nothing to compare.")
    assert "nothing to compare" not in findings.encoding_effect(Answers(whole, DATA))


def test_every_finding_is_told_whether_runs_are_there_or_not(answers, tmp_path):
    for found, gaps in ((answers, False), (Answers(Store(tmp_path), DATA), True)):
        rows = findings.findings_table(found).rows
        assert len(rows) == len(findings.FINDINGS)
        assert any("not run" in row["finding"] for row in rows) == gaps
        assert all("None" not in row["finding"] and "nan" not in row["finding"] for row in rows)


def test_a_rule_whose_seeds_disagree_about_depth_is_shown_seed_by_seed(tmp_path):
    store = Store(tmp_path)
    reached = {42: 0.31, 123: 0.30, 456: 0.37}
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name in ("dfa", "frozen"):
            accuracy = 0.36 if spec.rule.name == "frozen" else reached[spec.seed]
            write_run(store, spec, accuracy=accuracy, size=1.0)
    said = findings.open_depth(Answers(store, DATA))
    assert (
        said.startswith("D3 is open where its 96 % interval holds the threshold of two points")
        and "Seed by seed, dfa gains −5.0, −6.0, +1.0 pp" in said
    )
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if (spec.rule.name, spec.seed) == ("dfa", 456):
            shutil.rmtree(store.path / spec.name)
    assert findings.open_depth(Answers(store, DATA)).startswith("Depth is decided")
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "frozen":
            shutil.rmtree(store.path / spec.name)
    said = findings.open_depth(Answers(store, DATA))
    assert said == (
        "Depth is decided for 0 of the 1 rules of Table 1 that were run. Of dfa depth is not known."
    ), "no baseline, no depth"


def test_a_baseline_that_trains_less_can_be_the_better_one(tmp_path):
    store = Store(tmp_path)
    reached = {"dfa": 0.40, "frozen": 0.36, "shallow": 0.39}
    for arm in (stem.ARM, penalty.ARM):
        for spec in arm.plan(DATA[arm.data]):
            if spec.rule.name in reached and not (spec.rule.name == "shallow" and spec.seed == 456):
                write_run(store, spec, accuracy=reached[spec.rule.name])
    said = findings.penalty_baselines(Answers(store, DATA))
    assert "frozen blocks and a head that learns alone reach .360 and .390 (2 seeds)" in said
    assert "dfa gains +4.0 pp over frozen blocks and +1.0 over the head" in said


def test_a_control_that_gives_the_papers_number_is_named_and_so_is_that_none_does(tmp_path):
    store = Store(tmp_path)
    for arm, accuracy in ((five_rule.ARM, 0.59), (border.LONG, 0.614), (schedule.ARM, 0.58)):
        for spec in arm.plan(DATA[arm.data]):
            if spec.rule.name == "bp":
                write_run(store, spec, accuracy=accuracy)
    said = reasons.of_accuracy(Answers(store, DATA), "bp")
    assert (
        "What gives the paper's number, each by itself: a border of the mean colour (100 epochs, 3 seeds)."
        in said
    )
    for spec in border.LONG.plan(DATA[border.LONG.data]):
        if spec.rule.name == "bp":
            shutil.rmtree(store.path / spec.name)
    assert "None of those that were run gives the paper's number." in reasons.of_accuracy(
        Answers(store, DATA), "bp"
    )
    for arm in (
        penalty.ARM,
        batch_size.ARM,
        rate.ARM,
        pixels.ARM,
        border.SHORT,
        border.LONG,
        encoding.SHORT,
        encoding.LONG,
        public_code.LONG[public_code.BY_SAMPLE],
    ):
        for spec in arm.plan(DATA[arm.data]):
            if str(spec.rule) == "bp":
                write_run(store, spec, accuracy=0.58)
    assert "None of these changes gives the paper's number." in reasons.of_accuracy(
        Answers(store, DATA), "bp"
    )


def test_a_frozen_net_whose_stem_dfa_trained_is_a_control_at_either_length_and_schedule(tmp_path):
    store = Store(tmp_path)
    reached = (
        (stem.ARM, (0.36, 0.37)),
        (five_rule.ARM, (0.42,)),
        (schedule.ARM, (0.41,)),
        (schedule.SHORT, (0.33,)),
        (stem.LONG, (None, 0.365)),
        (stem.CONSTANT, (None, 0.349)),
    )
    for arm, accuracy in reached:
        for spec in arm.plan(DATA[arm.data]):
            if spec.rule.name == "frozen":
                write_run(store, spec, accuracy=accuracy["dfa" in str(spec.rule)])
    found = Answers(store, DATA)
    under = "onstant rate under a stem trained by DFA"
    for change, epochs, reached, seeds, gives in (
        ("A stem trained by DFA", "30", (0.37, 0.36), 3, "no"),
        ("A stem trained by DFA", "100", (0.365, 0.42), 3, "no"),
        ("A constant rate", "30", (0.33, 0.36), 1, "no"),
        (f"A c{under}", "100", (0.349, 0.365), 3, "yes"),
    ):
        row = _change(found, "frozen", change, epochs)
        assert (row["with"], row["without"]) == pytest.approx(reached)
        assert (row["seeds"], row["gives"]) == (seeds, gives)
    assert f"number, each by itself: a c{under} (100 epochs, 3 seeds)." in reasons.of_accuracy(
        found, "frozen"
    )
    rows = stem.stem_table(found)[0].rows[-4:]
    assert [(row["stem"], row["seeds"]) for row in rows] == [("bp", 3), ("dfa", 3), ("bp", 1), ("dfa", 3)]
    assert ["constant" in str(row["recipe"]) for row in rows] == [False, False, True, True]


def test_a_change_that_agrees_by_our_own_spread_alone_is_named_with_that(tmp_path):
    store, reached = Store(tmp_path), {42: 0.21, 123: 0.25, 456: 0.27}
    for spec in bridges_and_ep.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "ep":
            few = spec.rule.params.get("solver") == "gd"
            write_run(store, spec, accuracy=reached[spec.seed] if few else 0.59)
    points = {point.what: point for point in agreement.points_of(Answers(store, DATA))}
    assert "gives the paper's number; within our own spread of it: a hurried solver" in (
        points["ep, accuracy"].why
    )


def test_a_change_is_not_credited_with_a_number_that_the_same_seeds_have_without_it(tmp_path):
    store = Store(tmp_path)
    reached = ((penalty.ARM, {42: 0.613, 123: 0.58, 456: 0.57}), (batch_size.ARM, {42: 0.616}))
    for arm, accuracies in reached:
        for spec in arm.plan(DATA[arm.data]):
            if str(spec.rule) == "bp":
                write_run(store, spec, accuracy=accuracies[spec.seed])
    said = reasons.of_accuracy(Answers(store, DATA), "bp")
    assert "each by itself" not in said and "None of these" not in said
    assert "With twice the batch (30 epochs, 1 seed) the same seeds agree, as they do without" in said
    assert _change(Answers(store, DATA), "bp", "Twice the batch", "30")["gives"] == "as without it"


def test_a_rule_that_was_trained_at_two_lengths_is_still_one_rule(answers):
    rows = [answer.name for answer in five_rule.audited(answers)]
    assert rows.count("ep") == rows.count("ep (100 epochs)") == 1
    once = [name for name in rows if name != "ep (100 epochs)"]
    assert [answer.name for answer in five_rule.counted(answers)] == once
    assert findings.depth_decides(answers).startswith(f"Of the {len(once)} rules of Table 1")
    told = rows_of(paper.table_4(answers), name="2 decision-utility")[0]["measured"]
    assert f"of {len(once)}" in told and "(100 epochs)" not in told


def test_the_papers_length_is_a_control_of_ep_too(tmp_path):
    """Ours is audited after 30 epochs, and one seed is trained as long as the paper's."""
    store = Store(tmp_path)
    for arm, accuracy in ((bridges_and_ep.ARM, 0.59), (bridges_and_ep.LONG_EP, 0.60)):
        for spec in arm.plan(DATA[arm.data]):
            if str(spec.rule) == str(resolve_rule("ep")):
                write_run(store, spec, accuracy=accuracy)
    points = {point.what: point for point in agreement.points_of(Answers(store, DATA))}
    assert "None of those that were run gives the paper's number." in points["ep, accuracy"].why
    row = _change(Answers(store, DATA), "ep", "More training", "100 instead of 30")
    assert row["difference"] == pytest.approx(0.01)
    assert (row["seeds"], row["gap"]) == (1, "")
    take(store, bridges_and_ep.LONG_EP, "ep", seeds=(42,))
    row = _change(Answers(store, DATA), "ep", "More training", "100 instead of 30")
    assert row["gap"] == "not run (walkback audit bridges-and-ep decides it)"
    assert row["with"] is None and row["difference"] is None and row["gives"] == ""


def _change(answers, rule, change, epochs):
    table = changes.changes_table(answers)
    (row,) = rows_of(table, rule=rule, change=change, epochs=epochs)
    return row


def test_the_scale_at_a_constant_rate_stands_beside_the_same_seed(tmp_path):
    """One seed of the control beside the mean of three would show a ratio that no pair of runs has."""
    store = Store(tmp_path)
    for arm, sizes in ((five_rule.ARM, {42: 1e8, 123: 1e6, 456: 1e4}), (schedule.ARM, {42: 4e8})):
        for spec in arm.plan(DATA[arm.data]):
            if spec.rule.name == "dfa":
                write_run(store, spec, size=sizes[spec.seed])
    said = reasons.of_scale(Answers(store, DATA))
    assert "gives 4.00×10⁸ instead of 1.00×10⁸ (1 seed)." in said


def test_an_order_of_magnitude_is_held_against_the_median_seed(tmp_path):
    store = Store(tmp_path)
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "dfa":
            write_run(store, spec, size={42: 1e8, 123: 6e7, 456: 9e9}[spec.seed])
    points = {point.what: point for point in agreement.points_of(Answers(store, DATA))}
    assert points["dfa, ‖h_L‖"].measured == "1.00×10⁸ (median)"
    assert points["dfa, ‖h_L‖"].agrees, "the mean is thirty times the paper's"
    row = rows_of(five_rule.tables(Answers(store, DATA))[2], rule="dfa")[0]
    assert row["state_median"] == 1e8
    table = five_rule.tables(Answers(store, DATA))[2]
    shown = dict(zip(table.titles, table.cells()[table.rows.index(row)], strict=True))
    assert shown["‖h_L‖"].endswith("(median 1.00×10⁸)")


def test_a_mean_reduced_gradient_is_held_against_the_papers_over_as_many_rows(tmp_path):
    """Ours is of 512 rows. By their public code the audit's are of 128, so four times as large."""
    store = Store(tmp_path)
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name in ("bp", "dfa"):
            write_run(store, spec, reference=1e-4)
    points = {point.what: point for point in agreement.points_of(Answers(store, DATA))}
    bp, early = points["bp, ‖g_L‖"], points["dfa, epoch 1: ‖g_L‖"]
    assert bp.measured == f"{words.number(4e-4)} (median, as over 128 rows)" and bp.standing == "agrees"
    assert early.measured == f"{words.number(5e-5)} (median, as over 1024 rows)"
    assert early.standing == "50.0 times the paper's"
    assert "over 1024" in bp.why and words.number(1e-4) in bp.why, "ours, as the tables show it, is told"
    assert "rows" not in points["dfa, ‖h_L‖"].measured


def test_reasons_for_a_number_of_one_seed_are_of_that_seed(tmp_path):
    store = Store(tmp_path)
    for spec in five_rule.ARM.plan(DATA["cifar10"]):
        if spec.rule.name == "dfa":
            write_run(store, spec, cosine=0.05 if spec.seed == 42 else 0.5)
    points = {point.what: point for point in agreement.points_of(Answers(store, DATA))}
    point = points["dfa, cosine of deep layers"]
    assert "clamped: +0.050, +0.050, +0.050, +0.050; +0.050 without the first" in point.why


def test_p_values_are_listed_seed_by_seed_and_never_averaged(tmp_path):
    store = Store(tmp_path)
    for spec, p in zip(
        [s for s in controls.LONG.plan(DATA["cifar10"]) if s.rule.name == "dfa"],
        (0.005, 0.43, 0.025),
        strict=True,
    ):
        write_run(store, spec, p=p)
    table = controls.table_2(Answers(store, DATA))
    row = rows_of(table, rule="dfa, converged")[0]
    assert row["null_p"] == "0.00500, 0.430, 0.0250" and row["null_p_gap"] == ""
    gap = rows_of(table, rule="bp, converged")[0]
    assert (gap["null_p"], gap["null_p_gap"]) == ("", "not run")


def test_a_caption_says_so_while_rows_that_are_compared_have_other_seeds(copied, answers):
    assert "same seeds yet" not in stem.stem_table(answers)[0].caption
    take(copied, stem.ARM, stem.BP_STEM, seeds=(456,))
    assert stem.stem_table(Answers(copied, DATA))[0].caption.endswith(
        "Not all rows have the same seeds yet."
    )


def test_what_is_walked_back_is_counted_without_what_is_ours_too(answers):
    rows = {row["rules"]: row for row in five_rule.counts(five_rule.rows_of(answers)).rows}
    assert rows["without the bridges and ep"]["artifact"] == "1 of 2"
    assert rows["without the bridges and ep"]["protocol_paper"] == "1 of 2"
    assert "all five, few-step ep for ep" in rows


def test_every_number_of_the_paper_has_its_place_in_the_comparison(answers):
    compared = [point.paper for point in agreement.points_of(answers)]
    assert sorted(compared) == sorted(NUMBERS)


def test_what_is_called_a_bridge_is_never_said_to_agree(answers):
    standings = {p.standing for p in agreement.points_of(answers) if "bridge" in p.what}
    assert standings == {"not a reproduction"}


def test_a_comparison_names_the_side_that_is_missing(copied):
    take(copied, five_rule.ARM, "bp")
    gap = _change(Answers(copied, DATA), "bp", "A constant rate", "100")["gap"]
    assert gap == "run, but not what it is compared with (walkback audit five-rule)"


def test_a_control_of_one_seed_stands_beside_that_seed_alone(answers):
    tables = (schedule.schedule_table, batch_size.batch_table, rate.rate_table, pixels.pixels_table)
    for rows in (make(answers)[0].rows for make in tables):
        assert {row["seeds"] for row in rows} == {1}


def test_without_backprop_nothing_is_said_of_it(copied):
    for case in cross_architecture.NETS:
        take(copied, case.arm, "bp")
    take(copied, five_rule.ARM, "bp")
    said = cross_architecture.floor_statement(cross_architecture.floor_rows(Answers(copied, DATA)))
    assert said.endswith("Under backprop no net was run.")


def test_what_cannot_be_decided_is_not_counted_as_trusted(copied):
    for arm in (five_rule.ARM, penalty.ARM):
        take(copied, arm, "frozen")
    said = paper._evidence_counts(Answers(copied, DATA))
    assert "+ D3: 0 of" in said and "not decided" in said.split("+ D3:")[1]


def test_a_group_without_values_has_no_counts(tmp_path):
    for table in threshold_sensitivity.tables(Answers(Store(tmp_path), DATA)):
        assert all(row["bp_known"] is None and row["bp_gap"] == "not run" for row in table.rows)


def test_controls_that_were_not_run_are_named_with_their_command(copied, answers):
    assert _change(answers, "frozen", "A constant rate", "100")["gap"] == ""
    take(copied, schedule.ARM, "frozen", seeds=(42,))
    gap = _change(Answers(copied, DATA), "frozen", "A constant rate", "100")["gap"]
    assert gap == "not run (walkback audit schedule decides it)"


def test_the_papers_numbers_are_unique_and_its_clamp_is_undone_as_everywhere():
    keys = [(number.row, number.quantity) for number in NUMBERS]
    assert len(set(keys)) == len(keys)
    assert published("dfa", "no such quantity") is None
    for norm in (1e-9, 3e-7):
        assert unclamped(-0.022, norm) == credit_metrics.corrected(-0.022, norm)


def test_every_figure_is_drawn_whether_runs_are_there_or_not(answers, tmp_path):
    nothing = Answers(Store(tmp_path), DATA)
    for found in (answers, nothing):
        for drawing in paper.figures(found):
            first = save_figure(drawing.text.name, drawing.draw, ["svg"])["svg"]
            if found is nothing:
                assert b"<svg" in first
            elif drawing.text.name in ("figure-1", "figure-4"):
                assert save_figure(drawing.text.name, drawing.draw, ["svg"])["svg"] == first


def test_two_data_sets_of_one_name_are_not_mixed(tmp_path):
    store = Store(tmp_path)
    spec = five_rule.ARM.plan(DATA["cifar10"])[0]
    write_run(store, spec)
    assert data_of(store, ["cifar10", "teacher"])["cifar10"].identity == "0" * 64
    assert data_of(store, ["teacher"])["teacher"].identity == ""
    write_run(store, RunSpec(**{**vars(spec), "data_identity": "1" * 64}))
    with pytest.raises(BadInput, match="2 data sets called cifar10"):
        data_of(store, ["cifar10"])


def test_a_half_finished_store_is_reported_without_the_data_set(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("WALKBACK_DATA", raising=False)
    store = Store(tmp_path / "runs")
    bp, dfa, frozen = five_rule.ARM.plan(DATA["cifar10"])[:3]
    write_run(store, bp)
    write_run(store, dfa, state="running")
    write_run(store, frozen)
    out = tmp_path / "report"
    where = ["--store", str(store.path), "--out", str(out), "--json"]
    assert run(["audit", "five-rule", "--judge-only", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["planned"], found["finished"], len(found["not_run"])) == (15, 2, 12)
    assert "not run" in (out / "tables" / "table-1.md").read_text(encoding="utf-8")
    assert (out / "figures" / "figure-1.pdf").is_file() and "figure-1" in (out / "report.md").read_text()
    assert run(["report", str(store.path), "--out", str(out), "--json"]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "still running (epoch 100 of 100)" in page


COMMITTED = Path(__file__).parents[2] / "docs" / "results"


def test_every_committed_run_is_one_that_a_study_asks_for():
    store = Store.existing(COMMITTED / "cifar10")
    data = data_of(store, [arm.data for arm in paper.ARMS])
    assert store.bundles()
    assert {bundle.path.name for bundle in store.bundles()} <= {s.name for s in paper.STUDY.runs(data)}


@pytest.mark.slow
def test_the_command_printed_under_a_table_makes_it(tmp_path, monkeypatch):
    monkeypatch.delenv("WALKBACK_DATA", raising=False)
    where = ["--store", str(COMMITTED / "cifar10"), "--out", str(tmp_path)]
    assert run(["audit", "paper", "--judge-only", *where]) == 0
    shown = "".join(page.read_text(encoding="utf-8") for page in COMMITTED.glob("*.md"))
    listed = ("findings", "summary")  # lists on their pages
    for file in (COMMITTED / "tables").glob("*.csv"):
        assert (tmp_path / "tables" / file.name).read_bytes() == file.read_bytes(), file.name
        if file.stem not in listed:
            made = cells_of((tmp_path / "tables" / f"{file.stem}.md").read_text(encoding="utf-8"))
            found = cells_of(shown[: shown.index(f"writes `report/tables/{file.stem}.md`")])
            assert found and found.items() <= made.items(), file.stem  # pages leave out what can be spared
    for file in (COMMITTED / "figures").glob("*.svg"):
        assert (tmp_path / "figures" / file.name).read_bytes() == file.read_bytes(), file.name


def cells_of(text: str) -> dict[str, tuple[str, ...]]:
    """The columns of the last pipe table of a text, by what they are called."""
    chunks = [chunk.strip("\n") for chunk in re.split(r"\n(?!\|)", text)]
    lines = [chunk for chunk in chunks if chunk.startswith("|")][-1].splitlines()
    head, _, *rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return {name.strip(): cells for name, *cells in map(tuple, zip(head, *rows, strict=True))}


def test_made_up_numbers_are_finite():
    """The stand-ins of these tests have a number for everything: a gap in a table is the table's."""
    from tests.studies.made_up import made_up

    spec = five_rule.ARM.plan(DATA["cifar10"])[1]
    assert all(math.isfinite(value) for value in made_up(spec, 100).values())
