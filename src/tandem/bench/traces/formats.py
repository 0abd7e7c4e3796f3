"""One request from one line of a trace: Mooncake's, Azure's, that of LMCache's agents, our own."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from tandem.facts.trace import TraceRow

# The agents' file holds characters: four of them count as a token.
_TOKEN_CHARS = 4
_BLOCK_TOKENS = 16


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class _AgentCall(msgspec.Struct):
    """A call of an agent's session (LMCache's agent traces): calls of a session follow each other
    and share most of their prompt. `runs` are (first id, count) of consecutive block ids; a block
    is 64 characters."""

    workload: str
    session: str
    timestamp: float
    input_chars: int
    output_chars: int
    runs: tuple[tuple[int, int], ...]


_mooncake = msgspec.json.Decoder(_MooncakeRow)
_own = msgspec.json.Decoder(TraceRow)
_agent_call = msgspec.json.Decoder(_AgentCall)


def parse_mooncake(line: str) -> TraceRow:
    """Raises `msgspec.MsgspecError`."""
    row = _mooncake.decode(line)
    # Mooncake counts milliseconds.
    return TraceRow(row.timestamp / 1e3, row.input_length, row.output_length, row.hash_ids)


def parse_own(line: str) -> TraceRow:
    """The fields are those of `TraceRow`; others are passed over, so that a file written by
    `--records` can be read. Raises `ValueError` or `msgspec.MsgspecError`."""
    row = _own.decode(line)
    if row.block_tokens < 1 or row.answers < 1 or row.think_s < 0:
        raise ValueError("block_tokens and answers must be at least 1, think_s at least 0")
    return row


def parse_azure(line: str) -> TraceRow:
    """Raises `ValueError`."""
    instant, prompt_tokens, output_tokens = next(csv.reader([line]))[:3]
    arrival_s = datetime.fromisoformat(instant).replace(tzinfo=UTC).timestamp()
    return TraceRow(arrival_s, int(prompt_tokens), int(output_tokens))


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
