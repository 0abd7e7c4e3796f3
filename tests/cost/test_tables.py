"""Step times from tables, and the curves between measured points: monotone, sensible beyond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cost.tables import TableStepTime, blend, constant, curve, lower, surface, total
from tandem.cost.worker import StepShape
from tests.cost.shapes import assert_decodes_agree, assert_monotone, more_work

# Noisy on purpose: some larger steps were "measured" to take less time.
NOISY = TableStepTime(
    stages=2,
    tokens=curve([(1.0, 5.0), (64.0, 4.0), (512.0, 9.0), (2048.0, 30.0)]),
    rows=curve([(1.0, 1.0), (256.0, 2.0)]),
    chunks=surface(
        {
            (c, s): 1e-4 * c + 1e-7 * c * s + (c * 7 + s) % 3
            for c in (16.0, 128.0, 1024.0)
            for s in (0.0, 100.0, 4096.0)
        }
    ),
    decodes=surface(
        {
            (n, n * c): 1e-6 * n * c + (n + c) % 5
            for n in (1.0, 8.0, 64.0)
            for c in (16.0, 1024.0, 8192.0)
        }
    ),
    company=surface({(n, n * c): n * c % 7 for n in (1.0, 8.0, 64.0) for c in (16.0, 512.0)}),
    tile_s=1e-6,
)
PLAIN = TableStepTime(
    stages=1,
    tokens=curve([(0.0, 1.0), (1000.0, 2.0)]),
    rows=curve([(0.0, 0.25), (100.0, 0.5)]),
    chunks=surface({(c, s): c * (2 + s) for c in (10.0, 20.0) for s in (0.0, 100.0)}),
    decodes=surface({(n, n * c): n * c / 8 for n in (1.0, 2.0) for c in (0.0, 64.0)}),
    company=surface({(n, n * c): n * c / 4 for n in (1.0, 2.0) for c in (0.0, 64.0)}),
    tile_s=0.5,
)


def test_a_step_is_the_sum_of_its_parts():
    # tokens 1 + 12/1000, two rows, a chunk of 10 after 50, two decodes, what company costs them.
    step = StepShape(((50, 10),), 2, 32, 2)
    decodes = 32 / 8 + 32 / 4 + 2 * 10 * 0.5
    assert PLAIN.seconds(step) == pytest.approx(1.012 + 0.255 + 10 * 52 + decodes)
    alone = StepShape((), 2, 32, 2)
    assert PLAIN.seconds(alone) == pytest.approx(1.002 + 0.255 + 32 / 8)


def test_tiles_are_laid_out_up_to_the_longest_chunk():
    one, two = (PLAIN.seconds(StepShape(chunks, 2, 32)) for chunks in (((0, 20),), ((0, 20),) * 2))
    assert two - one == pytest.approx(20 * 2 + 0.02)


def test_a_chunk_longer_than_measured_is_several():
    parts = 20 * (2 + 5) + 20 * (2 + 25) + 10 * (2 + 45)
    assert PLAIN.seconds(StepShape(((5, 50),))) == pytest.approx(1.05 + parts)


def test_nothing_takes_no_time():
    assert PLAIN.seconds(StepShape()) == PLAIN.decode_seconds(0, 0) == 0.0


@given(more_work())
def test_more_work_never_takes_less_time(pair):
    assert_monotone(NOISY, pair)


@given(st.integers(0, 300), st.integers(0, 3_000_000))
def test_quick_decodes_are_the_same_decodes(sequences, context):
    assert_decodes_agree(NOISY, sequences, context if sequences else 0)


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
