"""A server with a store of batches, in the loop of a test, and OpenAI's own client."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai

from tandem.api.app import build_app
from tandem.api.batches.runner import BatchRunner
from tandem.api.batches.store import BatchStore
from tandem.api.config import ApiConfig, BatchConfig

FINAL = ("completed", "failed", "cancelled", "expired")
COMPLETIONS = "/v1/completions"
PATIENCE_S = 30.0


@dataclass
class Served:
    """`client` has this `key`, and `client_of` gives one with another."""

    runner: BatchRunner
    http: httpx2.AsyncClient
    key: str = "none"

    @property
    def store(self) -> BatchStore:
        return self.runner.store

    @property
    def client(self) -> openai.AsyncOpenAI:
        return self.client_of(self.key)

    def client_of(self, key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url="http://127.0.0.1/v1", api_key=key, max_retries=0, http_client=self.http
        )

    async def begin(self, lines: Iterable[str], endpoint: str = COMPLETIONS, **more):
        """A batch of these lines."""
        file = await self.send(lines)
        return await self.client.batches.create(
            input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
        )

    async def send(self, lines: Iterable[str], key: str | None = None):
        data = "\n".join(lines).encode()
        client = self.client_of(key or self.key)
        return await client.files.create(file=("in.jsonl", data), purpose="batch")

    async def ended(self, batch):
        """The batch once it has ended."""
        return await self.when(batch, lambda now: now.status in FINAL)

    async def when(self, batch, holds):
        async with asyncio.timeout(PATIENCE_S):
            while not holds(batch):
                await asyncio.sleep(0.002)
                batch = await self.client.batches.retrieve(batch.id)
        return batch

    async def lines_of(self, file_id: str | None) -> dict[str, dict]:
        """Of a file of answers, by their custom ids; each is there once."""
        if file_id is None:
            return {}
        content = await self.client.files.content(file_id)
        lines = [json.loads(line) for line in content.text.splitlines()]
        named = {line["custom_id"]: line for line in lines}
        assert len(named) == len(lines)
        return named


@asynccontextmanager
async def served(
    generator, text, directory: Path, api: ApiConfig | None = None, load=None, **limits
) -> AsyncIterator[Served]:
    api = api or ApiConfig(max_body_bytes=1 << 20, body_timeout_s=5)
    store = BatchStore(BatchConfig(str(directory), **limits), shared=api.has_keys)
    runner = BatchRunner(store)
    app = build_app(generator, text, api, batches=runner, load=load)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    runner.start()
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Served(runner, http)
    finally:
        await runner.stop()


def line(name: str, url: str = COMPLETIONS, method: str = "POST", **body) -> str:
    body = {"prompt": "hello", "max_tokens": 2} | body
    return json.dumps({"custom_id": name, "method": method, "url": url, "body": body})
