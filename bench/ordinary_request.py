"""What an ordinary request costs a server, beside another version of the source in the same run.

python bench/ordinary_request.py --against PATH_OF_ANOTHER_CHECKOUT [--rounds 20] [--requests 25]

Both versions serve the bundled model in a process of their own; rounds alternate between them, and
the first round of each is not counted. Processor time is that of the whole server process.
"""

import asyncio
import os
import re
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated

import aiohttp
import typer

from figures import Figure, show, write

OURS = Path(__file__).parent.parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MESSAGES = [
    {"role": "system", "content": "You are a friendly assistant who answers in one sentence."},
    {"role": "user", "content": "What is the capital of France, and what is it known for?"},
]
BODY = {"messages": MESSAGES, "max_tokens": 16, "temperature": 0, "ignore_eos": True}


@dataclass
class Served:
    """One version's server, and what was measured of it: seconds of whole answers, of first
    tokens, and of processor time a request in each round."""

    url: str
    process_id: int
    answers_s: list[float] = field(default_factory=list)
    first_tokens_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def used_s(self) -> float:
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@asynccontextmanager
async def served(checkout: Path) -> AsyncIterator[Served]:
    """The bundled model, served by the source in `checkout` while the block runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-m", "tandem", "serve", "--port", "0", "--threads", "1"),
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        cwd=checkout,
        stdout=PIPE,
    )
    try:
        yield Served(await url_of(process), process.pid)
    finally:
        process.terminate()
        await process.wait()


async def url_of(process: Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if found := re.search(r"(http://[\d.:]+)/v1", line.decode()):
            return found[1]
    raise RuntimeError("the server did not start")


async def ask(http: aiohttp.ClientSession, server: Served) -> tuple[float, float]:
    """Seconds to the first token and to the end of one streamed answer."""
    begin_s = perf_counter()
    first_s = 0.0
    url = f"{server.url}/v1/chat/completions"
    async with http.post(url, json={**BODY, "stream": True}) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not first_s and b'"content":"' in line:
                first_s = perf_counter() - begin_s
    return first_s, perf_counter() - begin_s


async def measure(against: Path, rounds: int, requests: int) -> tuple[Served, Served]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        ours = await stack.enter_async_context(served(OURS))
        theirs = await stack.enter_async_context(served(against))
        for turn in range(rounds + 1):
            for server in (ours, theirs) if turn % 2 else (theirs, ours):
                used_s = server.used_s
                times = [await ask(http, server) for _ in range(requests)]
                if turn:
                    server.cpu_s.append((server.used_s - used_s) / requests)
                    server.first_tokens_s += [first_s for first_s, _ in times]
                    server.answers_s += [answer_s for _, answer_s in times]
        return ours, theirs


def figure(name: str, ours_s: list[float], theirs_s: list[float]) -> Figure:
    low, middle, high = statistics.quantiles(ours_s, n=4)
    return Figure(
        name,
        middle * 1e3,
        "ms",
        (high - low) / 2 * 1e3,
        statistics.median(theirs_s) * 1e3,
        "ms before",
        higher_is_better=False,
    )


def main(
    against: Annotated[Path, typer.Option(help="Another checkout of the project.")],
    rounds: int = 20,
    requests: int = 25,
    output: Path = Path("results/ordinary_request.json"),
) -> None:
    ours, theirs = asyncio.run(measure(against.resolve(), rounds, requests))
    figures = [
        figure("first token", ours.first_tokens_s, theirs.first_tokens_s),
        figure("whole answer of 16 tokens", ours.answers_s, theirs.answers_s),
        figure("processor time of the server, a request", ours.cpu_s, theirs.cpu_s),
    ]
    show(figures, f"An ordinary chat request, {rounds} rounds of {requests}")
    write(figures, output)


if __name__ == "__main__":
    typer.run(main)
