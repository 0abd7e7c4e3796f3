"""The HTTP server around an application: its listening socket and URL, how many clients may come,
and how long its end may take. Gateways load no model, so nothing in here may import torch."""

import asyncio
import errno
import gc
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import uvicorn
from starlette.types import ASGIApp

from tandem.api.config import ConnectionLimits
from tandem.api.connections.gate import ConnectionGate
from tandem.api.connections.protocol import bounded_connections
from tandem.facts.errors import InvalidConfiguration

# After a signal answers under way may go on for so long; then they end with an error, and the
# server waits a little longer for its clients to take that.
PATIENCE_S = 10
SHUTDOWN_S = 3


class Companion(Protocol):
    """A server of another protocol over the same application, in the same event loop."""

    async def start(self) -> None:
        """Raises `InvalidConfiguration` where it cannot listen."""
        ...

    async def stop(self, patience_s: float) -> None:
        """Takes no new calls; those under way may end within so many seconds."""
        ...


class HttpServer(uvicorn.Server):
    """Starts and ends together with its `companion`, if it has one. Leaves the signals alone: who
    runs it decides what they mean (uvicorn itself would raise them again after an orderly end, and
    the process would look killed)."""

    companion: Companion | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.companion is not None:
            await self.companion.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.companion is None:
            await super().shutdown(sockets)
            return
        patience_s = PATIENCE_S + SHUTDOWN_S
        await asyncio.gather(super().shutdown(sockets), self.companion.stop(patience_s))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end_on_signals(
        self,
        end_answers: Callable[[], None],
        signalled: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """From now on the first signal lets answers in progress end for some seconds, then ends
        them with an error that their clients get; a second one does so at once. `signalled` is told
        of each, and whether there was one before. Call it on the event loop."""
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            signalled(self.should_exit)
            if self.should_exit:
                end_answers()
            self.should_exit = True
            loop.call_later(PATIENCE_S, end_answers)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, shut_down)


def http_server_over(
    app: ASGIApp,
    limits: ConnectionLimits,
    log_level: str,
    *,
    logs_access: bool = False,
    companion: Companion | None = None,
) -> HttpServer:
    """For a process that serves this application. Not running yet; its end takes `PATIENCE_S` and
    `SHUTDOWN_S` at most. As many clients may come as the system lets this process have files. An
    application that `logs_access` has no other access log, which `debug` brings otherwise. A
    `companion` starts and ends with it."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    # What the process is made of lives as long as it does: the collector need not go through it,
    # with all threads waiting, whenever a large request has made many objects.
    gc.freeze()
    server = bounded_server(app, limits, log_level, logs_access=logs_access)
    server.companion = companion
    return server


def bounded_server(
    app: ASGIApp, limits: ConnectionLimits, log_level: str, *, logs_access: bool = False
) -> HttpServer:
    """Any application behind connections with these limits, without WebSockets."""
    return HttpServer(
        uvicorn.Config(
            cast(Any, app),
            lifespan="off",
            # Its lines go where all others of the process go.
            log_config=None,
            log_level=log_level,
            access_log=log_level == "debug" and not logs_access,
            timeout_graceful_shutdown=PATIENCE_S + SHUTDOWN_S,
            server_header=False,
            http=cast(Any, bounded_connections(ConnectionGate(limits))),
            ws="none",
        )
    )


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
    except (OSError, UnicodeError) as error:
        listener.close()
        raise _not_listening(f"cannot listen on {host} port {port}", error) from error
    return listener


class NoSuchHost(InvalidConfiguration):
    """It is neither an address nor a name of this machine."""


def _not_listening(what: str, error: OSError | UnicodeError) -> InvalidConfiguration:
    code = getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or "that is no name"
    if isinstance(error, UnicodeError | socket.gaierror) or code == errno.EADDRNOTAVAIL:
        remedy = "--host must be an address or a name of this machine"
        return NoSuchHost(f"{what}: {reason}; {remedy}")
    reserved = code == errno.EACCES
    remedy = "choose a --port from 1024 on" if reserved else "choose another --port"
    return InvalidConfiguration(f"{what}: {reason}; {remedy}")


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine finds it."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
