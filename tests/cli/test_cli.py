"""The command line as people meet it: answers, JSON, exit codes, and errors in one clear sentence."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file

import walkback
from walkback.cli.main import app, run
from walkback.nets.resmlp import ResMLP
from walkback.store import Bundle, Store
from walkback.store.bundle import _write_manifest

TRAIN = ["train", "--net", "resmlp(width=16,expansion=1,depth=2)", "--data", "digits", "--epochs", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    store = tmp_path_factory.mktemp("cli") / "runs"
    assert run([*TRAIN, "--rules", "bp,dfa,frozen", "--seeds", "1,2,3", "--store", str(store)]) == 0
    return store


def bundle_of(store: Path, rule: str, seed: int = 1) -> Path:
    return next(store.glob(f"resmlp-{rule}-s{seed}-*"))


@pytest.fixture
def copy_of(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


def answer(capsys, *arguments) -> tuple[int, dict]:
    capsys.readouterr()
    code = run([*map(str, arguments), "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)


def refused(capsys, *arguments, words: str) -> None:
    """Exit code 2 and one sentence on stderr, no traceback; the same as JSON."""
    capsys.readouterr()
    assert run([*map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err and shown.out == ""
    assert len(shown.err.strip().splitlines()) == 1
    code, found = answer(capsys, *arguments)
    assert code == 2 and words in found["error"]["message"] + " " + found["error"]["hint"]
    assert set(found["error"]) == {"kind", "message", "hint"}


def test_diagnose_answers_with_the_documented_keys(trained, capsys):
    code, found = answer(capsys, "diagnose", bundle_of(trained, "bp"))
    assert {"verdict", "outcome", "logic", "diagnostics", "layers", "chain"} <= set(found)
    assert set(found["diagnostics"]) == {"D1_scale_growth", "D2_ref_validity", "D3_depth_utility"}
    for diagnostic in found["diagnostics"].values():
        assert {"value", "threshold", "fires"} <= set(diagnostic)
    for layer in found["layers"]:
        assert set(layer) >= {"index", "state_norm", "reference_norm", "cosine", "cosine_compat", "n_valid"}
    assert code == {"PASS": 0, "FAIL": 1}[found["outcome"]]


def test_seeds_of_one_rule_are_judged_together_and_several_rules_apart(trained, capsys):
    _, one = answer(capsys, "diagnose", *sorted(trained.glob("resmlp-bp-*")))
    assert one["evidence"]["seeds"] == [1, 2, 3]
    assert "3 seeds" in one["diagnostics"]["D3_depth_utility"]["sentence"]
    _, several = answer(capsys, "diagnose", *trained.glob("resmlp-*"))
    assert [v["evidence"]["rule"] for v in several["verdicts"]] == ["bp", "dfa", "frozen"]


def test_without_a_baseline_the_verdict_is_incomplete_with_exit_code_3(copy_of, capsys):
    for frozen in copy_of.glob("resmlp-frozen-*"):
        shutil.rmtree(frozen)
    code, found = answer(capsys, "diagnose", bundle_of(copy_of, "bp"))
    assert (code, found["verdict"]) == (3, "INCOMPLETE(D3)")


def test_a_baseline_can_be_named_as_bundle_or_store(trained, tmp_path, capsys):
    shutil.copytree(bundle_of(trained, "bp"), tmp_path / "alone" / "bp")
    for baseline in (bundle_of(trained, "frozen"), trained):
        _, found = answer(capsys, "diagnose", tmp_path / "alone" / "bp", "--baseline", baseline)
        assert found["diagnostics"]["D3_depth_utility"]["value"] is not None


def test_paper_logic_uses_its_own_words(trained, capsys):
    _, found = answer(capsys, "diagnose", bundle_of(trained, "bp"), "--logic", "paper")
    assert found["logic"] == "paper" and found["verdict"] in ("trustworthy", "walked back")


def test_a_light_export_is_small_has_no_weights_and_is_judged_alike(trained, tmp_path, capsys):
    for bundle in sorted(trained.glob("resmlp-*")):
        packed = tmp_path / f"{bundle.name}.zip"
        assert run(["bundle", "export", str(bundle), "--light", "--out", str(packed)]) == 0
        assert run(["bundle", "import", str(packed), "--store", str(tmp_path / "light")]) == 0
    capsys.readouterr()
    light = Store(tmp_path / "light").bundles()
    assert {role for bundle in light for role in ("checkpoint", "eval") if bundle.members(role)} == set()
    answers = []
    for store in (trained, tmp_path / "light"):
        run(["replay", str(store), "--json"])
        replayed = json.loads(capsys.readouterr().out)
        run(["diagnose", *map(str, sorted(store.glob("resmlp-*"))), "--json"])
        answers.append((replayed, json.loads(capsys.readouterr().out)))
    assert answers[0] == answers[1]


def test_verify_export_import_round_trip(trained, tmp_path, capsys):
    bundle = bundle_of(trained, "dfa")
    assert answer(capsys, "bundle", "verify", bundle)[1]["verified"][0]["members"] >= 5
    assert answer(capsys, "bundle", "export", bundle, "--out", tmp_path / "b.zip")[0] == 0
    code, found = answer(capsys, "bundle", "verify", tmp_path / "b.zip")
    assert code == 0 and found["verified"][0]["members"] >= 5, "a zip that came by mail, as it is"
    code, found = answer(capsys, "bundle", "import", tmp_path / "b.zip", "--store", tmp_path / "s")
    assert code == 0 and [Path(row["bundle"]).name for row in found["imported"]] == [bundle.name]


def test_several_zips_are_imported_at_once_and_again_without_harm(trained, tmp_path, capsys):
    zips = []
    for rule in ("bp", "dfa"):
        zips.append(tmp_path / f"{rule}.zip")
        Bundle.open(bundle_of(trained, rule)).export(zips[-1], light=True)
    for _ in range(2):
        code, found = answer(capsys, "bundle", "import", *zips, "--store", tmp_path / "s")
        assert code == 0 and len(found["imported"]) == 2
    assert len(Store(tmp_path / "s").bundles()) == 2


def test_runs_that_lie_zipped_in_a_store_are_not_silently_trained_again(trained, tmp_path, capsys):
    bundle = bundle_of(trained, "bp")
    assert answer(capsys, "bundle", "export", bundle, "--out", tmp_path / f"{bundle.name}.zip")[0] == 0
    one = ["--rules", "bp", "--seeds", "1"]
    refused(capsys, *TRAIN, *one, "--store", tmp_path, words="lie zipped in the store")
    assert [file.name for file in tmp_path.iterdir()] == [f"{bundle.name}.zip"], "nothing was trained"
    assert answer(capsys, "bundle", "import", tmp_path / f"{bundle.name}.zip", "--store", tmp_path)[0] == 0
    Store(tmp_path).refuse_zipped([bundle.name])


def test_report_and_ls_answer(trained, tmp_path, capsys):
    code, found = answer(capsys, "report", trained, "--out", tmp_path / "r")
    assert code == 0 and Path(found["report"]).is_file() and set(found["verdicts"]) == {"bp", "dfa"}
    for noun in ("rules", "nets", "data", "quantities", "thresholds"):
        assert answer(capsys, "ls", noun)[1][noun]
    assert len(answer(capsys, "ls", "bundles", "--store", trained)[1]["bundles"]) == 9


def test_replay_sweep_and_ablate_answer(trained, capsys):
    _, found = answer(capsys, "replay", trained)
    assert {(row["rule"], row["seed"]) for row in found["first_firing"]} == {
        (rule, seed) for rule in ("bp", "dfa") for seed in (1, 2, 3)
    }
    _, found = answer(capsys, "sweep", trained)
    defaults = [row for row in found["sweep"] if row["default"]]
    assert {row["threshold"] for row in defaults} == {"growth", "validity", "depth_gain"}
    _, judged = answer(capsys, "diagnose", *trained.glob("resmlp-bp-*"))
    assert {row["verdict"] for row in defaults if row["rule"] == "bp"} == {judged["verdict"]}
    _, paper = answer(capsys, "sweep", trained, "--logic", "paper")
    assert {row["threshold"] for row in paper["sweep"]} == {"growth", "compat", "depth_gain"}
    _, found = answer(capsys, "ablate", trained)
    assert [row["rule"] for row in found["ablation"]] == ["bp", "dfa"]
    _, found = answer(capsys, "multiverse", trained)
    assert [row["rule"] for row in found["multiverse"]] == ["bp", "dfa"]
    _, found = answer(capsys, "knockout", bundle_of(trained, "bp"))
    assert len(found["knockouts"][0]["blocks"]) == 2
    assert run(["knockout", str(bundle_of(trained, "bp"))]) == 0
    for command in ("replay", "sweep", "ablate", "multiverse"):
        assert run([command, str(trained)]) == 0


def test_every_question_to_a_store_names_the_runs_that_were_not_measured_yet(copy_of, tmp_path, capsys):
    bundle = Store(copy_of).find(bundle_of(copy_of, "bp", seed=3).name)
    bundle.commit(drop=bundle.members(), status={"state": "running", "epoch": 0, "reason": ""})
    questions = [[name, copy_of] for name in ("replay", "sweep", "ablate", "multiverse")]
    for question in (*questions, ["report", copy_of, "--out", tmp_path / "r"]):
        code, found = answer(capsys, *question)
        assert (code, found["not_measured_yet"]) == (0, [bundle.path.name])
        assert run([*map(str, question)]) == 0
        assert f"Not measured yet: {bundle.path.name}" in capsys.readouterr().out
    _, found = answer(capsys, "ablate", copy_of)
    assert {row["rule"]: row["full"] for row in found["ablation"]}["bp"] == "not known"
    _, found = answer(capsys, "diagnose", *copy_of.glob("resmlp-bp-*"))
    assert found["verdict"] == "INCOMPLETE(still training)"
    refused(capsys, "diagnose", bundle.path, words="holds no measurements yet")


def test_doctor_says_whether_runs_repeat_here(capsys, monkeypatch):
    code, found = answer(capsys, "doctor")
    assert code == 0 and found["reproducible"] is True
    assert {"torch", "numpy"} <= set(found["environment"]["libraries"]) and found["environment"][
        "threads"
    ] == 1
    from walkback.run import doctor

    drawn = iter([{"a": b"1"}, {"a": b"2"}])
    monkeypatch.setattr(doctor, "_members", lambda bundle: next(drawn))
    code, found = answer(capsys, "doctor")
    assert code == 1 and found["reproducible"] is False


def test_measure_adds_the_full_tier(copy_of, capsys):
    bundle = bundle_of(copy_of, "dfa")
    code, found = answer(capsys, "measure", bundle, "--epochs", "0,1", "--draws", "9")
    assert code == 0 and found["measured"][0]["epochs"] == [0, 1]
    _, verdict = answer(capsys, "diagnose", bundle)
    assert "null" in verdict["evidence"]["C_credit_direction"]["sentence"]
    refused(capsys, "measure", bundle, "--epochs", "9", words="no checkpoint of epoch 9")
    refused(capsys, "measure", bundle, "--epochs", "x", words="whole numbers")


def test_judging_and_reporting_never_load_torch(trained, tmp_path):
    code = """
