"""Many tracks at once: the same numbers as one alone, kept on disk, and nothing lost on the way."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.tracks.coin import SOURCE, coin, toss
from walkback import Outcome, Track, verify
from walkback.core.errors import BadInput, UnknownName
from walkback.store.provenance import installed
from walkback.tracks import kept, tracks
from walkback.tracks.find import find_tracks, read_tracks
from walkback.tracks.loaded import own_modules

OTHERS = """
import numpy as np


@other.experiment
def draw(lab: Lab) -> None:
    \"\"\"Draw from the global generators.\"\"\"
    import torch

    lab.row(numpy=float(np.random.random()), torch=torch.rand(1).item())
    lab.report("zero", 1 if lab.control else 0)
"""
SEVERAL = (
    SOURCE
    + """
other = Track(
    id=7, name="Zero is zero", claim="0 = 0.", purpose="p", limits="l", improve="i", arms={"a": "b"},
    decisions=[Decision("zero", "Zero", at_most=0)], controls=[Control("one", "it is one")],
)
"""
    + OTHERS
)
BROKEN = SOURCE.replace("    heads =", "    1 / 0\n    heads =")


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "my_tracks.py"
    path.write_text(SEVERAL, encoding="utf-8")
    return path


def numbers(verification):
    """Everything but what a clock and the memory say."""
    told = json.loads(json.dumps([dict(verdict.to_dict()) for verdict in verification.verdicts]))
    for verdict in told:
        verdict["evidence"].pop("seconds"), verdict["evidence"].pop("peak_mb")
    return {verdict["evidence"]["id"]: verdict for verdict in told}


def test_a_track_gives_the_same_numbers_alone_among_others_and_in_another_process(file):
    alone = {name: numbers(verify(name, file=file))[name] for name in (7, "coin")}
    assert numbers(verify(file=file)) == alone
    assert numbers(verify("coin", 7, file=file)) == alone
    assert numbers(verify(file=file, workers=2)) == alone
    assert numbers(verify(file=file, seed=1)) != alone


def test_all_tracks_count_and_the_worst_outcome_decides():
    tracks = [
        coin(id="pass"),
        coin(toss(share=0.6, silver=0.5), id="fail"),
        coin(toss(count=50), id="open"),
        coin(toss(before=lambda lab: lab.skip("no purse")), id="skip"),
        coin(toss(before=lambda lab: 1 / 0), id="error"),
    ]
    found = verify(*tracks)
    assert found.counts == {
        "passed": 1,
        "failed": 1,
        "inconclusive": 1,
        "skipped": 1,
        "error": 1,
        "total": 5,
    }
    assert found.outcome.exit_code == 1 and "ZeroDivisionError" in found.traces["track error: the claim"]
    assert found.average_score == pytest.approx(
        sum(found[i].evidence["score"] for i in ("pass", "fail", "open")) / 4
    )
    assert verify(tracks[2], tracks[0]).outcome.exit_code == 3
    assert verify(tracks[0], tracks[4]).outcome is Outcome.ERROR
    assert verify(tracks[0]).outcome.exit_code == 0
    assert verify(tracks[3]).average_score is None


def test_a_track_that_kills_its_process_is_an_error_and_the_others_go_on(file):
    file.write_text(SEVERAL.replace("    heads =", "    import os; os._exit(9)\n    heads =", 1))
    found = verify(file=file, workers=2)
    assert found["coin"].outcome is Outcome.ERROR and "exit code 9" in found["coin"].notes[0]
    assert found[7].outcome is Outcome.PASS


def test_what_has_ended_is_kept_and_not_run_again(file, tmp_path):
    out = tmp_path / "out"
    first = verify(file=file, out=out)
    again = verify(file=file, out=out)
    assert (first.kept, again.kept) == (0, 5) and numbers(again) == numbers(first)
    assert again["coin"].evidence["seconds"] == first["coin"].evidence["seconds"]
    assert verify(file=file, out=out, seed=1).kept == 0
    assert verify(file=file, out=out, full=True).kept == 0


def test_changed_code_is_run_again(file, tmp_path):
    (tmp_path / "model_next_door.py").write_text("share = 0.5\n")
    file.write_text(SEVERAL.replace("else 0.5", "else __import__('model_next_door').share"))
    out = tmp_path / "out"
    options = ["--tracks", "coin", "--json", "--out", str(out)]
    command = [sys.executable, "-m", "walkback", "verify", str(file), *options]

    def kept_and_outcome():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = json.loads(done.stdout)
        return told["kept"], told["outcome"]

    assert kept_and_outcome() == (0, "PASS")
    assert kept_and_outcome() == (3, "PASS")
    (tmp_path / "model_next_door.py").write_text("share = 0.9\n")
    kept, outcome = kept_and_outcome()
    assert kept <= 2 and outcome == "FAIL", "only controls, which never ask the model, may be kept"
    file.write_text(file.read_text() + "\n# another comment\n")
    assert kept_and_outcome()[0] == 0


def test_a_pass_whose_code_was_changed_while_it_ran_is_not_kept(file, tmp_path):
    """The file is edited while its claim is on trial; what ran is no longer what the file says."""
    edit = "    from pathlib import Path; Path(__file__).write_text('# another')\n    heads ="
    file.write_text(SOURCE.replace("    heads =", edit))
    assert verify(file=file, out=tmp_path / "out").outcome is Outcome.PASS
    assert not list((tmp_path / "out").rglob("*.json"))
    file.write_text(SOURCE)
    assert verify(file=file, out=tmp_path / "out").kept == 0


def test_a_module_that_python_holds_in_an_older_version_is_not_filed_under_the_new_one(tmp_path):
    helper, file = tmp_path / "held_helper.py", tmp_path / "my_tracks.py"
    helper.write_text("share = 0.5\n")
    file.write_text(SOURCE.replace("else 0.5", "else __import__('held_helper').share"))
    assert verify(file=file, out=tmp_path / "out").outcome is Outcome.PASS
    helper.write_text("share = 0.9\n")
    assert sys.modules["held_helper"].share == 0.5
    assert verify(file=file, out=tmp_path / "out", seed=1).outcome is Outcome.PASS, "Python still holds 0.5"
    command = [sys.executable, "-m", "walkback", "verify", str(file), "--seed", "1", "--json"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, check=False)
    told = json.loads(done.stdout)
    assert (told["outcome"], told["kept"]) == ("FAIL", 0)
    del sys.modules["held_helper"]  # with a stale module at hand nothing would be kept


def test_a_bound_that_depends_on_more_than_the_file_is_part_of_what_is_kept(file, tmp_path, monkeypatch):
    bound = "at_most=float(__import__('os').environ.get('LIMIT', '0.55'))"
    file.write_text(SOURCE.replace("at_least=0.45, at_most=0.55", bound))
    assert verify(file=file, out=tmp_path / "out").outcome is Outcome.PASS
    monkeypatch.setenv("LIMIT", "0.1")
    found = verify(file=file, out=tmp_path / "out")
    assert found.kept == 0 and found.outcome is Outcome.FAIL


def test_a_library_of_another_version_is_run_again(file, tmp_path, monkeypatch):
    verify(file=file, out=tmp_path / "out")
    stored = next((tmp_path / "out/arms").iterdir())
    assert {"numpy", "walkback"} <= set(json.loads(stored.read_text())["libraries"])
    monkeypatch.setattr(kept, "installed", lambda name: "0" if name == "pytest" else installed(name))
    assert verify(file=file, out=tmp_path / "out").kept == 0


def test_a_helper_inside_the_environments_own_folder_is_watched(tmp_path, monkeypatch):
    paths = {**sysconfig.get_paths(), "data": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    (tmp_path / "helper_in_prefix.py").write_text("share = 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("helper_in_prefix")
    assert str(tmp_path / "helper_in_prefix.py") in own_modules(time.time())


def test_a_file_that_skips_itself_is_refused_in_a_sentence(file):
    file.write_text("import pytest\npytest.importorskip('no_such_library')\n" + SOURCE)
    with pytest.raises(BadInput, match="cannot be imported: Skipped"):
        verify(file=file)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("""arms={"coin": "numpy's"}""", 'arms=["coin"]', "its arms have no words"),
        ("""arms={"coin": "numpy's"}""", 'arms={"coin": object()}', "what it says of 'coin' is not a text"),
        ('id="coin"', 'id=("coin", 1)', "its id is neither a number nor a text"),
        ('"the coin is loaded"', "3", "what it says of 'loaded' is not a text"),
    ],
)
def test_a_declaration_that_no_report_could_show_is_refused(file, old, new, words):
    file.write_text(SOURCE.replace(old, new))
    with pytest.raises(BadInput, match=words):
        verify(file=file)


def test_an_error_or_a_torn_file_is_not_kept(file, tmp_path):
    file.write_text(BROKEN)
    verify(file=file, out=tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.json"))
    file.write_text(SOURCE)
    verify(file=file, out=tmp_path / "out")
    for stored in (tmp_path / "out" / "arms").iterdir():
        stored.write_text(stored.read_text()[:50])
    assert verify(file=file, out=tmp_path / "out").kept == 0


def test_objects_are_always_run_and_never_mistaken_for_each_other(tmp_path):
    verify(coin(), out=tmp_path)
    assert verify(coin(toss(share=0.6, silver=0.5)), out=tmp_path).outcome is Outcome.FAIL
    with pytest.raises(BadInput, match="Two of these tracks have the id 'coin'"):
        verify(coin(), coin(toss(share=0.6)))


def test_interrupted_work_goes_on_where_it_was(file, tmp_path):
    slow = SEVERAL.replace(
        "    heads =", "    import time; time.sleep(300 if lab.under('stuck') else 0)\n    heads =", 1
    )
    file.write_text(slow)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "walkback", "verify", str(file), "--workers", "1", "--out", str(out)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(out.rglob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 130 and "Interrupted" in said
    kept = {path.name for path in out.rglob("*.json")}
    assert len(kept) >= 2
    found = verify(7, file=file, out=out)
    assert found.outcome is Outcome.PASS and kept <= {path.name for path in out.rglob("*.json")}


def test_workers_die_with_their_parent(file, tmp_path):
    pids = tmp_path / "pids"
    line = (
        f"    import os, time; open({str(pids)!r}, 'a').write(str(os.getpid()) + '\\n'); time.sleep(300)\n"
    )
    file.write_text(SEVERAL.replace("    heads =", line + "    heads =", 1))
    command = [sys.executable, "-m", "walkback", "verify", str(file), "--tracks", "coin", "--workers", "2"]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while (not pids.exists() or len(pids.read_text().split()) < 2) and time.monotonic() < deadline:
        time.sleep(0.1)
    child.kill()
    child.wait()
    while any(map(alive, pids.read_text().split())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids.read_text().split()))


def alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
        if Path(f"/proc/{pid}/stat").exists()
        else True
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_progress_is_told_while_a_pass_runs_and_when_it_ends(file, workers):
    file.write_text(SOURCE.replace("    lab.row(", "    lab.progress(1, 2)\n    lab.row("))
    told = []
    verify(file=file, workers=workers, on_progress=lambda *given: told.append(given))
    assert ("track coin: the claim (1 of 2)", 0, 3) in told
    assert ("track coin: the claim", 1, 3) in told and told[-1] == ("track coin: stuck", 3, 3)


def test_walkbacks_own_tracks_are_found_by_id_in_order():
    assert [track.id for track in find_tracks([6, "1"])] == [6, 1]
    ids = [track.id for track in find_tracks()]
    numbered = [name for name in ids if isinstance(name, int)]
    assert {1, 2, 3, 6} <= set(ids) and ids[: len(numbered)] == sorted(numbered)
    assert all(isinstance(track, Track) for track in find_tracks())


def test_an_unknown_track_is_named_with_a_suggestion(file):
    with pytest.raises(UnknownName, match="Available: 7, coin"):
        find_tracks(["con"], file)
    with pytest.raises(UnknownName, match="Did you mean 'coin'"):
        find_tracks(["coins"], file)
    with pytest.raises(UnknownName, match="Unknown track '99'"):
        find_tracks([99])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "defines no track"),
        ("from walkback.tracks.parity import track\n", "defines no track"),
        ("import no_such_module\n", "cannot be imported: ModuleNotFoundError"),
        ("def (:\n", "cannot be imported: SyntaxError"),
        ("raise SystemExit(3)\n", "cannot be imported: SystemExit"),
        (
            SOURCE + SOURCE.replace("track", "other").replace("walkback.others", "walkback.tracks"),
            "two tracks",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_words(tmp_path, text, words):
    path = tmp_path / "my_tracks.py"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        read_tracks(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadInput, match="There is no file"):
        read_tracks(tmp_path / "none.py")


LOST = """
from walkback.tracks import Control, Decision, Lab, Track


