"""Reads what a user gives as a trace: a file of recorded requests, or a gateway's journal."""

from pathlib import Path

from tandem.bench.traces.rates import RateDraw
from tandem.bench.traces.reader import read_trace
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow
from tandem.observe.journal.files import is_journal, open_journal
from tandem.observe.journal.history import History, trace_rows
from tandem.observe.journal.replay import turns_of


def read_workload(
    path: Path, draw: RateDraw | None = None, *, flag: str = "--trace"
) -> list[TraceRow]:
    """All rows by arrival, the first at 0. `draw` says which requests are drawn from a file of
    rates. Raises `InvalidConfiguration` naming the flag that gave the file."""
    if not is_journal(path):
        return read_trace(path, draw, flag=flag)
    run = open_journal(path)
    rows = trace_rows(History(run.head, turns_of(run.records())))
    if not rows:
        raise InvalidConfiguration(f"{flag} {path}: no request was recorded")
    return rows
