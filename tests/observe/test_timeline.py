"""Durations are counted well enough to be drawn, bins of time come and go, and those of several
gateways are added up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.observe.timeline import Durations, OpenBin, Timeline, added_up

SECOND = 1_000_000_000
SHARES = (0.5, 0.9, 0.99)


@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=200))
def test_quantiles_are_right_within_three_percent(measured):
    durations = Durations()
    for each in measured:
        durations.add(each)
    assert durations.count == len(measured)
    for share, found_s in zip(SHARES, durations.quantiles_s(*SHARES), strict=True):
        exact_ns = np.quantile(measured, share, method="inverted_cdf")
        assert found_s * 1e9 == pytest.approx(exact_ns, rel=1 / 32, abs=0.5)


def test_nothing_measured_has_no_percentiles():
    assert Durations().percentiles() is None


def test_bins_that_are_too_old_are_forgotten():
    timeline = Timeline(SECOND, 3)
    for second in (10, 11, 12, 14):
        timeline.at(second * SECOND).output_tokens += second
    assert [each.number for each in timeline.since(0, 14 * SECOND)] == [12, 14]
    # Whoever has the older ones asks for the newest alone.
    assert [each.output_tokens for each in timeline.since(14, 14 * SECOND)] == [14]
    # Time passes where nothing happens, too.
    assert list(timeline.since(0, 60 * SECOND)) == []


def test_an_event_that_is_told_late_counts_in_the_newest_bin():
    timeline = Timeline(SECOND)
    timeline.at(5 * SECOND).finish(7, kept=True)
    timeline.at(5 * SECOND - 1).finish(None, kept=False)
    (only,) = timeline.since(0, 5 * SECOND)
    assert (only.finished, only.kept, only.tpot.count) == (2, 1, 1)


requests = st.tuples(st.integers(0, 3), st.integers(0, 1 << 62), st.booleans())


@given(st.lists(requests, min_size=1, max_size=100))
def test_what_several_gateways_counted_is_what_one_would_have_counted(measured):
    whole, parts = OpenBin(7), [OpenBin(7) for _ in range(4)]
    for gateway, duration_ns, kept in measured:
        for each in (whole, parts[gateway]):
            each.begin(duration_ns, 10, 4)
            each.finish(duration_ns // 3, kept=kept)
            each.itl.add(duration_ns // 5, 2)
            each.output_tokens += 3
            if not kept:
                each.reject("queue")
    own, *others = parts
    assert list(added_up([own], [each.counts() for each in others])) == [whole.shown()]


def test_bins_of_several_gateways_are_in_the_order_of_time():
    bins = [OpenBin(number) for number in (1, 3, 2, 3, 4)]
    for failed, each in enumerate(bins, 1):
        each.failed = failed
    own, elsewhere = bins[:2], [each.counts() for each in bins[2:]]
    found = [(each.number, each.failed) for each in added_up(own, elsewhere)]
    assert found == [(1, 1), (2, 3), (3, 2 + 4), (4, 5)]
    # What was counted here goes on being counted here alone.
    assert bins[1].failed == 2
