"""What being watched costs a server: a trace of each call, an open page and scrapes of its metrics,
beside a server of the same model that nobody watches, in turn in one run.

python bench/telemetry.py [--model tandem-mini] [--rounds 9] [--calls 64] [--tokens 256]
    [--scrape-s 5]

A round asks each server for so many answers, 16 at a time, and takes the time. Clients, the page
and the receiver of traces run on the same machine.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Annotated
from urllib.parse import urlsplit

import httpx2
import typer

from figures import Figure, show
from gateway import Client, Count, trace_receiver
from tandem_process import serving

CONCURRENT = 16
POLL_S = 2.0
LEAST_KEPT = 0.98


async def _answer_all(url: str, calls: int, tokens: int) -> float:
    """Tokens a second of so many answers."""
    address = urlsplit(url)
    client = Client(str(address.hostname), address.port or 80)
    left = iter(range(calls))

    async def answer_on() -> None:
        for _ in left:
            await client.stream(tokens, Count())

    begin_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENT):
            group.create_task(answer_on())
    return calls * tokens / (time.perf_counter() - begin_s)


@asynccontextmanager
async def _watched(url: str, scrape_s: float) -> AsyncIterator[None]:
    """The page is open, on its list of requests, and metrics are scraped."""
    async with httpx2.AsyncClient(base_url=url) as client, asyncio.TaskGroup() as group:

        async def look(paths: tuple[str, ...], every_s: float) -> None:
            while True:
                for path in paths:
                    (await client.get(path)).raise_for_status()
                await asyncio.sleep(every_s)

        page = ("/tandem/overview?since=0", "/tandem/requests")
        looks = [
            group.create_task(look(page, POLL_S)),
            group.create_task(look(("/metrics",), scrape_s)),
        ]
        try:
            yield
        finally:
            for each in looks:
                each.cancel()


async def _measure(
    words: tuple[str, ...], rounds: int, calls: int, tokens: int, scrape_s: float
) -> list[Figure]:
    alone: list[float] = []
    watched: list[float] = []
    async with trace_receiver() as (traces, batches):
        with ExitStack() as servers:
            plain = servers.enter_context(serving("serve", *words))
            traced = servers.enter_context(
                serving("serve", *words, "--otlp-traces-endpoint", traces)
            )
            for number in range(1 + rounds):
                # Whoever is first finds the machine as the round before has left it.
                for place in (0, 1) if number % 2 else (1, 0):
                    if place:
                        async with _watched(traced, scrape_s):
                            rate = await _answer_all(traced, calls, tokens)
                    else:
                        rate = await _answer_all(plain, calls, tokens)
                    if number:
                        (alone, watched)[place].append(rate)
    sent_bytes = sum(batches) / ((1 + rounds) * calls)
    return [*_figures(alone, watched), Figure("traces received", sent_bytes, "bytes a call")]


def _figures(alone: list[float], watched: list[float]) -> list[Figure]:
    low, median, high = statistics.quantiles(watched, n=4)
    kept = [with_ / without for with_, without in zip(watched, alone, strict=True)]
    low_kept, median_kept, high_kept = statistics.quantiles(kept, n=4)
    return [
        Figure(
            "streamed, watched",
            median,
            "token/s",
            (high - low) / 2,
            statistics.median(alone),
            "alone",
        ),
        Figure(
            "watched of alone, by round",
            100 * median_kept,
            "%",
            50 * (high_kept - low_kept),
            goal=f">= {100 * LEAST_KEPT:.0f}",
        ),
    ]


def main(
    model: Annotated[str, typer.Option(help="What is served.")] = "tandem-mini",
    rounds: Annotated[int, typer.Option(help="Beside the first, which warms up.")] = 9,
    calls: Annotated[int, typer.Option(help="Of a round, to each server.")] = 64,
    tokens: Annotated[int, typer.Option(help="Of an answer.")] = 256,
    scrape_s: Annotated[float, typer.Option(help="Between two scrapes.")] = 5.0,
) -> None:
    """Measure and print; the machine should have nothing else to do."""
    words = (model, "--port", "0")
    show(asyncio.run(_measure(words, rounds, calls, tokens, scrape_s)), "Telemetry")


if __name__ == "__main__":
    typer.run(main)
