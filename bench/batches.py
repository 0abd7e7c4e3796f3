"""Interactive requests beside a batch: first tokens and gaps between tokens, with and without one.

Usage: python bench/batches.py [--seconds 20] [--rate 2] [--rounds 3] [--cluster]

A server of the bundled model. Each round plays the same arrivals (Poisson) alone, beside a batch,
and beside the same requests sent as plain calls, as many at once as a batch may run; answers a
second of the batch are counted meanwhile, and of a batch that has the server for itself.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from streaming import Client, Stream
from tandem_process import serving

Answer = dict[str, Any]
AT_ONCE = 16
# Then a server takes nobody to be there but the batch.
QUIET_S = 6
# More than a round can answer.
BATCH_REQUESTS = 20_000
PROMPT_TOKENS, OUTPUT_TOKENS = 96, 64
VOCABULARY = 1000
CLUSTER = """
model: tandem-mini
serve: {{port: 0, max-num-seqs: 64, kv-cache-memory: 256MiB, threads: 1, served-model-name: [bench],
  batch-directory: "{folder}/batches"}}
pools:
  - {{name: both, device: cpu, count: 1}}
"""


@dataclass
class Measured:
    """Of all rounds: seconds to first tokens and between tokens, answers a second of the batch."""

    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    answers_per_s: list[float] = field(default_factory=list)


def body_of(chance: random.Random) -> dict[str, object]:
    return {
        "model": "bench",
        "prompt": [chance.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)],
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


class Batches:
    """Those of one server."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url = http, url

    async def begin(self, seed: int) -> str:
        """A batch that runs."""
        chance = random.Random(seed)
        lines = [
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/completions",
                "body": body_of(chance),
            }
            for number in range(BATCH_REQUESTS)
        ]
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", "\n".join(map(json.dumps, lines)), filename="in.jsonl")
        file = await self._call("post", "files", data=form)
        body = {"input_file_id": file["id"], "endpoint": "/v1/completions"}
        batch = await self._call("post", "batches", json=body | {"completion_window": "24h"})
        await self._until(batch["id"], lambda now: now["request_counts"]["completed"])
        return str(batch["id"])

    async def answers(self, batch_id: str) -> int:
        batch = await self._call("get", f"batches/{batch_id}")
        return int(batch["request_counts"]["completed"])

    async def end(self, batch_id: str) -> None:
        """Nothing of it runs any more."""
        await self._call("post", f"batches/{batch_id}/cancel")
        batch = await self._until(batch_id, lambda now: now["status"] == "cancelled")
        for file_id in ("input_file_id", "output_file_id", "error_file_id"):
            if batch[file_id]:
                await self._call("delete", f"files/{batch[file_id]}")

    async def _until(self, batch_id: str, condition: Callable[[Answer], object]) -> Answer:
        while not condition(batch := await self._call("get", f"batches/{batch_id}")):
            await asyncio.sleep(0.05)
        return batch

    async def _call(self, method: str, path: str, **more: Any) -> Answer:
        async with self._http.request(method, f"{self._url}/v1/{path}", **more) as answer:
            assert answer.status == 200, await answer.text()
            said: Answer = await answer.json()
            return said


async def interactive(client: Client, wishes: argparse.Namespace, seed: int) -> list[Stream]:
    """Calls that arrive at random, to their ends."""
    chance, streams, tasks = random.Random(seed), list[Stream](), []
    due = time.perf_counter()
    end = due + wishes.seconds
    while (due := due + chance.expovariate(wishes.rate)) < end:
        prompt = [chance.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)]
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        streams.append(Stream())
        tasks.append(asyncio.create_task(client.complete(prompt, OUTPUT_TOKENS, streams[-1])))
    await asyncio.gather(*tasks)
    return streams


@asynccontextmanager
async def plain_calls(
    http: aiohttp.ClientSession, url: str, counted: list[int]
) -> AsyncIterator[None]:
    """So many at once, until the block ends; each answer adds to `counted`."""

    async def one_after_the_other(seed: int) -> None:
        chance = random.Random(seed)
        while True:
            async with http.post(f"{url}/v1/completions", json=body_of(chance)) as answer:
                answer.raise_for_status()
                await answer.read()
            counted.append(1)

    tasks = [asyncio.create_task(one_after_the_other(seed)) for seed in range(AT_ONCE)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def measure(url: str, wishes: argparse.Namespace) -> dict[str, Measured]:
    ways = ("alone", "beside a batch", "beside plain calls", "a batch alone")
    found = {way: Measured() for way in ways}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as http:
        client, batches = Client(http, url), Batches(http, url)
        await interactive(client, argparse.Namespace(seconds=2, rate=wishes.rate), 0)
        for seed in range(1, wishes.rounds + 1):
            for way in ways[:3]:
                async with load(way, batches, http, url, seed, found[way]):
                    streams = await interactive(client, wishes, seed)
                found[way].ttft_s += [each.ttft_s for each in streams]
                found[way].gaps_s += [
                    gap for each in streams for gap in each.gaps_s(0.0, float("inf"))
                ]
            await asyncio.sleep(QUIET_S)
            async with load(ways[1], batches, http, url, seed + 100, found[ways[3]]):
                await asyncio.sleep(wishes.seconds / 2)
    return found


@asynccontextmanager
async def load(
    way: str,
    batches: Batches,
    http: aiohttp.ClientSession,
    url: str,
    seed: int,
    measured: Measured,
) -> AsyncIterator[None]:
    """What runs beside the interactive calls."""
    begun = time.perf_counter()
    if way == "alone":
        yield
    elif way == "beside a batch":
        batch_id = await batches.begin(seed)
        before, begun = await batches.answers(batch_id), time.perf_counter()
        yield
        answered = await batches.answers(batch_id) - before
        measured.answers_per_s.append(answered / (time.perf_counter() - begun))
        await batches.end(batch_id)
    else:
        counted: list[int] = []
        async with plain_calls(http, url, counted):
            yield
            measured.answers_per_s.append(len(counted) / (time.perf_counter() - begun))


def shown(found: dict[str, Measured]) -> Table:
    table = Table(title="interactive requests, milliseconds")
    for column in ("", "TTFT p50", "p99", "ITL p50", "p99", "batch answers/s"):
        table.add_column(column, justify="right")
    for way, measured in found.items():
        cells: list[str] = []
        for values in (measured.ttft_s, measured.gaps_s):
            if values:
                cuts = statistics.quantiles(values, n=100)
                cells += [f"{1e3 * cuts[49]:.1f}", f"{1e3 * cuts[98]:.1f}"]
            else:
                cells += ["", ""]
        rates = measured.answers_per_s
        cells.append(f"{statistics.mean(rates):.1f}" if rates else "")
        table.add_row(way, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", action="store_true", help="a gateway and a worker")
    wishes = parser.parse_args()
    with TemporaryDirectory() as folder:
        words = ["serve", "--port", "0", "--threads", "1", "--served-model-name", "bench"]
        words += ["--max-num-seqs", "64", "--batch-directory", folder]
        if wishes.cluster:
            file = Path(folder) / "cluster.yaml"
            file.write_text(CLUSTER.format(folder=folder))
            words = ["up", str(file), "--state-dir", f"{folder}/state"]
        with serving(*words) as url:
            Console(width=110).print(shown(asyncio.run(measure(url, wishes))))


if __name__ == "__main__":
    main()