import sys
from walkback.cli.main import run
bundle, store, out = sys.argv[1:]
answers = [["diagnose", bundle], ["report", store, "--out", out], ["bundle", "verify", bundle]]
for words in [*answers, ["replay", store], ["sweep", store], ["ablate", store]]:
    run(words)
sys.exit("torch" in sys.modules)
"""
    arguments = [str(bundle_of(trained, "bp")), str(trained), str(tmp_path / "r")]
    assert subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True).returncode == 0


@pytest.mark.parametrize("rule", ["dfaa", "bp,dfaa"])
def test_an_unknown_rule_gets_a_suggestion(rule, capsys, tmp_path):
    refused(capsys, *TRAIN, "--rules", rule, "--store", tmp_path, words="Did you mean 'dfa'?")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--net", "resnlp"], "Did you mean 'resmlp'?"),
        (["--net", "resmlp(widht=3)"], "no parameter 'widht'"),
        (["--data", "digit"], "Did you mean 'digits'?"),
        (["--schedule", "cosin"], "Did you mean 'cosine'?"),
        (["--seeds", "a,b"], "whole numbers"),
        (["--lr-grid", "a,b"], "--lr-grid takes numbers"),
        (["--lr-grid", "0.1,0.2", "--lr", "0.1"], "both say which rate"),
        (["--lr-grid", ","], "--lr-grid takes numbers"),
        (["--data-dir", "here"], "has no files"),
        (["--lr-grid", "0,1"], "lr must be positive"),
        (["--lr", "-1"], "lr must be positive"),
        (["--lr", "inf"], "lr must be positive"),
        (["--weight-decay", "inf"], "weight_decay must be zero or more"),
        (["--device", "meta"], "cannot be used"),
        (["--epochs", "0"], "--epochs"),
        (["--device", "cuda:99"], "cannot be used"),
        (["--rules", "dfa(form"], "parentheses"),
        (["--spec", "none.toml"], "There is no file none.toml"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, words, capsys, tmp_path):
    refused(capsys, *TRAIN, "--store", tmp_path, *options, words=words)


def test_what_can_be_added_to_a_rule_is_listed_beside_the_rules(capsys):
    code, found = answer(capsys, "ls", "rules")
    written = {row["name"]: row["written"] for row in found["rules"]}
    assert code == 0 and written["+penalty"] == "R+penalty(over=sum,weight=0.01)"
    assert written["+feedback"] == "R+feedback(seed=0)"


def test_a_rule_that_cannot_be_loaded_does_not_take_the_others_away(capsys, monkeypatch):
    from walkback.rules import rules

    monkeypatch.setitem(rules._entries, "theirs", "not_there:X")
    code, found = answer(capsys, "ls", "rules")
    about = {row["name"]: row["about"] for row in found["rules"]}
    assert code == 0 and "bp" in about and "cannot be loaded from not_there:X" in about["theirs"]


def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word(trained):
    """As in `walkback report runs | head -1`; 141 is what a shell calls it."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "walkback", "diagnose", str(bundle_of(trained, "bp"))]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_disk_without_room_is_one_sentence(tmp_path):
    """A limit on the size of files stands for it: the worker meets the same kind of error."""
    import resource

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    command = [sys.executable, "-m", "walkback", *TRAIN, "--store", str(tmp_path), "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, preexec_fn=small_files)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "file" and "File too large" in done.stdout


def test_a_spec_file_gives_options_and_the_command_line_overrides_it(tmp_path, capsys):
    spec = tmp_path / "run.toml"
    spec.write_text(
        'rules = ["bp"]\nseeds = [5, 6]\nepochs = 1\ndata = "digits"\nnet = "resmlp(width=8,depth=1)"\n'
    )
    code, found = answer(capsys, "train", "--spec", spec, "--seeds", "7", "--store", tmp_path / "s")
    assert code == 0 and [(run["rule"], run["seed"]) for run in found["runs"]] == [("bp", 7)]
    spec.write_text("rulez = 1\n")
    refused(capsys, "train", "--spec", spec, "--store", tmp_path / "s", words="unknown keys: rulez")
    for line, words in (
        ("epochs = 1.5", "epochs must be a whole number"),
        ('lr = "fast"', "lr must be a number"),
        ("store = 5", "store must be text"),
        ("workers = 0", "workers must be a whole number of at least 1"),
    ):
        spec.write_text(line + "\n")
        refused(capsys, "train", "--spec", spec, words=words)
    spec.write_text("rules = [\n")
    refused(capsys, "train", "--spec", spec, "--store", tmp_path / "s", words="not valid TOML")


def test_a_flipped_byte_is_refused(copy_of, capsys):
    bundle = bundle_of(copy_of, "bp")
    file = bundle / "checkpoints" / "epoch-0001.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    refused(capsys, "diagnose", bundle, words="has been altered")
    refused(capsys, "bundle", "verify", bundle, words="has been altered")


def test_one_damaged_bundle_does_not_keep_the_others_from_being_verified(copy_of, capsys):
    broken, sound = bundle_of(copy_of, "bp"), bundle_of(copy_of, "frozen")
    (broken / "measurements.csv").write_text("nothing")
    assert run(["bundle", "verify", str(broken), str(sound)]) == 2
    shown = capsys.readouterr()
    assert f"{sound}: " in shown.out and "all as written" in shown.out
    assert "1 of 2 bundles cannot be trusted" in shown.err and str(broken) in shown.err


@pytest.mark.parametrize("command", [["report"], ["audit", "dose-response", "--judge-only", "--store"]])
def test_a_report_that_would_be_written_over_a_file_is_refused_before_the_work(
    trained, tmp_path, capsys, command
):
    file = tmp_path / "out.csv"
    file.write_text("mine")
    refused(capsys, *command, trained, "--out", file, words="is a file, not a folder")
    assert file.read_text() == "mine"


def test_a_newer_schema_is_refused(copy_of, capsys):
    file = bundle_of(copy_of, "bp") / "bundle.json"
    file.write_bytes(_write_manifest({**json.loads(file.read_text()), "schema": 2}))
    refused(capsys, "diagnose", file.parent, words="Update walkback")


def test_a_path_that_climbs_out_of_the_store_is_refused(copy_of, tmp_path, capsys):
    file = bundle_of(copy_of, "bp") / "bundle.json"
    manifest = json.loads(file.read_text())
    manifest["members"]["../../secret"] = {"role": "eval", "sha256": "0", "bytes": 1}
    file.write_bytes(_write_manifest(manifest))
    refused(capsys, "diagnose", file.parent, words="leaves its folder")
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../evil", "x")
    refused(
        capsys,
        "bundle",
        "import",
        tmp_path / "evil.zip",
        "--store",
        tmp_path / "s",
        words="leaves its folder",
    )


def test_a_store_that_another_process_holds_is_refused(trained, capsys):
    name = bundle_of(trained, "bp").name
    arguments = [*TRAIN, "--rules", "bp", "--seeds", "1", "--store", trained]
    with Store(trained).hold(name):
        refused(capsys, *arguments, words="Another process is training")


def test_things_that_are_not_there_are_named(tmp_path, capsys):
    refused(capsys, "diagnose", tmp_path / "none", words="is not a bundle")
    refused(capsys, "report", tmp_path / "none", words="There is no store")
    refused(capsys, "diagnose", words="Give bundles to judge")
    refused(capsys, "ls", "everything", words="Choose: rules")
    (tmp_path / "empty").mkdir()
    refused(capsys, "report", tmp_path / "empty", words="holds no measured runs")


def test_a_file_where_a_folder_must_be_is_one_sentence(trained, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    refused(capsys, *TRAIN, "--store", tmp_path / "file", words="is a file, not a folder")
    refused(capsys, "demo", "--out", tmp_path / "file", words="is a file, not a folder")
    refused(capsys, "report", trained, "--out", tmp_path / "file", words="file")
    bundle = bundle_of(trained, "bp")
    refused(
        capsys, "bundle", "export", bundle, "--out", tmp_path / "no" / "x.zip", words="There is no folder"
    )


def test_options_that_would_be_ignored_are_refused(trained, capsys):
    bundle = bundle_of(trained, "bp")
    refused(capsys, "diagnose", bundle, "--accuracy", "0.9", words="--accuracy goes with --model")
    refused(capsys, "diagnose", bundle, bundle, words="more than once")
    refused(capsys, "ls", "rules", "--store", trained, words="rules lie in no store")
    for option in (["--workers", "2"], ["--device", "cpu"]):
        refused(capsys, "audit", "five-rule", "--judge-only", *option, words="trains nothing")


def test_a_baseline_must_be_one_and_share_the_recipe(trained, tmp_path, capsys):
    bundle = bundle_of(trained, "bp")
    refused(capsys, "diagnose", bundle, "--baseline", bundle_of(trained, "dfa"), words="holds no baseline")
    other = [*TRAIN, "--rules", "frozen", "--seeds", "1", "--lr", "0.5", "--store", tmp_path / "s"]
    assert run([*map(str, other)]) == 0
    baseline = bundle_of(tmp_path / "s", "frozen")
    refused(capsys, "diagnose", bundle, "--baseline", baseline, words="differs from")


def test_a_store_where_all_rules_pass_exits_0_although_it_holds_a_baseline(trained, capsys, monkeypatch):
    from walkback.judge import protocol

    monkeypatch.setattr(protocol, "decide", lambda reasons, logic: (protocol.Outcome.PASS, "PASS"))
    assert answer(capsys, "diagnose", *trained.glob("resmlp-*"))[0] == 0
    assert answer(capsys, "diagnose", *trained.glob("resmlp-frozen-*"))[0] == 3


def test_two_recipes_of_one_rule_are_told_apart_in_the_report(trained, tmp_path, capsys):
    for lr in ("1e-3", "1e-2"):
        assert run([*TRAIN, "--rules", "bp", "--lr", lr, "--store", str(tmp_path / "s")]) == 0
    _, found = answer(capsys, "report", tmp_path / "s", "--out", tmp_path / "r")
    assert set(found["verdicts"]) == {"bp (lr=0.001)", "bp (lr=0.01)"}


def test_output_survives_a_console_that_is_not_utf8(trained):
    command = [sys.executable, "-c", "from walkback.cli.main import main; main()"]
    env = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    for words in (["ls", "quantities"], ["diagnose", str(bundle_of(trained, "bp"))]):
        done = subprocess.run([*command, *words], capture_output=True, env=env)
        assert done.returncode in (0, 1) and b"Traceback" not in done.stderr
        done.stdout.decode("utf-8")


def test_usage_errors_are_json_too(capsys):
    for arguments in (["train", "--rulez", "x"], ["nonsense"], ["diagnose", "--nonsense"]):
        code, found = answer(capsys, *arguments)
        assert code == 2 and found["error"]["kind"] == "usage"


FACTORY = """
from walkback.nets.resmlp import ResMLP
import torch
def build(): return ResMLP(6, 3, depth=2, width=8)
def plain(): return torch.nn.Linear(6, 3)
def number(): return 3
def broken(): raise RuntimeError("no weights here")
def needy(size): return None
def prints(): print("hello from the factory"); return ResMLP(6, 3, depth=2, width=8)
def leaves(): raise SystemExit(0)
class Leaving(ResMLP):
    def forward(self, x): raise SystemExit(0)
def leaves_later(): return Leaving(6, 3, depth=2, width=8)
class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): raise ValueError("no way back")
class OneWay(ResMLP):
    def forward(self, x): return NoWayBack.apply(super().forward(x))
def one_way(): return OneWay(6, 3, depth=2, width=8)
class Masked(ResMLP):
    def forward(self, x, mask=None): return super().forward(x if mask is None else x * mask)
def masked(): return Masked(6, 3, depth=2, width=8)
"""


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_nets.py").write_text(FACTORY)
    sys.modules.pop("my_nets", None)
    torch.manual_seed(0)
    model = ResMLP(6, 3, depth=2, width=8)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    torch.save(model.state_dict(), tmp_path / "w.pt")
    torch.save(ResMLP(6, 3, depth=2, width=9).state_dict(), tmp_path / "wide.pt")
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    torch.save({1: torch.zeros(3)}, tmp_path / "keys.pt")
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "batch.npz", x=rng.normal(size=(40, 6)).astype(np.float32), y=rng.integers(3, size=40)
    )
    return tmp_path


def test_a_model_of_ones_own_is_audited_from_the_command_line(own_model, capsys):
    base = ["diagnose", "--model", "my_nets:build", "--eval", "batch.npz"]
    code, found = answer(capsys, *base, "--weights", "w.safetensors")
    assert (code, found["verdict"]) == (3, "INCOMPLETE(D3)")
    assert len(found["layers"]) == 3 and found["layers"][0]["cosine"] is None
    again = answer(capsys, *base, "--weights", "w.pt")[1]
    assert again["layers"] == found["layers"]
    assert answer(capsys, *base, "--baseline", "0.99", "--accuracy", "0.5")[1]["verdict"] == "FAIL(D3)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["my_nets:plain", "--eval", "batch.npz"], "blocks='encoder.layer'"),
        (["my_nets:number", "--eval", "batch.npz"], "not a torch module"),
        (["my_nets:none", "--eval", "batch.npz"], "cannot be imported"),
        (["my_nets:broken", "--eval", "batch.npz"], "no weights here"),
        (["my_nets:needy", "--eval", "batch.npz"], "missing 1 required positional argument"),
        ([":build", "--eval", "batch.npz"], "pkg:factory"),
        (["my_nets", "--eval", "batch.npz"], "pkg:factory"),
        (["my_nets:build"], "needs --eval"),
        (["my_nets:build", "--eval", "none.npz"], "There is no file"),
        (["my_nets:leaves", "--eval", "batch.npz"], "failed: SystemExit: 0"),
        (["my_nets:leaves_later", "--eval", "batch.npz"], "cannot process these inputs: SystemExit"),
        (["my_nets:one_way", "--eval", "batch.npz"], "backward pass failed: ValueError: no way back"),
        (
            ["my_nets:build", "--eval", "batch.npz", "--weights", "batch.npz"],
            "nor a torch file of tensors alone.",
        ),
        (
            ["my_nets:build", "--eval", "batch.npz", "--weights", "my_nets.py"],
            "nor a torch file of tensors alone.",
        ),
        (["my_nets:build", "--eval", "batch.npz", "--weights", "list.pt"], "not tensors by name"),
        (["my_nets:build", "--eval", "batch.npz", "--weights", "keys.pt"], "not tensors by name"),
        (["my_nets:build", "--eval", "batch.npz", "--weights", "wide.pt"], "size mismatch for stem"),
        (["my_nets:build", "--eval", "batch.npz", "--baseline", "35"], "0.35 for 35 %"),
        (["my_nets:build", "--eval", "batch.npz", "--blocks", "layers"], "no submodule 'layers'"),
    ],
)
def test_a_wrong_model_is_one_sentence(own_model, capsys, arguments, words):
    refused(capsys, "diagnose", "--model", *arguments, words=words)


