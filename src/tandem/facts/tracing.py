"""Spans of a distributed trace as plain records, and the port of whatever sends them away. Knows
nothing of OpenTelemetry but its words."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

Attribute = str | bool | int | float | Sequence[str | float]


class TraceContext(Struct, frozen=True):
    """The span of a call in its trace, as W3C's Trace Context has it: ids are hexadecimal, of 16
    and 8 bytes. `parent_span_id` is the client's span (empty: the trace begins here), `trace_state`
    what vendors added to it. Spans are sent only where it is `sampled`. Instants of this process
    are those of Unix time less `unix_offset_ns`."""

    trace_id: str
    span_id: str
    sampled: bool
    parent_span_id: str = ""
    trace_state: str = ""
    unix_offset_ns: int = 0


class SpanEvent(Struct, frozen=True):
    """Something that happened at one instant of a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, Attribute] = {}


class Span(Struct, frozen=True):
    """A piece of work with the pieces that it is made of. Instants are of this process's monotonic
    clock. `error` says why it failed; empty where it did not."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = {}
    events: Sequence[SpanEvent] = ()
    children: Sequence["Span"] = ()
    error: str = ""


class SpanSink(Protocol):
    """Where spans go. Nothing here waits or fails."""

    def record_below(self, span: Span, parent: TraceContext) -> None:
        """A span with all below it, as a part of that call."""
        ...

    def record_history(self, history: bytes, model: str, parent: TraceContext) -> None:
        """What became of a request of that call, to this model, as its gateway has packed it. Spans
        are made of it where they are sent."""
        ...
