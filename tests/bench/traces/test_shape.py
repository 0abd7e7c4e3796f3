"""Traces played otherwise than recorded keep their requests and say what was done."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.bench.traces.reader import read_trace
from tandem.bench.traces.shape import (
    merge,
    merge_note,
    quantum_s,
    speed,
    spread,
    spread_note,
    window,
    window_note,
)
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow

DATA = Path(__file__).parents[1] / "data"
MOONCAKE = read_trace(DATA / "mooncake_conversation_300.jsonl.gz")
AZURE = read_trace(DATA / "azure_conv_200.csv")


def test_a_coarse_clock_is_found_and_a_fine_one_left_alone():
    assert quantum_s(MOONCAKE) == 3.0
    assert spread_note(MOONCAKE) == (
        "arrivals spread uniformly within the 3,000 ms ticks of their clock"
    )
    assert quantum_s(AZURE) == 0.0
    assert spread(AZURE, 1) == AZURE
    assert "as recorded" in spread_note(AZURE)
    assert quantum_s([TraceRow(1.0, 1, 1)] * 9) == 0.0


def test_spread_moves_every_arrival_within_its_tick():
    moved = spread(MOONCAKE, seed=3)
    assert moved == spread(MOONCAKE, seed=3) != spread(MOONCAKE, seed=4)
    assert [row.arrival_s for row in moved] == sorted(row.arrival_s for row in moved)
    assert len({row.arrival_s for row in moved}) == 300
    # A few requests were recorded twice; the others are named by their blocks.
    counts = Counter(row.block_ids for row in MOONCAKE)
    was = {row.block_ids: row.arrival_s for row in MOONCAKE if counts[row.block_ids] == 1}
    shifts = [row.arrival_s - was[row.block_ids] for row in moved if row.block_ids in was]
    assert len(shifts) > 250
    assert all(0 <= shift < 3.0 for shift in shifts)
    assert sum(shifts) / len(shifts) == pytest.approx(1.5, abs=0.15)


def test_a_session_is_spread_as_one():
    rows = [TraceRow(3.0 * (n // 4), 9, 9, session="s" if n % 4 < 2 else "") for n in range(40)]
    moved = [row.arrival_s for row in spread(rows) if row.session]
    assert [at - moved[0] for at in moved] == pytest.approx([3.0 * (n // 2) for n in range(20)])


def test_speed_divides_arrivals_alone():
    rows = [TraceRow(4.0, 9, 9, session="s", think_s=2.0)]
    assert speed(rows, 2.0) == [TraceRow(2.0, 9, 9, session="s", think_s=2.0)]
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidConfiguration, match="speed must be greater than 0"):
            speed(rows, factor)


def test_a_window_is_the_front():
    assert window(MOONCAKE, first=7) == MOONCAKE[:7]
    kept = window(MOONCAKE, seconds=9.0)
    assert kept == [row for row in MOONCAKE if row.arrival_s < 9.0]
    assert 0 < len(kept) < len(window(MOONCAKE)) == 300
    assert window_note(window(MOONCAKE, first=7), MOONCAKE).startswith("the first 7 of 300")
    with pytest.raises(InvalidConfiguration, match="first must be at least 1"):
        window(MOONCAKE, first=0)
    with pytest.raises(InvalidConfiguration, match="seconds must be greater than 0"):
        window(MOONCAKE, seconds=0.0)


TRACES = st.lists(
    st.lists(
        st.builds(
            TraceRow,
            st.integers(0, 5).map(float),
            st.just(9),
            st.just(9),
            st.lists(st.integers(0, 6), max_size=4).map(tuple),
            session=st.sampled_from(["", "s"]),
        ),
        max_size=8,
    ).map(lambda rows: sorted(rows, key=lambda row: row.arrival_s)),
    min_size=1,
    max_size=4,
)


@given(TRACES)
def test_merged_traces_share_within_themselves_only(traces):
    merged = merge(traces)
    assert [row.arrival_s for row in merged] == sorted(row.arrival_s for row in merged)
    counts = Counter(block for row in merged for block in row.block_ids)
    apart = [Counter(block for row in trace for block in row.block_ids) for trace in traces]
    assert sorted(counts.values()) == sorted(n for part in apart for n in part.values())
    sessions = {row.session for row in merged if row.session}
    assert len(sessions) == sum(any(row.session for row in trace) for trace in traces)


def test_merged_traces_keep_their_order_at_equal_arrivals():
    merged = merge([[TraceRow(0.0, 1, 1), TraceRow(2.0, 2, 1)], [TraceRow(0.0, 3, 1)]])
    assert [row.prompt_tokens for row in merged] == [1, 3, 2]
    assert (
        merge_note([MOONCAKE, AZURE]) == "2 traces at once (300 + 200 requests), sharing no blocks"
    )
