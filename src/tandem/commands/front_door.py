"""The HTTP server around whatever generates: a listening socket, the application, and how long its
end may take. Gateways load no model, so nothing in here may import torch."""

import gc
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, ConnectionLimits
from tandem.api.connection import ConnectionGate
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.serving import Generator
from tandem.text.model import TextModel

# After a signal answers under way may go on for so long; then they end with an error, and the
# server waits a little longer for its clients to take that.
PATIENCE_S = 10
FAREWELL_S = 3


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; a `shared` port may have several, between which the kernel spreads the
    connections. Raises `InvalidConfiguration` when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise InvalidConfiguration(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another port"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine finds it."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """Leaves the signals alone: who runs it decides what they mean (uvicorn itself would raise
    them again after an orderly end, and the process would look killed)."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server_over(
    generator: Generator, text: TextModel, api: ApiConfig, log_level: str
) -> HttpServer:
    """Not running yet; its end takes `PATIENCE_S` and `FAREWELL_S` at most. As many clients may
    come as the system lets this process have files."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    # What the process is made of lives as long as it does: the collector need not go through it,
    # with all threads waiting, whenever a large request has made many objects.
    gc.freeze()
    return bounded_server(build_app(generator, text, api), api.connections, log_level)


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
            http=cast(Any, ConnectionGate(limits).protocol()),
            ws="none",
        )
    )
