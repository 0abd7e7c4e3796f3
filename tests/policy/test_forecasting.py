"""Laws and exact values of the forecasts that need no library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.forecasting import FORECASTERS, ExponentialSmoothing, LastValue

HISTORIES = st.lists(st.floats(0, 1e6), max_size=40)


@pytest.mark.parametrize("name", FORECASTERS)
@given(history=HISTORIES, steps=st.integers(1, 20))
def test_as_many_values_as_asked_and_none_negative(name, history, steps):
    values = FORECASTERS[name]().forecast(history, steps)
    assert len(values) == steps
    assert min(values) >= 0
    if not history:
        assert values == [0.0] * steps


@pytest.mark.parametrize("name", FORECASTERS)
@given(value=st.floats(0, 1e6), count=st.integers(1, 30))
def test_a_constant_stays(name, value, count):
    assert FORECASTERS[name]().forecast([value] * count, 3) == [value] * 3


def test_exact_values():
    assert LastValue().forecast([1, 2, 7], 2) == [7.0, 7.0]
    # Simple smoothing: 0.5 * 10 + 0.5 * 0.
    assert ExponentialSmoothing(0.5, beta=0.0).forecast([0, 10], 2) == [5.0, 5.0]
    # Holt by hand: level 5, trend 2.5, then a straight line.
    assert ExponentialSmoothing(0.5, 0.5, 1.0).forecast([0, 10], 3) == [7.5, 10.0, 12.5]
    # The same, the trend halved at every step ahead.
    assert ExponentialSmoothing(0.5, 0.5, 0.5).forecast([0, 10], 2) == [6.25, 6.875]


def test_a_falling_line_stops_at_zero():
    assert ExponentialSmoothing(1.0, 1.0, 1.0).forecast([30, 20, 10], 3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"beta": 1.5}, {"damping": -0.1}])
def test_a_wrong_factor_is_named(wrong):
    with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
        ExponentialSmoothing(**wrong)
