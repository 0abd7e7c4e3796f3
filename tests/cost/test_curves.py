"""Curves and surfaces: through the points, monotone, sensible beyond them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cost.curves import blend, constant, curve, lower, surface, total

points = st.lists(
    st.tuples(st.integers(0, 1000).map(float), st.floats(0, 100)), min_size=1, max_size=12
)
samples = st.dictionaries(
    st.tuples(st.sampled_from([1.0, 2.0, 8.0]), st.integers(0, 500).map(float)),
    st.floats(0, 100),
    min_size=1,
    max_size=20,
)
places = st.floats(0, 3000)


def test_lines_go_through_monotone_points_and_on():
    made = curve([(1.0, 10.0), (2.0, 12.0), (4.0, 20.0), (8.0, 40.0)])
    assert [made.at(x) for x in (0, 1, 1.5, 2, 3, 8)] == [10, 10, 11, 12, 16, 40]
    # The slope of 4 to 8, the last doubling.
    assert made.at(10) == 50


def test_what_took_longer_for_less_is_levelled():
    made = curve([(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (3.0, 8.0)])
    assert [made.at(x) for x in (1, 2, 3)] == [5, 5, 6]


@given(points, places, places)
def test_curves_never_fall(entries, one, other):
    made = curve(entries)
    assert made.at(min(one, other)) <= made.at(max(one, other)) + 1e-9


@given(points, points, places, st.floats(0, 1))
def test_sums_blends_and_lower_bounds(first, second, x, share):
    one, other = curve(first), curve(second)
    assert total([one, other]).at(x) == pytest.approx(one.at(x) + other.at(x), abs=1e-6)
    between = one.at(x) + (other.at(x) - one.at(x)) * share
    assert blend(one, other, share).at(x) == pytest.approx(between, abs=1e-6)
    assert lower(one, other).at(x) <= min(one.at(x), other.at(x)) + 1e-9


@given(samples, st.tuples(places, places), st.tuples(st.integers(1, 12), st.integers(1, 12)))
def test_surfaces_never_fall(measured, lengths, counts):
    made = surface(measured)
    less = made.cut(min(counts)).at(min(lengths))
    assert less <= made.cut(max(counts)).at(max(lengths)) + 1e-9


@given(samples, places)
def test_scaling_a_surface_scales_its_cuts(measured, length):
    made = surface(measured)
    assert made.scaled(3.0).cut(5).at(length) == pytest.approx(3 * made.cut(5).at(length), abs=1e-6)


def test_a_constant_stays():
    assert constant(2.5).at(1e9) == constant(2.5).at(0) == 2.5
