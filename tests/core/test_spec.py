from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkback.core.errors import BadInput
from walkback.core.spec import Call, RunSpec, split_list, tell_apart

names = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True).filter(lambda s: s not in ("true", "false"))
values = st.one_of(
    st.integers(-1000, 1000), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), names
)


@given(names, st.dictionaries(names.map(lambda n: n.replace("-", "_")), values, max_size=4))
def test_a_call_reads_back_as_it_was_written(name, params):
    params = {k: v for k, v in params.items() if not (isinstance(v, str) and _is_number(v))}
    call = Call(name, params)
    assert Call.parse(str(call)) == call


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_lists_split_on_commas_outside_parentheses_only():
    assert split_list("bp, dfa(form=layer,skip=sum) ,fa") == ["bp", "dfa(form=layer,skip=sum)", "fa"]
    for text in ("dfa(form=layer", "dfa)"):
        with pytest.raises(BadInput, match="parentheses"):
            split_list(text)


def spec(**changes):
    fields = {"net": Call("resmlp", {"width": 8}), "rule": Call("bp"), "data": Call("digits")}
    return RunSpec(**{**fields, "data_identity": "abc", "seed": 1, "epochs": 2, **changes})


def test_equal_specs_have_equal_ids_whatever_the_order_or_the_kind_of_number():
    one = spec(net=Call("resmlp", {"width": 8, "depth": 2}), lr=1)
    other = spec(net=Call("resmlp", {"depth": 2, "width": 8}), lr=1.0)
    assert one.id == other.id
    assert RunSpec.from_dict(one.to_dict()).id == one.id


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"epochs": 3},
        {"lr": 0.1},
        {"rule": Call("fa")},
        {"data_identity": "x"},
        {"schedule": "constant"},
    ],
)
def test_every_part_of_a_spec_changes_its_id(change):
    assert spec(**change).id != spec().id


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"batch": 0}, {"lr": 0}, {"lr": float("nan")}, {"weight_decay": -1}]
)
def test_a_recipe_that_cannot_train_is_refused(wrong):
    with pytest.raises(BadInput):
        spec(**wrong)


def test_unknown_and_ill_typed_parameters_are_refused_by_name():
    with pytest.raises(BadInput, match="no parameter 'widht'"):
        Call.parse("resmlp(widht=8)").with_defaults({"width": 4}, "net")
    with pytest.raises(BadInput, match="whole number"):
        Call.parse("resmlp(width=8.5)").with_defaults({"width": 4}, "net")
    with pytest.raises(BadInput, match="whole number"):
        Call.parse("resmlp(width=true)").with_defaults({"width": 4}, "net")
    assert Call.parse("x(rate=1)").with_defaults({"rate": 0.5}, "rule").params == {"rate": 1.0}


def test_runs_are_told_apart_by_what_they_do_not_share():
    narrow, wide = (Call("resmlp", {"width": width, "depth": 2}) for width in (8, 16))
    specs = [spec(net=narrow), spec(net=narrow, seed=2), spec(net=wide), spec(net=Call("vit"))]
    assert tell_apart(specs) == ["resmlp(width=8)", "resmlp(width=8)", "resmlp(width=16)", "vit"]
    assert tell_apart([*specs[:2], spec(net=narrow, schedule="constant", batch=32)]) == [
        "resmlp",
        "resmlp",
        "resmlp, batch=32, schedule=constant",
    ]
    assert tell_apart([]) == []
