"""A trace played otherwise than recorded: spread, faster, in part, or several at once.

Every change has a note beside it, one line for a report on what was done.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow

# With fewer requests an instant, equal arrivals are chance and not the tick of a coarse clock.
_ROWS_A_TICK = 2.0


def quantum_s(rows: Sequence[TraceRow]) -> float:
    """The tick of the clock that recorded the arrivals: the median time between different ones, to
    the millisecond. 0 where requests mostly arrive at instants of their own."""
    instants_s = sorted({row.arrival_s for row in rows})
    if len(instants_s) < 2 or len(rows) < _ROWS_A_TICK * len(instants_s):
        return 0.0
    gaps_s = [later - earlier for earlier, later in pairwise(instants_s)]
    return round(median(gaps_s), 3)


def spread(rows: Sequence[TraceRow], seed: int = 0) -> list[TraceRow]:
    """Every arrival moved to a uniform place within its `quantum_s`; nothing changes without one.
    The rows of a session move together, so they stay in order and as far apart as they were."""
    quantum = quantum_s(rows)
    if not quantum:
        return list(rows)
    shares = np.random.default_rng(seed).random(len(rows)).tolist()
    session_shares: dict[str, float] = {}
    moved = []
    for row, share in zip(rows, shares, strict=True):
        if row.session:
            share = session_shares.setdefault(row.session, share)
        moved.append(replace(row, arrival_s=row.arrival_s + quantum * share))
    return _by_arrival(moved)


def spread_note(rows: Sequence[TraceRow]) -> str:
    """What `spread` does to these rows."""
    quantum = quantum_s(rows)
    if not quantum:
        return "arrivals as recorded (their clock is fine enough)"
    return f"arrivals spread uniformly within the {quantum * 1e3:,.0f} ms ticks of their clock"


def announce_pauses(rows: Sequence[TraceRow], factor: float) -> list[TraceRow]:
    """Every row of a session announces when the session's next one comes after its answer, `factor`
    times too late."""
    if not 0 < factor < float("inf"):
        raise InvalidConfiguration(f"announce_pauses must be greater than 0, got {factor:g}")
    announced: list[TraceRow] = []
    next_think_s: dict[str, float] = {}
    for row in reversed(rows):
        pause_s = next_think_s.get(row.session)
        if row.session:
            next_think_s[row.session] = row.think_s
        announced.append(replace(row, pause_s=None if pause_s is None else factor * pause_s))
    return announced[::-1]


def announce_pauses_note(factor: float) -> str:
    """What `announce_pauses` does."""
    return f"sessions announce their pauses, {factor:g} times as long as they are"


def speed(rows: Sequence[TraceRow], factor: float) -> list[TraceRow]:
    """Arrivals `factor` times as fast. Think times stay: people and tools are no faster."""
    if not 0 < factor < float("inf"):
        raise InvalidConfiguration(f"speed must be greater than 0, got {factor:g}")
    return [replace(row, arrival_s=row.arrival_s / factor) for row in rows]


def window(
    rows: Sequence[TraceRow], *, first: int | None = None, seconds: float | None = None
) -> list[TraceRow]:
    """The first so many rows, and of those the ones that arrive before `seconds`."""
    if first is not None and first < 1:
        raise InvalidConfiguration(f"first must be at least 1 request, got {first}")
    if seconds is not None and not seconds > 0:
        raise InvalidConfiguration(f"seconds must be greater than 0, got {seconds:g}")
    return [row for row in rows[:first] if seconds is None or row.arrival_s < seconds]


def window_note(kept: Sequence[TraceRow], rows: Sequence[TraceRow]) -> str:
    """What is left of `rows`."""
    last_s = max((row.arrival_s for row in kept), default=0.0)
    return f"the first {len(kept):,} of {len(rows):,} requests, {last_s:,.0f} s"


def merge(traces: Sequence[Sequence[TraceRow]]) -> list[TraceRow]:
    """Several traces at once, from the same start; of equal arrivals the earlier trace is first.
    Blocks and sessions of different traces stay apart; tenants keep their names."""
    if len(traces) == 1:
        return list(traces[0])
    rows = []
    for number, trace in enumerate(traces):
        for row in trace:
            ids = tuple(block_id * len(traces) + number for block_id in row.block_ids)
            session = f"{number}/{row.session}" if row.session else ""
            rows.append(replace(row, block_ids=ids, session=session))
    return _by_arrival(rows)


def merge_note(traces: Sequence[Sequence[TraceRow]]) -> str:
    counts = " + ".join(f"{len(trace):,}" for trace in traces)
    return f"{len(traces)} traces at once ({counts} requests), sharing no blocks"


def _by_arrival(rows: list[TraceRow]) -> list[TraceRow]:
    return sorted(rows, key=lambda row: row.arrival_s)
