"""Percentiles by their definition, in exact fractions, and beside numpy's."""

from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.report.statistics import Distribution, distribution, weighted_distribution

SHARES = {
    "p50_ns": Fraction(1, 2),
    "p90_ns": Fraction(9, 10),
    "p99_ns": Fraction(99, 100),
    "p999_ns": Fraction(999, 1000),
}


def percentile(values: list[int], share: Fraction) -> float:
    """The value at (n - 1) * share of the sorted ones, on the line between its neighbours."""
    ordered, place = sorted(values), share * (len(values) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return float(low + (place - floor(place)) * (high - low))


def known(found: Distribution | None) -> Distribution:
    assert found is not None
    return found


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200))
def test_percentiles_lie_on_the_line_between_their_neighbours(values):
    found = known(distribution(values))
    for name, share in SHARES.items():
        assert getattr(found, name) == percentile(values, share)
    assert (found.count, found.max_ns) == (len(values), max(values))
    assert found.mean_ns == sum(values) / len(values)


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=50))
def test_percentiles_are_those_of_numpy_and_so_of_vllm(values):
    found = known(distribution(values))
    for name, share in SHARES.items():
        assert getattr(found, name) == pytest.approx(np.percentile(values, float(100 * share)))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=60))
def test_counted_values_are_as_if_written_out(counted):
    written = [value for value, count in counted for _ in range(count)]
    assert weighted_distribution(counted) == distribution(written)


def test_two_values_have_a_median_between_them():
    found = known(distribution([1, 2]))
    assert (found.p50_ns, found.p99_ns, found.max_ns) == (1.5, 1.99, 2)


def test_nothing_has_no_distribution():
    assert distribution([]) is None
    assert weighted_distribution([(5, 0)]) is None
