"""The metric stages: stacked training is training, rows survive a kill, answers are what the rows say."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from scipy.stats import spearmanr
from torch import nn

from walkback.cli import stages as commands
from walkback.core.errors import BadInput, UnknownName
from walkback.measure.battery import METRICS, fim_norm
from walkback.studies import metric_stages as stages
from walkback.studies.metric_stages import answers, designs, tasks, work
from walkback.studies.stacked import Population, batch_rows, make_mlp, train_alone, train_stacked

WIDTHS = (5, 7, 6, 3)
SMALL = {"seeds": 2, "steps": 10, "capacity": (40, 200), "noise": (0.0, 0.8)}


def population_and_loners(dtype, steps=30, nets=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 5, generator=generator, dtype=dtype)
    labels = torch.randint(3, (nets, 50), generator=generator)
    sizes = [20, 30, 40, 50][:nets]
    order = torch.stack([batch_rows(k, torch.arange(n), 16, steps) for k, n in enumerate(sizes)])
    lr, wd = [1e-3 * (k + 1) for k in range(nets)], [0.1 * k for k in range(nets)]
    alone = [make_mlp(WIDTHS, k, dtype) for k in range(nets)]
    population = Population([make_mlp(WIDTHS, k, dtype) for k in range(nets)], lr, wd)
    for k, net in enumerate(alone):
        train_alone(net, x, labels[k], order[k], lr=lr[k], wd=wd[k])
    train_stacked(population, x, labels, order)
    return population, alone


def test_stacked_training_is_training_each_net_alone():
    population, alone = population_and_loners(torch.float64)
    for k, net in enumerate(alone):
        for one, other in zip(net.parameters(), population.net(k).parameters(), strict=True):
            assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
        start = torch.cat([p.flatten() for p in make_mlp(WIDTHS, k, torch.float64).parameters()])
        end = torch.cat([p.flatten() for p in net.parameters()])
        assert float((end - start).detach().norm()) > 0.1, "and it was training"


def test_stacked_training_agrees_in_float32_to_its_precision():
    population, alone = population_and_loners(torch.float32)
    for k, net in enumerate(alone):
        for one, other in zip(net.parameters(), population.net(k).parameters(), strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def test_a_member_is_a_copy_and_a_remembered_moment_is_that_moment():
    population, _ = population_and_loners(torch.float64, steps=2)
    then, x = population.flat.clone(), torch.randn(4, 5, dtype=torch.float64)
    member = population.net(1)
    before = member(x)
    population.step(torch.randn(4, 6, 5, dtype=torch.float64), torch.zeros(4, 6, dtype=torch.long))
    assert torch.equal(member(x), before) and torch.equal(population.net(1, then)(x), before)
    assert not torch.equal(population.net(1)(x), before)


def test_batches_are_whole_passes_over_the_rows_one_after_the_other():
    order = batch_rows(3, torch.arange(100, 140), 16, 10)
    assert order.shape == (10, 16)
    passes = order.flatten()[:160].view(4, 40)
    assert all(sorted(p.tolist()) == list(range(100, 140)) for p in passes)
    assert not torch.equal(passes[0], passes[1])


@pytest.fixture(scope="module")
def acid():
    return stages.acid_test(**SMALL)


@pytest.fixture
def no_hessian(monkeypatch):
    """The rest of the battery, which is what takes no time."""
    kept = [name for name in work.MEASURED if not name.startswith("hessian")]
    monkeypatch.setattr(work, "MEASURED", kept)


def test_rows_have_the_battery_the_design_two_halves_and_the_target(acid):
    frame = acid.frame
    assert len(frame) == 2 * (2 + 2)
    wanted = {*METRICS} - {"next_step_ratio"}
    assert wanted | {"lr", "wd", "seed", "n_train", "label_noise", "final_acc"} <= set(frame)
    assert frame.notna().all().all(), "no column that nothing can be said of"
    assert (frame.val_loss_a != frame.val_loss_b).all()
    assert frame.seed.nunique() == len(frame), "every net has its own weights and batches"


def test_every_net_has_the_same_number_of_gradient_samples(acid):
    assert set(acid.frame.metric_n) == {tasks.METRIC_N} and set(acid.frame.train_n) == {40}
    assert min(designs.CAPACITY) >= work.TRAIN_N, "or the smallest training set has fewer"


def test_metric_baseline_target_and_training_share_no_sample():
    for name in ("digits", "classification"):
        task = tasks.load_task(name)
        sets = [set(rows.tolist()) for rows in (task.train, task.metric, task.val, task.test)]
        assert sum(map(len, sets)) == len(set.union(*sets)) == len(task.y)


def test_label_noise_changes_that_share_of_the_training_labels_and_no_other():
    task = tasks.load_task("digits")
    design = designs.design_of("x", 0, 0, n_train=800, label_noise=0.4)
    rows, labels = tasks.rows_and_labels(task, design)
    changed = labels != task.y
    assert int(changed.sum()) == int(changed[rows].sum())
    assert float(changed[rows].double().mean()) == pytest.approx(0.4, abs=0.06)
    _, wrong = tasks.rows_and_labels(task, {**design, "label_noise": 1.0})
    assert bool((wrong[rows] != task.y[rows]).all()), "a wrong label is another class"
    clean = tasks.rows_and_labels(task, {**design, "label_noise": 0.0})
    assert torch.equal(clean[0], rows) and torch.equal(clean[1], task.y)


def test_the_acid_test_is_spearman_in_each_probe(acid):
    for probe, found in acid.summary["probes"].items():
        rows = acid.frame[acid.frame.probe == probe]
        slow = spearmanr(rows.fim_norm, rows.final_acc)
        assert found["r"] == pytest.approx(slow.statistic) and found["n"] == 4
        assert found["p"] == pytest.approx(slow.pvalue)
    assert acid.summary["early"]["probes"]["capacity"]["n"] == 4
    assert "a fifth of the way" in acid.sentence, "the moment that does not pass is said too"


def probes(r, p, missing=0):
    return {
        name: {"r": a, "p": b, "missing": missing}
        for name, a, b in zip(("capacity", "label_noise"), r, p, strict=True)
    }


def test_the_acid_test_needs_one_sign_and_both_p_and_every_net():
    assert answers._passes(probes((-0.9, -0.8), (0.01, 0.01))) is True
    assert answers._passes(probes((-0.9, 0.8), (0.01, 0.01))) is False
    assert answers._passes(probes((-0.9, -0.2), (0.01, 0.3))) is False
    assert answers._passes(probes((-0.9, -0.8), (0.01, 0.01), missing=1)) is None
    assert answers._passes(probes((-0.9, math.nan), (0.01, math.nan))) is None
    assert answers._common_sign(probes((math.nan, math.nan), (1, 1))) == 0


def test_a_missed_acid_test_names_the_condition_that_it_missed():
    assert answers.missed({"probes": probes((-0.3, -0.9), (0.62, 0.004))}) == ["p 0.62 is not below .05"]
    assert answers.missed({"probes": probes((-0.9, 0.9), (0.01, 0.01))}) == ["the signs differ"]
    assert answers.missed({"probes": probes((-0.9, -0.9), (0.01, 0.01))}) == []


def test_a_net_without_a_metric_is_counted_and_never_leads_to_a_pass():
    n = 12
    frame = pd.DataFrame({"probe": ["capacity"] * n + ["label_noise"] * n, "final_acc": [*range(n)] * 2})
    frame["fim_norm"] = frame["fim_norm_early"] = -frame.final_acc.astype(float)
    assert answers._acid_answer(frame, "fim_norm")["passes"] is True
    frame.loc[3, "fim_norm"] = math.nan
    found = answers._acid_answer(frame, "fim_norm")
    assert found["passes"] is None and found["probes"]["capacity"]["missing"] == 1
    assert found["probes"]["capacity"]["n"] == n - 1


class Killed(Exception):
    pass


def killed_after(calls):
    left = [calls]

    def tell(what, done, total):
        left[0] -= 1
        if not left[0]:
            raise Killed

    return tell


@pytest.mark.parametrize("calls", [3, 15, 17])
def test_a_killed_stage_goes_on_and_gives_the_rows_of_one_that_was_not(acid, no_hessian, tmp_path, calls):
    with pytest.raises(Killed):
        stages.acid_test(**SMALL, out=tmp_path, on_progress=killed_after(calls))
    done = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("rows/*/*.json")}
    assert len(done) == max(0, calls - 12), "eleven calls train, one more counts, then one for each row"
    assert not (tmp_path / "acid-test.csv").exists()
    again = stages.acid_test(**SMALL, out=tmp_path)
    pd.testing.assert_frame_equal(again.frame, acid.frame[again.frame.columns], check_exact=True)
    now = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("rows/*/*.json")}
    assert len(now) == 8 and all(now[name] == time for name, time in done.items()), (
        "finished rows are left alone"
    )
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_killed_harness_keeps_whole_nets(no_hessian, tmp_path):
    small = {"seeds": 1, "steps": 4, "capacity": (40,), "noise": (0.5,)}
    with pytest.raises(Killed):
        stages.harness(**small, out=tmp_path, on_progress=killed_after(9))
    assert len(list(tmp_path.glob("rows/harness/*.json"))) == 1
    again, whole = stages.harness(**small, out=tmp_path), stages.harness(**small)
    pd.testing.assert_frame_equal(again.frame, whole.frame, check_exact=True)
    assert list(again.frame.arch) == ["cnn", "cnn", "transformer", "transformer"]
    assert set(again.summary["archs"]) == {"cnn", "transformer"} and again.summary["passes"] is None
    assert again.sentence.count("a fifth of the way") == 2


def test_another_seed_or_setting_never_takes_over_a_row(acid, no_hessian, tmp_path):
    stages.acid_test(**SMALL, out=tmp_path)
    other = stages.acid_test(**{**SMALL, "steps": 12}, out=tmp_path)
    assert len(list(tmp_path.glob("rows/*/*.json"))) == 16
    assert (other.frame.fim_norm != acid.frame.fim_norm).all()
    seeded = stages.acid_test(**SMALL, seed=1)
    assert (seeded.frame.fim_norm != acid.frame.fim_norm).all()


def test_a_broken_row_is_named(no_hessian, tmp_path):
    stages.acid_test(**SMALL, out=tmp_path)
    next(tmp_path.glob("rows/*/0003-*.json")).write_text("{", encoding="utf-8")
    with pytest.raises(BadInput, match=r"0003-.* is not JSON"):
        stages.acid_test(**SMALL, out=tmp_path)


@pytest.fixture(scope="module")
def grid():
    return stages.grid(nets=6, epochs=6, measured_at=2)


def slow_partial(x, y, z):
    """First-order partial correlation of ranks, by its formula."""
    r = np.corrcoef(np.stack([pd.Series(v).rank() for v in (x, y, z)]))
    return (r[0, 1] - r[0, 2] * r[1, 2]) / math.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))


def test_the_grid_controls_in_both_directions_and_prints_both_numbers(grid):
    f, summary = grid.frame, grid.summary
    there = slow_partial(f.fim_norm, f.final_acc, f.val_loss)
    back = slow_partial(f.val_loss, f.final_acc, f.fim_norm)
    assert summary["metric_given_loss"]["partial"] == pytest.approx(there)
    assert summary["loss_given_metric"]["partial"] == pytest.approx(back)
    assert (summary["number"], summary["page_number"]) == (3, 4)
    assert "Stage 3 (stage 4" in grid.sentence
    assert [point["epoch"] for point in summary["curve"]] == [0, 2, 5, 6]
    assert summary["curve"][1]["metric"] == summary["metric_given_loss"]


def test_the_demo_grid_is_the_one_that_is_documented():
    grid = designs.demo_designs(0, 20, 100, 20)
    lr, wd = ([d[key] for d in grid] for key in ("lr", "wd"))
    assert len(grid) == 20 and 1e-4 <= min(lr) < 2e-3 and 8e-3 < max(lr) <= 1e-2
    assert 1e-5 <= min(wd) < 2e-4 and 8e-4 < max(wd) <= 1e-3
    task = tasks.load_task("classification")
    assert task.x.shape == (2000, 20) and task.classes == 2
    assert (grid[0]["steps"], grid[0]["measured_at"], grid[0]["batch_size"]) == (800, 160, 128)


def test_a_row_of_the_grid_is_what_training_that_net_alone_gives(grid):
    task, row = tasks.load_task("classification"), grid.frame.iloc[2]
    design = designs.demo_designs(0, 6, 6, 2)[2]
    rows, labels = tasks.rows_and_labels(task, design)
    net, steps = make_mlp((20, 64, 64, 2), design["seed"]), design["measured_at"]
    order = batch_rows(design["seed"], rows, 128, design["steps"])
    train_alone(net, task.x, labels, order[:steps], lr=design["lr"], wd=design["wd"])
    assert row.fim_norm == pytest.approx(fim_norm(net, *task.at(task.metric)), rel=1e-3)
    losses = nn.functional.cross_entropy(net(task.x[task.val]), task.y[task.val], reduction="none").detach()
    assert row.val_loss_a == pytest.approx(float(losses[::2].mean()), rel=1e-3)
    assert row.val_loss_b == pytest.approx(float(losses[1::2].mean()), rel=1e-3)
    other = make_mlp((20, 64, 64, 2), design["seed"])
    train_alone(other, task.x, labels, order, lr=design["lr"], wd=design["wd"])
    right = other(task.x[task.test]).argmax(1) == task.y[task.test]
    assert row.final_acc == pytest.approx(float(right.double().mean()), abs=0.005)


def test_the_published_conditions_can_be_trained(no_hessian):
    found = stages.grid(nets=6, epochs=2, measured_at=1, design="conditions").frame
    assert list(found.cond) == list(designs.CONDITIONS) and list(found.n_train) == [
        100,
        400,
        800,
        400,
        400,
        400,
    ]


def test_the_initialisation_probe_reads_the_metric_before_the_first_step(no_hessian):
    found = stages.init_probe(**SMALL)
    assert (found.frame.distance_from_init_l2 == 0).all()
    assert (found.frame.fim_norm == found.frame.fim_norm_init).all()
    assert found.summary["number"] == 4 and "early" not in found.summary


def test_wrong_settings_are_said_in_words():
    with pytest.raises(UnknownName, match="fim_nrom"):
        stages.acid_test(metric="fim_nrom")
    with pytest.raises(UnknownName, match="demoo"):
        stages.grid(design="demoo")
    with pytest.raises(UnknownName, match="vit"):
        stages.harness(archs=["vit"])
    with pytest.raises(BadInput, match="measured_at"):
        stages.grid(epochs=5, measured_at=6)
    with pytest.raises(BadInput, match="training rows"):
        stages.acid_test(**{**SMALL, "capacity": (5000,)})


def test_the_commands_answer_in_json_and_in_words(no_hessian, tmp_path, capsys, monkeypatch):
    app = typer.Typer()
    for name in commands.EXAMPLES:
        app.command(name, epilog=commands.EXAMPLES[name])(getattr(commands, name.replace("-", "_")))
    monkeypatch.setattr(commands, "FEWER", SMALL)
    command = ["acid-test", "--quick", "--out", str(tmp_path)]
    assert app([*command, "--json"], standalone_mode=False) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["stage"] == "acid-test" and set(answer["probes"]) == {"capacity", "label_noise"}
    assert len(pd.read_csv(answer["table"])) == 8
    assert app(command, standalone_mode=False) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Stage 1, dual acid test") and "walkback metric audit" in shown.err
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="is a file"):
        app(["grid", "--out", str(tmp_path / "file")], standalone_mode=False)
