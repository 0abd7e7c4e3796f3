"""The HTTP server around an application: how many clients may come, and how long its end may take.
Gateways load no model, so nothing in here may import torch."""

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from tandem.api.config import ConnectionLimits
from tandem.api.connections.gate import ConnectionGate
from tandem.api.connections.protocol import bounded_connections

# After a signal answers under way may go on for so long; then they end with an error, and the
# server waits a little longer for its clients to take that.
PATIENCE_S = 10
FAREWELL_S = 3


class HttpServer(uvicorn.Server):
    """Leaves the signals alone: who runs it decides what they mean (uvicorn itself would raise
    them again after an orderly end, and the process would look killed)."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server_over(app: ASGIApp, limits: ConnectionLimits, log_level: str) -> HttpServer:
    """For a process that serves this application. Not running yet; its end takes `PATIENCE_S` and
    `FAREWELL_S` at most. As many clients may come as the system lets this process have files."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    # What the process is made of lives as long as it does: the collector need not go through it,
    # with all threads waiting, whenever a large request has made many objects.
    gc.freeze()
    return bounded_server(app, limits, log_level)


def bounded_server(app: ASGIApp, limits: ConnectionLimits, log_level: str) -> HttpServer:
    """Any application behind connections with these limits. It speaks no WebSocket."""
    return HttpServer(
        uvicorn.Config(
            cast(Any, app),
            lifespan="off",
            log_level=log_level,
            access_log=log_level == "debug",
            timeout_graceful_shutdown=PATIENCE_S + FAREWELL_S,
            server_header=False,
            http=cast(Any, bounded_connections(ConnectionGate(limits))),
            ws="none",
        )
    )
