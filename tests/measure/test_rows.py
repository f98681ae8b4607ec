"""The cosine that does not depend on scale, against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from walkback.measure.rows import (
    answered_rows,
    clamped_cosines,
    correct_rows,
    exact,
    row_cosines,
    row_norms,
)

entries = st.floats(-10, 10, width=32).map(lambda v: 0.0 if abs(v) < 1e-3 else v)
rows = st.lists(entries, min_size=3, max_size=3)
scales = st.integers(-41, 37)


def slow_cosine(a, b):
    """Exact dot products of the stored floats; one rounding at the end."""
    a, b = [[Fraction(float(v)) for v in row] for row in (a, b)]
    dot, aa, bb = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, b), (a, a), (b, b)))
    sign = 1 if dot >= 0 else -1
    return sign * math.sqrt(dot * dot / (aa * bb))


@given(rows, rows, scales, scales)
def test_cosine_is_exact_at_every_scale_a_float_can_hold(a, b, scale_a, scale_b):
    a = torch.tensor([a], dtype=torch.float64).mul(10.0**scale_a).float()
    b = torch.tensor([b], dtype=torch.float64).mul(10.0**scale_b).float()
    assume(bool(a.isfinite().all() and b.isfinite().all() and a.any() and b.any()))
    found, valid = row_cosines(a, b)
    assert valid.all()
    assert float(found[0]) == pytest.approx(slow_cosine(a[0].tolist(), b[0].tolist()), abs=1e-12)


def test_the_library_cosine_would_fail_that_test():
    """A true .6 at ‖g‖ = 5e-10 reads .03 through a clamp of 1e-8."""
    a, g = torch.tensor([[3.0, 4.0]]), torch.tensor([[5e-10, 0.0]])
    assert float(F.cosine_similarity(a, g)) == pytest.approx(0.03, rel=1e-3)
    assert float(clamped_cosines(a, g)) == pytest.approx(0.03, rel=1e-3)
    assert float(row_cosines(a, g)[0]) == pytest.approx(0.6, abs=1e-7)


def test_rows_without_a_direction_are_left_out_and_counted():
    a = torch.tensor([[1.0, 0], [0, 0], [1, 0], [math.inf, 1], [math.nan, 1], [1, 1]])
    b = torch.tensor([[1.0, 0], [1, 0], [0, 0], [1, 1], [1, 1], [-1, -1]])
    found, valid = row_cosines(a, b)
    assert valid.tolist() == [True, False, False, False, False, True]
    assert found.tolist() == pytest.approx([1.0, -1.0])


@given(rows, scales)
def test_norms_neither_overflow_nor_vanish(row, scale):
    tensor = torch.tensor([row], dtype=torch.float64) * 10.0**scale
    squares = sum(Fraction(v) ** 2 for v in tensor[0].tolist())
    expected = math.sqrt(squares * Fraction(10) ** (-2 * scale)) * 10.0**scale
    assert float(row_norms(exact(tensor))[0]) == pytest.approx(expected, rel=1e-9)
    huge = torch.tensor([[1e200, 1e200]], dtype=torch.float64)
    assert float(row_norms(huge)[0]) == pytest.approx(2**0.5 * 1e200)


def test_a_row_with_a_class_ruled_out_can_be_right_and_one_that_is_no_number_never_is():
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor([[2.0, -inf], [2.0, 1.0], [nan, 1.0], [1.0, nan], [inf, 1.0], [-inf, -inf]])
    labels = torch.tensor([0, 1, 0, 1, 0, 0])
    assert correct_rows(logits, labels).tolist() == [True, False, False, False, False, False]
    assert answered_rows(logits).tolist() == [True, True, False, False, False, False]
