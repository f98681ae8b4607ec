from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walkback.core.errors import CorruptBundle
from walkback.core.quantities import QUANTITIES, STATUSES, Measurements

ids = st.sampled_from(sorted(QUANTITIES))


@given(st.lists(st.tuples(st.integers(0, 500), ids, st.floats(), st.integers(0, 9))))
def test_the_table_reads_back_bit_for_bit(rows):
    table = Measurements()
    for epoch, quantity, value, layer in rows:
        table.add(epoch, quantity, value, layer if QUANTITIES[quantity].per_layer else None)
    again = Measurements.from_csv(table.to_csv())
    assert again.to_csv() == table.to_csv()
    for one, other in zip(table, again, strict=True):
        assert one[:3] == other[:3] and one.status == other.status
        assert one.value == other.value or (math.isnan(one.value) and math.isnan(other.value))


def test_nan_is_not_a_number_and_infinity_can_be_compared():
    table = Measurements()
    table.add(0, "loss.test@1", math.nan)
    table.add(1, "loss.test@1", math.inf)
    table.add(2, "loss.test@1", math.nan, status="not_applicable")
    assert [reading.status for reading in table] == ["nan", "inf", "not_applicable"]
    assert [table.number("loss.test@1", epoch) for epoch in (0, 1, 2, 3)] == [None, math.inf, None, None]


def test_a_per_layer_quantity_needs_a_layer_and_a_known_status():
    table = Measurements()
    with pytest.raises(AssertionError):
        table.add(0, "scale.state_norm@1", 1.0)
    with pytest.raises(AssertionError):
        table.add(0, "loss.test@1", 1.0, status="fine")
    assert "ok" in STATUSES


def test_a_mangled_table_is_refused():
    with pytest.raises(CorruptBundle):
        Measurements.from_csv("epoch,layer,quantity,value,status\nx,,loss.test@1,1,ok\n")
