"""One request from one line of a trace: Mooncake's JSON, Azure's CSV, and our own JSON."""

import csv
from datetime import UTC, datetime

import msgspec

from tandem.facts.trace import TraceRow


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


_mooncake = msgspec.json.Decoder(_MooncakeRow)
_own = msgspec.json.Decoder(TraceRow)


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
