"""Recorded workloads: arrival, lengths and shared prefix blocks of every request of a trace file.

Which kind a file is follows from what stands in it, not from its name; gzipped or not. Rows come
in the order of their arrival, the first at 0.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from tandem.bench.laws import open_text
from tandem.bench.traces.formats import (
    parse_agent_call,
    parse_azure,
    parse_mooncake,
    parse_own,
    with_pauses,
)
from tandem.bench.traces.rates import RateDraw, draw_windows, parse_rate
from tandem.bench.traces.servegen import draw_clients, is_archive, read_clients
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow

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
