"""Studies: each can be planned, stopped half-way, read as it is, and finished by the same command."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from walkback.cli.main import run
from walkback.core.spec import Call
from walkback.data import load_dataset
from walkback.run.cost import Cost, measure_cost
from walkback.run.full import measure_missing
from walkback.run.many import run_many
from walkback.run.one import kept_epochs, run_one
from walkback.run.plan import Known, plan_runs
from walkback.store import Store
from walkback.studies import Arm, Study, studies
from walkback.studies.dose_response import operating_curve

TINY = "resmlp(width=8,depth=2,expansion=1)"


@pytest.fixture(scope="module")
def digits():
    return load_dataset(Call("digits"))


@pytest.fixture
def tiny(monkeypatch):
    rules = ("bp", "frozen", "dose(cosine=0.5)")
    arm = Arm(rules, TINY, "digits", seeds=(1, 2), recipe={"epochs": 2}, full=(1, 2))
    study = Study(
        "tiny",
        "Does it run?",
        (arm,),
        ours="all of it",
        tables=lambda answers: operating_curve(answers, arm),
    )
    monkeypatch.setitem(studies._entries, "tiny", study)
    return study


@pytest.mark.parametrize("name", list(studies))
def test_every_study_plans_runs_that_are_unique_and_hold_their_own_baseline(name, digits):
    study = studies[name]
    specs = study.runs({arm.data: digits for arm in study.arms})
    assert len({spec.id for spec in specs}) == len(specs) > 0
    seeds = [spec.seed for spec in specs]
    first = [seeds.index(seed) for seed in dict.fromkeys(seeds)]
    assert first == sorted(first), "whole seeds first"
    for spec in specs:
        frozen = [o for o in specs if o.with_rule(spec.rule) == spec and o.rule.name == "frozen"]
        assert frozen, f"{spec.name} has no baseline in its study"


def test_arms_that_share_a_run_train_it_once(digits):
    arm = Arm(("bp", "frozen"), TINY, "digits", recipe={"epochs": 1})
    wider = Arm(("bp", "dfa"), TINY, "digits", recipe={"epochs": 1})
    specs = Study("s", "?", (arm, wider)).runs({"digits": digits})
    assert len(specs) == 3 * 3
    assert [spec.rule.name for spec in specs[:3]] == ["bp", "frozen", "dfa"]


def test_a_plan_says_what_is_left_and_trains_nothing(tiny, tmp_path, capsys):
    command = ["audit", "tiny", "--store", str(tmp_path / "runs"), "--workers", "2", "--plan", "--json"]
    assert run(command) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["planned"], plan["finished"], plan["epochs_left"]) == (6, 0, 12)
    assert plan["hours_left"] > 0 and plan["megabytes_left"] > 0
    assert {row["state"] for row in plan["runs"]} == {"not run"}
    assert {(row["label"], row["setting"]) for row in plan["runs"]} == {
        ("bp", "resmlp"),
        ("dose(cosine=0.5)", "resmlp"),
        ("frozen", "resmlp"),
    }
    assert not (tmp_path / "runs").exists()


def test_a_half_finished_study_is_reported_with_its_gaps_named_and_finished_later(
    tiny, digits, tmp_path, capsys
):
    store, out = Store(tmp_path / "runs"), tmp_path / "report"
    specs = tiny.runs({"digits": digits})
    assert run_many(specs[:2], store, [digits]) == []
    command = ["audit", "tiny", "--store", str(store.path), "--out", str(out), "--json"]
    assert run([*command, "--judge-only"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["planned"], answer["finished"], len(answer["not_run"])) == (6, 2, 4)
    assert set(answer["verdicts"]) == {"bp"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Does it run?" in page and "not run" in page and "Ours: all of it" in page
    table = (out / "tables" / "runs.csv").read_text(encoding="utf-8").splitlines()
    assert table[0].endswith("finished,diverged,running,not run")
    assert [row for row in table if row.endswith(",0,0,0,2")], "a rule without any run is in the table"
    weights = store.find(specs[0].name).path / "checkpoints"
    before = weights.stat().st_mtime_ns
    assert run(command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["finished"], answer["not_run"]) == (6, [])
    assert weights.stat().st_mtime_ns == before, "a finished run is left alone"
    full = [bundle.members("full") for bundle in store.bundles()]
    assert full == [["full/epoch-0001.csv", "full/epoch-0002.csv"]] * 6, "and measured in full where asked"
    assert measure_missing(store.bundles()[0], [1, 2, 9]) == []
    curve = (out / "tables" / "dose-response.md").read_text(encoding="utf-8")
    assert "fresh" in curve and "+0.50" in curve


def test_a_run_that_fails_costs_neither_the_others_nor_their_full_tier_nor_the_report(
    tiny, digits, tmp_path, capsys
):
    store, out = Store(tmp_path / "runs"), tmp_path / "report"
    specs = tiny.runs({"digits": digits})
    store.path.mkdir()
    blocked = store.path / specs[1].name
    blocked.write_text("a file where a folder must be")
    command = ["audit", "tiny", "--store", str(store.path), "--out", str(out), "--workers", "1"]
    assert run([*command, "--json"]) == 3
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert list(answer["failed"]) == [specs[1].name] and answer["finished"] == 5
    assert blocked.name in shown.err and "Traceback" not in shown.err
    assert all(bundle.members("full") for bundle in store.bundles()) and (out / "report.html").is_file()
    assert run(command) == 3
    assert f"Failed: {specs[1].name}: " in capsys.readouterr().out.replace("\n", " ")
    blocked.unlink()
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failed"] == {}


def test_a_full_tier_that_cannot_be_written_costs_no_report(tiny, tmp_path, capsys, monkeypatch):
    def full_disk(bundle, epochs):
        raise OSError(28, "No space left on device", str(bundle.path))

    monkeypatch.setattr("walkback.run.full.measure_missing", full_disk)
    out = tmp_path / "report"
    command = ["audit", "tiny", "--store", str(tmp_path / "runs"), "--out", str(out), "--json"]
    assert run(command) == 3
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert len(answer["failed"]) == 6 and answer["finished"] == 6 and (out / "report.html").is_file()
    assert "No space left" in shown.err and "Traceback" not in shown.err


def test_runs_whose_data_is_not_at_hand_are_left_as_they_are_and_the_others_trained(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("WALKBACK_DATA", raising=False)
    arm = Arm(("bp", "frozen"), TINY, "digits", seeds=(1,), recipe={"epochs": 1})
    far = Arm(("bp", "frozen"), TINY, "npz", seeds=(1,), recipe={"epochs": 1}, full=(1,), optional=True)
    monkeypatch.setitem(studies._entries, "both", Study("both", "Does it run?", (arm, far)))
    store, out = tmp_path / "runs", tmp_path / "report"
    command = ["audit", "both", "--store", str(store), "--out", str(out)]
    assert run([*command, "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["planned"] == 2 and list(plan["data_absent"]) == ["npz"]
    assert run([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["planned"], answer["finished"], len(answer["not_run"])) == (4, 2, 2)
    assert list(answer["data_absent"]) == ["npz"]
    # Once they are in the store they are found again without their data.
    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    monkeypatch.setenv("WALKBACK_DATA", str(tmp_path))
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] == 4
    assert sum(bool(bundle.members("full")) for bundle in Store(store).bundles()) == 2
    monkeypatch.delenv("WALKBACK_DATA")
    assert run(command) == 0
    shown = capsys.readouterr()
    assert "Runs on npz are left as they are: " in shown.err and "Not run yet" not in shown.out
    # A folder that it refuses is not the only place: it may lie in its usual one.
    monkeypatch.setenv("WALKBACK_DATA", str(tmp_path))
    found, absent = Study("one", "?", (replace(arm, data="npz"), replace(far, data="npz"))).load()
    assert list(found) == ["npz"] and not absent
    others = Study("two", "?", (replace(arm, data="cifar10"), far))
    monkeypatch.setattr(
        "walkback.studies.study.load_dataset",
        lambda call, place: load_dataset(call, place) if call.name == "npz" else Known(str(place)),
    )
    found, absent = others.load(str(tmp_path / "elsewhere"))
    assert (
        not absent and found["cifar10"].identity.endswith("elsewhere") and len(found["npz"].y_train) == 20
    )
    monkeypatch.delenv("WALKBACK_DATA")
    # What a study cannot do without is asked for.
    monkeypatch.setitem(studies._entries, "alone", Study("alone", "Does it run?", (far,)))
    assert run(["audit", "alone", "--store", str(store), "--out", str(out)]) == 2


def test_an_empty_store_and_an_unknown_study_are_said_in_one_sentence(tiny, tmp_path, capsys):
    assert run(["audit", "tiny", "--store", str(tmp_path / "none"), "--judge-only"]) == 2
    assert "There is no store at" in capsys.readouterr().err, "a name with a typo is not to be trained into"
    assert run(["audit", "tiny", "--store", str(tmp_path), "--judge-only"]) == 2
    said = capsys.readouterr().err
    assert f"The store {tmp_path} holds no run of tiny yet" in said
    (tmp_path / "file").write_text("")
    assert run(["audit", "tiny", "--store", str(tmp_path / "file")]) == 2
    assert "is a file, not a folder" in capsys.readouterr().err
    assert run(["audit", "tiny", "--plan", "--judge-only"]) == 2
    assert "Give one of them." in capsys.readouterr().err
    assert run(["audit", "dose-respons"]) == 2
    assert "Did you mean 'dose-response'" in capsys.readouterr().err


def test_the_cost_of_a_run_is_measured_by_running_a_piece_of_it(digits):
    (spec,) = plan_runs(
        net=TINY, rules=["bp"], seeds=[1], data="digits", dataset=digits, epochs=20, batch=32
    )
    cost = measure_cost(spec, digits)
    assert cost.step > 0 and cost.epoch > 0 and cost.checkpoint > 1000
    assert Cost(2.0, 3.0, 10, 1).seconds(spec, items=320) == 20 * (10 * 2.0 + 3.0)
    assert Cost(2.0, 3.0, 10, 1).seconds(spec, items=320, done=15) == 5 * (10 * 2.0 + 3.0)
    assert Cost(2.0, 3.0, 10, 1).bytes(spec) == 1 + 6 * 10
    assert kept_epochs(20) == {0, 1, 2, 5, 10, 20}


def test_the_predicted_size_of_a_run_is_the_size_it_has(digits, tmp_path):
    (spec,) = plan_runs(net=TINY, rules=["dfa"], seeds=[1], data="digits", dataset=digits, epochs=6)
    bundle = run_one(spec, digits, Store(tmp_path))
    real = sum(len(bundle.read(name)) for name in bundle.members())
    assert measure_cost(spec, digits).bytes(spec) == pytest.approx(real, rel=0.2)
