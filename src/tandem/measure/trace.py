"""Recorded workloads: arrival, lengths and shared prefix blocks of every request of a trace file.

Reads Mooncake's JSON lines, Azure's CSV and our own JSON lines, gzipped or not, told apart by what
stands in them. Rows keep the order of their arrival.
"""

import csv
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tandem.facts.errors import InvalidConfiguration
from tandem.measure.lengths import open_text

MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request. Rows that start with the same `block_ids` share that much of their prompt."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class _OwnRow(msgspec.Struct):
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS


_mooncake = msgspec.json.Decoder(_MooncakeRow)
_own = msgspec.json.Decoder(_OwnRow)


def read_trace(path: Path) -> list[TraceRow]:
    """All rows, from arrival 0 on. Raises `InvalidConfiguration` naming the line that is wrong."""
    with open_text(path, "--trace") as file:
        lines = [(number, line) for number, line in enumerate(file, start=1) if line.strip()]
    parse = _parse_json_line
    if lines and not lines[0][1].lstrip().startswith("{"):
        _check_azure_header(path, lines.pop(0)[1])
        parse = _parse_azure
    if not lines:
        raise InvalidConfiguration(f"--trace {path} holds no rows")
    rows = []
    for number, line in lines:
        try:
            rows.append(parse(line))
        except (ValueError, IndexError, msgspec.MsgspecError) as error:
            raise InvalidConfiguration(f"--trace {path}, line {number}: {error}") from error
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


def _parse_json_line(line: str) -> TraceRow:
    if '"hash_ids"' in line or '"input_length"' in line:
        row = _mooncake.decode(line)
        # Mooncake counts milliseconds.
        return TraceRow(row.timestamp / 1e3, row.input_length, row.output_length, row.hash_ids)
    own = _own.decode(line)
    return TraceRow(
        own.arrival_s, own.prompt_tokens, own.output_tokens, own.block_ids, own.block_tokens
    )


def _check_azure_header(path: Path, header: str) -> None:
    columns = [name.strip().lower() for name in header.split(",")]
    if columns[:3] != ["timestamp", "contexttokens", "generatedtokens"]:
        raise InvalidConfiguration(
            f"--trace {path}: neither JSON lines (timestamp, input_length, output_length, hash_ids "
            "or arrival_s, prompt_tokens, output_tokens) nor CSV with the columns "
            "TIMESTAMP,ContextTokens,GeneratedTokens"
        )


def _parse_azure(line: str) -> TraceRow:
    instant, prompt_tokens, output_tokens = next(csv.reader([line]))[:3]
    arrival_s = datetime.fromisoformat(instant).replace(tzinfo=UTC).timestamp()
    return TraceRow(arrival_s, int(prompt_tokens), int(output_tokens))