def declare(name, bad):
    made = Track(
        id=name, name=name, claim="0 = 0.", purpose="p", limits="l", improve="i", arms={"a": "b"},
        decisions=[Decision("zero", "Zero", at_most=0)], controls=[Control("one", "it is one")],
    )

    @made.experiment
    def zero(lab: Lab) -> None:
        \"\"\"Report zero.\"\"\"
        lab.report("zero", 1 if lab.control or bad else 0)

    return made
"""


def test_no_track_of_a_file_is_overlooked_whatever_its_name(tmp_path):
    (tmp_path / "track_factory.py").write_text(LOST + "\nelsewhere = declare('elsewhere', True)\n")
    path = tmp_path / "mine.py"
    path.write_text(
        "from track_factory import declare, elsewhere\n"
        "track = declare('first', True)\ntrack = declare('second', False)\n"
        "more = [declare('listed', True)]\n"
    )
    found = verify(file=path)
    assert found.counts["total"] == 3 and found.counts["failed"] == 2
    path.write_text("from walkback.tracks import Track\n" + LOST + "declare('a', 0)\ndeclare('a', 1)\n")
    with pytest.raises(BadInput, match="two tracks with the id 'a'"):
        read_tracks(path)


STATEFUL = (
    SOURCE.replace("@track.experiment", "passes = []\n\n\n@track.experiment")
    .replace(
        "    share =",
        "    import torch\n    passes.append(lab.control)\n    torch.set_default_dtype(torch.float64)\n"
        "    print('noise')\n    share =",
    )
    .replace('1.0 if lab.under("stuck")', "1.0 if len(passes) > 1")
)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_pass_has_a_process_in_which_nothing_ran_before(file, workers):
    """The sabotages are never applied; in one process for all, a count of passes would look like it."""
    file.write_text(STATEFUL.replace('0.7 if lab.under("loaded")', "0.5 if lab.control"))
    assert verify("coin", file=file, workers=workers).outcome is Outcome.FAIL


def test_what_experiments_and_files_print_does_not_reach_the_answer(file):
    file.write_text("import os\nprint('at import')\nos.system('echo a process of its own')\n" + STATEFUL)
    command = [sys.executable, "-m", "walkback", "verify", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["counts"]["total"] == 1 and "noise" in done.stderr
    assert "a process of its own" in done.stderr


def test_a_pass_may_start_processes_of_its_own(file):
    file.write_text(
        SOURCE.replace(
            "    share =",
            "    import torch\n    rows = torch.utils.data.DataLoader([1.0, 2.0], num_workers=1)\n"
            "    assert len(list(rows)) == 2\n    share =",
        )
    )
    assert verify("coin", file=file, workers=1).outcome is Outcome.PASS


def test_a_kept_pass_of_another_kind_is_run_again(file, tmp_path):
    verify("coin", file=file, out=tmp_path)
    arms = sorted((tmp_path / "arms").iterdir())
    for arm in arms:
        arm.write_bytes(arms[0].read_bytes())
    assert verify("coin", file=file, out=tmp_path).kept == 1
    stored = json.loads(arms[0].read_bytes())
    for arm in arms:
        arm.write_text(json.dumps({**stored, "arm": {**stored["arm"], "reasons": []}}))
    assert verify("coin", file=file, out=tmp_path).kept == 0


def test_a_file_that_cannot_be_imported_is_told_in_one_line(file):
    file.write_text("raise ValueError('one\\n  two')\n")
    with pytest.raises(BadInput, match=r"cannot be imported: ValueError: one two\.$"):
        read_tracks(file)
    file.write_text(
        SOURCE.replace(
            'decisions=[Decision("share", "Share of heads", at_least=0.45, at_most=0.55)]', "decisions=[]"
        )
    )
    with pytest.raises(BadInput, match=r"Track coin decides nothing\. Declare at least one Decision\.$"):
        read_tracks(file)


def test_a_registered_track_is_known_by_its_id(monkeypatch):
    monkeypatch.setitem(tracks._entries, "alias", coin())
    with pytest.raises(BadInput, match="registered as 'alias' has the id 'coin'"):
        find_tracks(["alias"])


def test_a_module_without_source_that_changed_is_run_again(tmp_path):
    import py_compile

    source = tmp_path / "kernel_of_mine.txt"
    file = tmp_path / "my_tracks.py"
    file.write_text(
        SOURCE.replace("    heads =", "    import kernel_of_mine\n    heads ="), encoding="utf-8"
    )
    for number in (1, 2):
        source.write_text(f"ERROR = {number}\n")
        py_compile.compile(str(source), cfile=str(tmp_path / "kernel_of_mine.pyc"), doraise=True)
        past = time.time() - 60
        os.utime(tmp_path / "kernel_of_mine.pyc", (past, past))
        found = verify(file=file, workers=1, out=tmp_path / "out")
        assert found.kept == 0, f"version {number} has not been run yet"
    assert verify(file=file, workers=1, out=tmp_path / "out").kept > 0


def test_an_experiment_may_be_any_object_that_can_be_called(tmp_path):
    class Toss:
        """Tosses a coin."""

        def __call__(self, lab):
            toss()(lab)

    track = coin(Toss(), id="object")
    assert numbers(verify(track))["object"]["verdict"] == "PASS"


def test_a_track_that_was_typed_is_verified_too():
    typed = "import tests.tracks.coin as c\nfrom walkback import verify\n"
    typed += "def f(lab):\n    'Toss.'\n    c.toss()(lab)\n"
    typed += "print(verify(c.coin(f, id='typed')).verdicts[0].verdict)"
    done = subprocess.run([sys.executable, "-c", typed], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "PASS", done.stderr


def test_a_file_that_goes_to_its_own_folder_is_verified(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    moved = "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))\n"
    there = tmp_path / "sub" / "moving.py"
    there.write_text(SOURCE.replace("\n\n", "\n\n" + moved, 1), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = verify(file="sub/moving.py", workers=1, out="out")
    assert [verdict.verdict for verdict in found.verdicts] == ["PASS"]
    assert Path.cwd() == tmp_path and (tmp_path / "out").is_dir() and not (tmp_path / "sub/out").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("ending", ["sys.exit(0)", "pass", "1 / 0"])
def test_a_child_of_an_experiment_does_not_answer_for_it(file, ending):
    forked = f"    import os, sys\n    if os.fork() == 0:\n        {ending}\n    else:\n        os.wait()\n"
    file.write_text(SOURCE.replace("    heads =", forked + "    heads ="), encoding="utf-8")
    apart = numbers(verify("coin", file=file, workers=1))
    assert apart["coin"]["verdict"] == "PASS"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_pass_that_dies_is_not_waited_for_while_its_children_live(file):
    killed = (
        "    import os, signal, time\n    if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)\n"
    )
    killed += "    os.kill(os.getpid(), signal.SIGKILL)\n"
    file.write_text(SOURCE.replace("    heads =", killed + "    heads ="), encoding="utf-8")
    started = time.monotonic()
    found = verify("coin", file=file, workers=4)
    assert found.verdicts[0].outcome is Outcome.ERROR and time.monotonic() - started < 50
