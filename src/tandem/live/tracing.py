"""Whether a server has its calls traced, as its options say. OpenTelemetry is imported only where
it has."""

import importlib
from typing import Protocol

from tandem.api.tracing import CallTracer
from tandem.config.options import ServeOptions
from tandem.config.tracing import check_tracing


class Tracer(CallTracer, Protocol):
    """Has spans sent by a process of its own, until it is stopped."""

    def stop_sending(self) -> None:
        """Send what waits, for a moment at most."""
        ...


def tracer(options: ServeOptions, process: str) -> Tracer | None:
    """Of the process of this name; None where there are to be no traces. Raises
    `InvalidConfiguration` as `check_tracing`."""
    endpoint = check_tracing(options)
    if endpoint is None:
        return None
    leaf = importlib.import_module("tandem.live.otlp")
    setup = leaf.SenderSetup(endpoint, process, options.log_level, options.log_format)
    made: Tracer = leaf.OtlpTracer(setup, options.trace_sample_ratio)
    return made
