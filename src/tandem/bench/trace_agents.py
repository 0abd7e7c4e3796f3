"""Sessions of agents (LMCache's agent traces): calls that follow each other and share most of
their prompt. The file holds characters; four of them count as a token."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tandem.facts.trace import TraceRow

_TOKEN_CHARS = 4
_BLOCK_TOKENS = 16


class _AgentCall(msgspec.Struct):
    """`runs` are (first id, count) of consecutive block ids; a block is 64 characters."""

    workload: str
    session: str
    timestamp: float
    input_chars: int
    output_chars: int
    runs: tuple[tuple[int, int], ...]


_agent_call = msgspec.json.Decoder(_AgentCall)


def parse_agent_call(line: str) -> TraceRow:
    """Timestamps are milliseconds from the start of each workload; all workloads start together and
    are told apart as tenants. Raises `msgspec.MsgspecError`."""
    call = _agent_call.decode(line)
    return TraceRow(
        call.timestamp / 1e3,
        call.input_chars // _TOKEN_CHARS,
        call.output_chars // _TOKEN_CHARS,
        tuple(block for first, count in call.runs for block in range(first, first + count)),
        _BLOCK_TOKENS,
        session=f"{call.workload}/{call.session}",
        tenant=call.workload,
    )


def with_pauses(rows: Sequence[TraceRow]) -> list[TraceRow]:
    """Each call's `think_s` is the time since the call before it in its session. That is the tool's
    work and the recorded answer together: the file does not tell them apart, so a replay that waits
    for its own answers runs a little slower than the recording."""
    last_s: dict[str, float] = {}
    paused = []
    for row in sorted(rows, key=lambda row: row.arrival_s):
        paused.append(replace(row, think_s=row.arrival_s - last_s.get(row.session, row.arrival_s)))
        last_s[row.session] = row.arrival_s
    return paused
