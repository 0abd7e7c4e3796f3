"""Servers whose metrics Prometheus reads: one worker behind its API, a gateway before workers of
both phases over real sockets, and one that tells every family there is."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx2
import uvicorn
from anyio.from_thread import start_blocking_portal
from prometheus_client import Metric
from starlette.types import ASGIApp

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, ResponseCacheConfig
from tandem.facts.fleet import Role
from tandem.text.model import TextModel
from tests.api.every_endpoint import RoomyGenerator, build_whole_app, text_of
from tests.live.toy_cluster import (
    GatedLedger,
    ToyWorker,
    make_gateway,
    make_worker,
    serving,
    until,
    working,
)
from tests.observe.every_family import TENANT, EveryFamily

KEYS = ApiConfig(api_keys=("plain-key",), tenants={"acme-key": TENANT})
BODY = {"prompt": [1, 2, 3, 4, 5, 6], "max_tokens": 5, "ignore_eos": True}


class TellsEverything(RoomyGenerator):
    """A scripted generator with metrics of every shape."""

    def __init__(self, text: TextModel) -> None:
        super().__init__(text)
        self._every = EveryFamily()

    def metric_families(self) -> Iterator[Metric]:
        return self._every.metric_families()


class NoLog:
    """An access log that keeps nothing."""

    lost_lines = 0

    def write(self, line: bytes) -> None:
        pass


def app_of_everything(text: TextModel, folder: Path) -> ASGIApp:
    config = ApiConfig(response_cache=ResponseCacheConfig(1 << 20))
    return build_whole_app(text, folder, config, TellsEverything(text), NoLog())


@contextmanager
def scraped_servers(folder: Path) -> Iterator[dict[str, int]]:
    """Their ports by name. Each has answered some requests."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_servers(folder)) as ports,
    ):
        yield ports


@asynccontextmanager
async def _servers(folder: Path) -> AsyncIterator[dict[str, int]]:
    text = text_of(folder)
    engine = GatedLedger()
    engine.gate.set()
    worker, gateway = make_worker(engine), make_gateway(tenants=(TENANT,))
    ledgers: dict = {}
    workers = [ToyWorker(f"{role}-0", role, ledgers) for role in (Role.PREFILL, Role.DECODE)]
    await worker.start()
    try:
        async with (
            serving(gateway) as endpoint,
            working(*workers, at=endpoint),
            _listening(build_app(worker, text, ApiConfig())) as of_worker,
            _listening(build_app(gateway, text, KEYS)) as of_gateway,
            _listening(app_of_everything(text, folder)) as of_everything,
        ):
            await until(lambda: gateway.ready)
            await _ask(of_worker)
            await _ask(of_gateway, "plain-key", "acme-key")
            yield {"serve": of_worker, "gateway": of_gateway, "everything": of_everything}
    finally:
        await worker.stop()


@asynccontextmanager
async def _listening(app: ASGIApp) -> AsyncIterator[int]:
    """The application on a port of its own, on this loop."""
    config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve([listener]))
        await until(lambda: server.started)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def _ask(port: int, *keys: str) -> None:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        for key in keys or ("",):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            answer = await http.post("/v1/completions", json=BODY, headers=headers)
            assert answer.status_code == 200, answer.text
