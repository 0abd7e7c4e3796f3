"""What a reader notices when its answer moves to another worker: the longest gap between two tokens
around the move, by how much context moves, against the longest gap while nothing happens.

python bench/migration.py [--contexts 256,1024,4096] [--rounds 5] [--output results/migration.json]

Two workers of one thread each and a dummy model; whoever answers is drained.
"""

import asyncio
import itertools
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from cluster import CONFIG, prompt
from figures import Figure, show, write
from limits import summarised
from streaming import Client, Stream
from survive_cluster import Running, cluster
from tandem_process import TANDEM

STEADY_TOKENS = 60
MOST_TOKENS = 1500


async def operate(running: Running, verb: str, worker: str) -> None:
    command = [*TANDEM, verb, worker, "--state-dir", str(running.state)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    assert not await process.wait()


def answering(running: Running) -> str:
    """The worker that decodes; its report may be a moment old."""
    while True:
        for worker in running.status()["workers"]:
            if worker["load"]["running_sequences"]:
                return str(worker["worker"])


async def gaps(running: Running, serial: int, context_tokens: int) -> tuple[float, float]:
    """The longest gap of one answer, in seconds, before and while it moves."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as http:
        client, stream = Client(http, running.url), Stream()
        asked = client.complete(prompt(serial, context_tokens), MOST_TOKENS, stream)
        reading = asyncio.create_task(asked)
        await client.settled(stream, STEADY_TOKENS)
        source = await asyncio.to_thread(answering, running)
        # The drain ends when the worker is empty: its answer has moved.
        begin = len(stream.tokens_s)
        await operate(running, "drain", source)
        await client.settled(stream, len(stream.tokens_s) + 3)
        moved = stream.tokens_s[begin - 1 :]
        assert not reading.done(), "the answer ended before it had moved"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await operate(running, "undrain", source)
    steady = stream.tokens_s[2:begin]
    return longest(steady), longest(moved)


def longest(instants_s: list[float]) -> float:
    return max(after - before for before, after in itertools.pairwise(instants_s))


def main(
    contexts: Annotated[str, typer.Option(help="Tokens, separated by commas.")] = "256,1024,4096",
    rounds: Annotated[int, typer.Option(min=1, help="Moves of each length.")] = 5,
    output: Annotated[Path, typer.Option(help="JSON of the figures.")] = Path(
        "results/migration.json"
    ),
) -> None:
    """Measure and print; the machine should have nothing else to do."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        (model / "config.json").write_text(json.dumps(CONFIG))
        with cluster(model, model / "run", {"both": 2}) as running:
            for context in contexts.split(","):
                tokens = int(context)
                pairs = [
                    asyncio.run(gaps(running, 100 * tokens + serial, tokens))
                    for serial in range(rounds)
                ]
                steady, moving = (
                    summarised([1e3 * pair[index] for pair in pairs]) for index in (0, 1)
                )
                figures.append(
                    Figure(
                        f"longest gap while {tokens} tokens of context move",
                        moving.median,
                        "ms",
                        moving.spread,
                        steady.median,
                        "ms, longest of a steady stream",
                        higher_is_better=False,
                    )
                )
    show(figures, "Migration")
    write(figures, output)


if __name__ == "__main__":
    typer.run(main)
