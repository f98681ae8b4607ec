"""Numbers as people write them; what is not a number is never written as one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.judge.test_protocol import evidence, frozen
from walkback.judge import judge
from walkback.report import words

SHOWN = (words.number, words.cosine, words.percent, words.points, words.count)


@pytest.mark.parametrize("show", SHOWN)
def test_gaps_are_words_never_zero(show: object) -> None:
    assert callable(show)
    assert show(None) == "—"
    assert show(math.nan) == "not a number"
    assert show(math.inf) == "infinite"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7187.3, "7190"),
        (20.0, "20.0"),
        (0.00114, "0.00114"),
        (3.985e-9, "3.98×10⁻⁹"),
        (-1.81e7, "−1.81×10⁷"),
        (99999.0, "1.00×10⁵"),
        (0.0, "0"),
    ],
)
def test_three_significant_digits(value: float, shown: str) -> None:
    assert words.number(value) == shown


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-300, max_value=1e300))
def test_a_number_is_shown_within_half_a_percent(value: float) -> None:
    back = words.number(value).translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    assert float(back.replace("×10", "e")) == pytest.approx(value, rel=0.0051)


def test_thresholds_carry_no_empty_digits() -> None:
    assert [words.limit(value) for value in (50.0, 1e-7, 2.5e-6, 0.02)] == [
        "50",
        "10⁻⁷",
        "2.5×10⁻⁶",
        "0.02",
    ]


def test_a_cosine_that_rounds_to_nothing_has_no_sign() -> None:
    assert words.cosine(-0.0001) == "0.000"
    assert words.cosine(-0.25) == "−0.250"


def test_a_value_over_seeds_is_called_the_median_and_the_seeds_that_fire_are_counted() -> None:
    runs = [evidence(growth=growth, seed=seed) for seed, growth in enumerate((2.0, 3.0, 4660.0))]
    told = words.why(judge(runs, [frozen(seed=seed) for seed in range(3)]))
    assert "one block is 3.00 in the median seed (limit 50, fires on 1 of 3 seeds)" in told
    assert "measures 0.00100 in the median seed (limit 10⁻⁷)" in told
    alone = words.why(judge(runs[:1], [frozen()]))
    assert "one block is 2.00 (limit 50)" in alone and "median" not in alone


def test_mean_over_seeds_with_a_gap_is_a_gap() -> None:
    assert words.mean_of([0.5, None]) is None
    assert words.mean_of([]) is None
    assert words.sd_of([0.5]) is None
