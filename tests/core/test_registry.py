from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from walkback.core.errors import BadInput, UnknownName
from walkback.core.registry import Registry


def test_an_unknown_name_gets_a_suggestion_and_the_list():
    registry = Registry("rule", {"dfa": "x:y", "bp": "x:y"})
    with pytest.raises(UnknownName, match=r"Unknown rule 'dfaa'\. Did you mean 'dfa'\? Available: bp, dfa"):
        registry["dfaa"]
    with pytest.raises(UnknownName) as caught:
        registry["zzzzzz"]
    assert "Did you mean" not in str(caught.value)


def test_an_entry_is_imported_only_when_it_is_asked_for():
    sys.modules.pop("colorsys", None)
    registry = Registry("thing", {"convert": "colorsys:rgb_to_hsv"})
    assert list(registry) == ["convert"]
    assert "colorsys" not in sys.modules
    assert registry["convert"](0, 0, 0) == (0.0, 0.0, 0)


def test_one_can_register_ones_own_but_not_over_another():
    registry = Registry("rule", {"bp": "colorsys:rgb_to_hsv"})

    @registry.register("mine")
    def mine():
        pass

    assert registry["mine"] is mine
    with pytest.raises(BadInput, match="registered already"):
        registry.register("bp")(mine)


def test_entries_of_other_packages_are_listed_before_anybody_asks_for_one(monkeypatch):
    point = EntryPoint("theirs", "colorsys:rgb_to_hsv", "walkback.things")
    monkeypatch.setattr(
        "walkback.core.registry.entry_points", lambda group: [point][: group == point.group]
    )
    assert list(Registry("thing", {"ours": "x:y"})) == ["ours", "theirs"]
    assert list(Registry("rule", {"ours": "x:y"})) == ["ours"]


def test_an_entry_point_may_name_what_a_decorator_registers(monkeypatch):
    registry = Registry("thing", {"convert": "colorsys:rgb_to_hsv"})
    import colorsys

    assert registry.register("convert")(colorsys.rgb_to_hsv) is colorsys.rgb_to_hsv
    with pytest.raises(BadInput, match="registered already"):
        Registry("thing", {"convert": "colorsys:rgb_to_hsv"}).register("convert")(colorsys.hsv_to_rgb)


@pytest.mark.parametrize("entry", ["nowhere_at_all:X", "colorsys:nothing"])
def test_an_entry_that_cannot_be_loaded_is_named(entry):
    with pytest.raises(BadInput, match=f"The thing 'broken' cannot be loaded from {entry}"):
        Registry("thing", {"broken": entry})["broken"]


def points(monkeypatch, **values: str) -> None:
    found = [EntryPoint(name, value, "walkback.things") for name, value in values.items()]
    monkeypatch.setattr("walkback.core.registry.entry_points", lambda group: found)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('half done')", "RuntimeError('half done')"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("thing = print", "it is no Path"),
        ("import pathlib; thing = pathlib.Path()", "it has no colour"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_told_in_a_sentence(
    monkeypatch, tmp_path, source: str, words: str
):
    (tmp_path / "odd_things.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_things", raising=False)
    points(monkeypatch, odd="odd_things:thing")
    with pytest.raises(BadInput, match="'odd' cannot be loaded from odd_things:thing") as caught:
        Registry("thing", {}, base=Path, needs=["colour"])["odd"]
    assert words in str(caught.value)


def test_what_an_entry_point_prints_is_not_the_answer(monkeypatch, tmp_path, capsys):
    (tmp_path / "loud_things.py").write_text("print('hello')\nclass Holder:\n    thing = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    points(monkeypatch, loud="loud_things:Holder.thing [extra]")
    assert Registry("thing", {})["loud"] == 3
    said = capsys.readouterr()
    assert said.out == "" and "hello" in said.err


def test_a_name_of_our_own_is_not_given_away_in_silence(monkeypatch):
    points(monkeypatch, ours="theirs:thing")
    with pytest.warns(UserWarning, match="'ours' of theirs:thing is not used"):
        assert list(Registry("thing", {"ours": "walkback.core.registry:Registry"})) == ["ours"]
