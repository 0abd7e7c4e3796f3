"""Runs an application on a real socket, in a thread, for the length of a `with`."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import uvicorn
from starlette.types import ASGIApp

from tandem.api.config import ConnectionLimits
from tandem.api.connections.gate import ConnectionGate
from tandem.api.connections.protocol import bounded_connections

PATIENCE_S = 20.0


class _AnnouncedServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Looks whether to end more often than uvicorn, which does ten times a second."""
        while not await self.on_tick(0):
            await asyncio.sleep(0.005)


@contextmanager
def client_of(app: ASGIApp) -> Iterator[httpx2.Client]:
    """A client of the application on a real socket."""
    with (
        serving(app) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        yield client


@contextmanager
def serving(app: ASGIApp, limits: ConnectionLimits | None = None) -> Iterator[int]:
    """Yields the port."""
    connections = bounded_connections(ConnectionGate(limits or ConnectionLimits()))
    config = uvicorn.Config(
        app, port=0, log_level="critical", access_log=False, http=connections, ws="none"
    )
    server = _AnnouncedServer(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.listening.wait(PATIENCE_S)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