def test_what_a_model_prints_is_not_part_of_the_answer(own_model, capsys):
    code, found = answer(capsys, "diagnose", "--model", "my_nets:prints", "--eval", "batch.npz")
    assert code == 3 and found["verdict"] == "INCOMPLETE(D3)"


def test_every_input_in_the_file_reaches_the_model_also_beside_one_called_x(own_model, capsys):
    with np.load("batch.npz") as batch:
        np.savez("masked.npz", **batch, mask=np.zeros_like(batch["x"]))
    command = ["diagnose", "--model", "my_nets:masked", "--weights", "w.pt", "--eval"]
    plain, masked = (answer(capsys, *command, name)[1]["layers"] for name in ("batch.npz", "masked.npz"))
    assert plain[0]["state_norm"] != masked[0]["state_norm"]


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((4, 6), np.float32), np.array([0, 1, 2, 3]), "Labels must lie in 0…2"),
        (np.zeros((4, 6), np.float32), np.array([0, 1]), "4 inputs (x) but 2 labels"),
        (np.zeros((0, 6), np.float32), np.zeros(0, int), "The batch is empty"),
        (np.full((4, 6), np.nan, np.float32), np.zeros(4, int), "NaN or infinite"),
        (np.zeros((4, 6), np.float32), np.zeros(4), "whole-number labels"),
        (np.zeros((4, 9), np.float32), np.zeros(4, int), "cannot process these inputs"),
        (np.array([["a"] * 6] * 4), np.zeros(4, int), "must hold numbers"),
        (np.float32(3), np.zeros(4, int), "must hold numbers"),
    ],
)
def test_a_wrong_batch_is_one_sentence(own_model, capsys, x, y, words):
    np.savez(own_model / "bad.npz", x=x, y=y)
    refused(capsys, "diagnose", "--model", "my_nets:build", "--eval", "bad.npz", words=words)


