"""Recorded workloads: arrival, lengths and shared prefix blocks of every request of a trace file.

Which kind a file is follows from what stands in it, not from its name; gzipped or not. Rows come
in the order of their arrival, the first at 0.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from tandem.bench.laws import open_text
from tandem.bench.traces.rates import RateDraw, draw_windows, parse_rate
from tandem.bench.traces.servegen import draw_clients, is_archive, read_clients
from tandem.facts.errors import InvalidConfiguration
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


_AZURE = ["timestamp", "contexttokens", "generatedtokens"]
_RATES = ["workload", "window_start_s", "rate_rps"]
_LENGTHS = ["num_prefill_tokens", "num_decode_tokens"]

Lines = list[tuple[int, str]]
Parsed = TypeVar("Parsed")


def read_trace(
    path: Path, draw: RateDraw | None = None, *, flag: str = "--trace"
) -> list[TraceRow]:
    """All rows. A file of rates holds no requests: `draw` says which are drawn from it. Raises
    `InvalidConfiguration` naming the flag that gave the file, and the line that is wrong."""
    draw, name = draw or RateDraw(), f"{flag} {path}"
    if is_archive(path):
        rows = draw_clients(read_clients(path, draw), draw)
    else:
        with open_text(path, flag) as file:
            lines = [(number, line) for number, line in enumerate(file, start=1) if line.strip()]
        rows = _parse(name, lines, draw)
    if not rows:
        raise InvalidConfiguration(f"{name} holds no rows")
    rows.sort(key=lambda row: row.arrival_s)
    start_s = rows[0].arrival_s
    return [
        replace(
            row,
            arrival_s=row.arrival_s - start_s,
            prompt_tokens=max(1, row.prompt_tokens),
            output_tokens=max(1, row.output_tokens),
        )
        for row in rows
    ]


def _parse(name: str, lines: Lines, draw: RateDraw) -> list[TraceRow]:
    first = lines[0][1] if lines else "{"
    if first.lstrip().startswith("{"):
        if '"runs"' in first:
            return with_pauses(_each(name, lines, parse_agent_call))
        mooncake = '"hash_ids"' in first or '"input_length"' in first
        return _each(name, lines, parse_mooncake if mooncake else parse_own)
    columns = [column.strip().lower() for column in first.split(",")]
    if columns[:3] == _AZURE:
        return _each(name, lines[1:], parse_azure)
    if columns[:3] == _RATES:
        return draw_windows(_each(name, lines[1:], parse_rate), draw)
    if columns[:2] == _LENGTHS:
        raise InvalidConfiguration(
            f"{name} holds lengths without arrivals: give it as --lengths-file, with a rate"
        )
    raise InvalidConfiguration(
        f"{name}: neither JSON lines (Mooncake's, of agents, or own ones: arrival_s, "
        "prompt_tokens, output_tokens) nor CSV (TIMESTAMP,ContextTokens,GeneratedTokens or "
        "workload,window_start_s,rate_rps) nor a tar.xz of ServeGen clients"
    )


def _each(name: str, lines: Lines, parse: Callable[[str], Parsed]) -> list[Parsed]:
    parsed = []
    for number, line in lines:
        try:
            parsed.append(parse(line))
        except (ValueError, IndexError, msgspec.MsgspecError) as error:
            raise InvalidConfiguration(f"{name}, line {number}: {error}") from error
    return parsed
