"""Durations are counted well enough to be drawn, and bins of time come and go."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.observe.timeline import Durations, Timeline

SECOND = 1_000_000_000
SHARES = (0.5, 0.9, 0.99)


@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=200))
def test_quantiles_are_right_within_three_percent(measured):
    durations = Durations()
    for each in measured:
        durations.add(each)
    assert durations.count == len(measured)
    for share in SHARES:
        exact_ns = np.quantile(measured, share, method="inverted_cdf")
        assert durations.quantile_s(share) * 1e9 == pytest.approx(exact_ns, rel=1 / 32, abs=0.5)


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