def commands_of(command, words=()):
    """Every command and group of the tree, with the words that call it."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_of(below, (*words, name))


def test_help_is_instant():
    import time

    command = [sys.executable, "-c", "from walkback.cli.main import main; main()"]
    bare = [sys.executable, "-c", "import typer, rich"]
    started = time.monotonic()
    subprocess.run(bare, check=True)
    floor = time.monotonic() - started
    started = time.monotonic()
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert time.monotonic() - started < 6 * floor + 0.3, "something heavy is imported at the top"
    assert "diagnose" in shown


COMMANDS = {" ".join(words): command for words, command in commands_of(typer.main.get_command(app))}


@pytest.mark.parametrize("words", [*COMMANDS], ids=lambda words: words or "walkback")
def test_the_help_of_every_command_and_group_has_an_example_in_80_columns(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*words.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    example = " ".join(shown[shown.index("Example") :].split())
    group = hasattr(COMMANDS[words], "commands")
    assert re.match(rf"Examples?: walkback {words}".rstrip(), example)
    assert group or "--json" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("words", [*COMMANDS], ids=lambda words: words or "walkback")
def test_every_option_of_a_command_is_in_its_row_of_the_reference_page(words):
    page = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text(encoding="utf-8")
    options = page[page.index("## Options") :]
    told = re.search(rf"(?m)^\| `walkback{words and ' '}{words}` \|(.*)$", options)
    flags = {flag for option in COMMANDS[words].params for flag in option.opts if flag.startswith("--")}
    flags -= {"--help", "--json"}  # every command has them, as the page says above
    named = set(re.findall(r"--[a-z][a-z-]*", told[1] if told else ""))
    assert named == flags


@pytest.mark.parametrize("words", [["--version", "--json"], ["--json", "--version"]])
def test_the_version_is_one_json_object_if_that_is_asked(capsys, words):
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out) == {"version": walkback.__version__}


def test_json_before_a_command_is_not_passed_over(capsys):
    assert run(["--json", "ls", "rules"]) == 2
    assert "behind the command" in json.loads(capsys.readouterr().out)["error"]["hint"]


def test_an_interrupt_ends_with_130(capsys, monkeypatch):
    from walkback.cli import ls

    monkeypatch.setitem(ls._LISTS, "rules", lambda store: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(["ls", "rules"]) == 130


def test_a_bug_is_exit_code_4_with_its_traceback(capsys, monkeypatch):
    from walkback.cli import ls

    monkeypatch.setitem(ls._LISTS, "rules", lambda store: 1 / 0)
    assert run(["ls", "rules"]) == 4
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_progress_is_silent_where_nobody_watches(tmp_path):
    command = [sys.executable, "-c", "from walkback.cli.main import main; main()", *TRAIN]
    command += ["--rules", "bp,frozen", "--seeds", "1", "--store", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0 and done.stderr == ""


def test_the_demo_finds_what_it_promises_within_two_minutes(tmp_path, capsys):
    code, found = answer(capsys, "demo", "--out", tmp_path / "demo")
    assert code == 0 and Path(found["report"]).is_file()
    assert {rule: verdict["verdict"] for rule, verdict in found["verdicts"].items()} == {
        "bp": "PASS",
        "fa": "PASS",
        "dfa": "FAIL(D1+D2+D3)",
    }
    for verdict in found["verdicts"].values():
        assert verdict["evidence"]["seeds"] == [42, 123, 456]


def test_progress_counts_every_run_though_rule_and_seed_are_those_of_another(monkeypatch):
    from walkback.cli.output import RunProgress
    from walkback.run.plan import Known, plan_runs

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    common = {"rules": ["dfa"], "seeds": [42], "data": "digits", "dataset": Known("0" * 64)}
    (one,), (other,) = (plan_runs(net="resmlp", epochs=epochs, **common) for epochs in (1, 3))
    (before,), (lost,) = (plan_runs(net="resmlp", epochs=epochs, **common) for epochs in (7, 8))
    with RunProgress({one: 100, other: 300, before: 70, lost: 30}, {before}).shown() as progress:
        for spec, step, steps in ((one, 60, 100), (one, 100, 100), (other, 60, 300)):
            progress(spec, step, steps)
        progress._move()
        whole, *bars = progress._progress.tasks
        assert (whole.completed, whole.total) == (70 + 41 + 1, 500 - 59 - 59), (
            "only what was made here counts"
        )
        assert [(bar.completed, bar.total, bar.visible) for bar in bars] == [
            (100, 100, False),
            (60, 300, True),
        ]
        progress.end(other, None)
        progress.end(lost, "lost: out of memory")
        whole, *bars = progress._progress.tasks
        assert whole.completed == whole.total == 112, "a run that diverged or failed is over too"
        assert not any(bar.visible for bar in bars)
    assert "lost: out of memory" in sys.stderr.getvalue()
