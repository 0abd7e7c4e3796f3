"""What failures cost, and what tiers and checkpoints cost and gain.

python bench/survive.py [--only recovery,kills,checkpoint,pool,turns] [--minutes 5] [--rate 2]

All clusters are the real command over real sockets on one machine, with the dummy model of
bench/cluster.py and one thread a worker. The machine should have nothing else to do.
"""

import asyncio
import csv
import itertools
import json
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import aiohttp
import typer

from cluster import CONFIG, prompt
from figures import Figure, show, write
from limits import summarised
from streaming import Client, Stream
from survive_cluster import (
    DISK,
    HOST,
    HOST_AND_POOL,
    POOL,
    REDIS,
    Running,
    cluster,
    redis_server,
)

TRACE = Path(__file__).parents[1] / "tests" / "bench" / "data" / "azure_conv_200.csv"
SPLIT = {"prefill": 1, "decode": 2}
ONE = {"both": 1}
# Recovery: streams that run when a worker dies, and how far they are by then.
STREAMS, PROMPT_TOKENS, ANSWER_TOKENS, BEFORE_KILL = 8, 600, 400, 120
# A device pool of 4,096 tokens: what it cannot hold has to come from somewhere.
SMALL_KV = "64MiB"
HIT_TOKENS, HIT_ROUNDS = 2000, 7
CHECKPOINT_ROUNDS = 5
SESSIONS, TURNS, TURN_TOKENS = 8, 5, 200
DOCUMENTS, QUESTIONS, DOCUMENT_TOKENS = 5, 4, 1500
# A visit meets its SLO when its first token and every gap are within these.
TTFT_S, GAP_S = 2.0, 1.0


@dataclass(frozen=True)
class Place:
    """Where the model lies, and where clusters may keep their files; how long `kills` runs."""

    model: Path
    folder: Path
    minutes: float
    rate: float


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(600), connector=aiohttp.TCPConnector(limit=0)
    )


# Recovery


def recovery_figures(place: Place) -> list[Figure]:
    figures = []
    for name, tiers in (("without tiers", ""), ("with host and pool", HOST_AND_POOL)):
        with cluster(place.model, place.folder / name, SPLIT, tiers=tiers) as running:
            streams, killed_s = asyncio.run(killed_in_the_middle(running))
            recomputed = running.total("recomputed_tokens")
        gaps_s = [max(stream.gaps_s(killed_s, killed_s + 60.0), default=0.0) for stream in streams]
        full = sum(stream.output_tokens == ANSWER_TOKENS for stream in streams)
        figures += [
            Figure(f"longest gap of a stream, {name}", max(gaps_s), "s",
                   higher_is_better=False),
            Figure(f"median of the streams' longest gaps, {name}", median(gaps_s), "s",
                   limit=2.0, limit_name="s beside computing", goal="<= 1",
                   higher_is_better=False),
            Figure(f"tokens computed again, {name}", recomputed, "tokens",
                   limit=STREAMS / 2 * (PROMPT_TOKENS + BEFORE_KILL),
                   limit_name="tokens, all of them", higher_is_better=False),
            Figure(f"streams whole, {name}", full, "streams", limit=STREAMS, limit_name="streams"),
        ]  # fmt: skip
    return figures


async def killed_in_the_middle(running: Running) -> tuple[list[Stream], float]:
    """Streams that all ran when one of two decode workers died, and the instant."""
    async with session() as http:
        client = Client(http, running.url)
        streams = [Stream() for _ in range(STREAMS)]
        tasks = [
            asyncio.create_task(
                client.complete(prompt(100 + index, PROMPT_TOKENS), ANSWER_TOKENS, stream)
            )
            for index, stream in enumerate(streams)
        ]
        for stream in streams:
            await client.settled(stream, BEFORE_KILL)
        killed_s = time.perf_counter()
        running.kill("decode-0")
        await asyncio.gather(*tasks)
    return streams, killed_s


# Kills


def kills_figures(place: Place) -> list[Figure]:
    """The same requests calm and with three kills."""
    with cluster(place.model, place.folder / "kills", SPLIT, tiers=HOST_AND_POOL) as running:
        rows = trace_rows(60 * place.minutes, place.rate)
        calm = asyncio.run(play(running, rows, ()))
        at_s = [60 * place.minutes * share for share in (0.2, 0.5, 0.8)]
        victims = ("decode-0", "prefill-0", "decode-1")
        hurt = asyncio.run(play(running, rows, tuple(zip(at_s, victims, strict=True))))
    good = [sum(meets(stream) for stream, _ in run) / (60 * place.minutes) for run in (calm, hurt)]
    failed = sum(bool(problem) for _, problem in hurt)
    return [
        Figure("requests that failed, three kills", failed, f"of {len(rows)}", limit=0.0,
               limit_name="of them", goal="0", higher_is_better=False),
        Figure("goodput, three kills", good[1], "requests/s", limit=good[0],
               limit_name="requests/s, calm", goal=">= 0.8"),
    ]  # fmt: skip


def trace_rows(duration_s: float, rate: float) -> list[tuple[float, int, int]]:
    """Arrival in seconds, prompt and answer tokens: the gaps of the trace at another rate."""
    with TRACE.open() as file:
        rows = [
            (
                datetime.fromisoformat(row["TIMESTAMP"][:26]),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row in csv.DictReader(file)
        ]
    gaps_s = [(b[0] - a[0]).total_seconds() for a, b in itertools.pairwise(rows)]
    scale = 1 / (rate * mean(gaps_s))
    found, at_s = [], 0.0
    for index in range(10**6):
        if at_s >= duration_s:
            break
        _, prompt_tokens, answer_tokens = rows[index % len(rows)]
        found.append((at_s, min(prompt_tokens, 1200), max(2, min(answer_tokens, 200))))
        at_s += scale * gaps_s[index % len(gaps_s)]
    return found


async def play(
    running: Running, rows: list[tuple[float, int, int]], kills: tuple[tuple[float, str], ...]
) -> list[tuple[Stream, str]]:
    """Every request with its stream and, where it failed, why."""
    began_s = time.perf_counter()

    async def visit(client: Client, serial: int) -> tuple[Stream, str]:
        at_s, prompt_tokens, answer_tokens = rows[serial]
        await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
        stream = Stream()
        try:
            await client.complete(prompt(serial, prompt_tokens), answer_tokens, stream)
        except (aiohttp.ClientError, TimeoutError) as error:
            return stream, repr(error)
        whole = stream.output_tokens == answer_tokens
        return stream, "" if whole else f"{stream.output_tokens} of {answer_tokens} tokens"

    async def kill(at_s: float, name: str) -> None:
        await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
        running.kill(name)

    async with session() as http:
        client = Client(http, running.url)
        killing = [asyncio.create_task(kill(*each)) for each in kills]
        visits = await asyncio.gather(*(visit(client, serial) for serial in range(len(rows))))
        await asyncio.gather(*killing)
    for _, problem in visits:
        if problem:
            print(f"failed: {problem}")
    return visits


def meets(stream: Stream) -> bool:
    gaps_s = stream.gaps_s(0.0, float("inf"))
    return bool(stream.tokens_s) and stream.ttft_s <= TTFT_S and max(gaps_s, default=0.0) <= GAP_S


# Checkpoint


def checkpoint_figures(place: Place) -> list[Figure]:
    """Decode tokens a second with and without write-through, in turns, all clusters up at once."""
    kinds = {"without": "", "to host": HOST, "to host and pool": HOST_AND_POOL}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        up = {
            name: stack.enter_context(
                cluster(place.model, place.folder / f"checkpoint {name}", ONE, tiers=tiers)
            )
            for name, tiers in kinds.items()
        }
        for round_ in range(CHECKPOINT_ROUNDS + 1):
            for name, running in up.items():
                rate = asyncio.run(decode_rate(running, round_))
                if round_:
                    rates[name].append(rate)
    calm = summarised(rates["without"])
    figures = [Figure("decode, no checkpoints", calm.median, "tokens/s", calm.spread)]
    for name in list(kinds)[1:]:
        ours = summarised(rates[name])
        figures.append(
            Figure(f"decode, written through {name}", ours.median, "tokens/s", ours.spread,
                   calm.median, "tokens/s, not written", ">= 0.97")
        )  # fmt: skip
    return figures


async def decode_rate(running: Running, round_: int) -> float:
    """Tokens a second from the moment all streams have begun until the first has ended."""
    async with session() as http:
        client = Client(http, running.url)
        streams = [Stream() for _ in range(STREAMS)]
        asked = (prompt(10_000 + 50 * round_ + index, 64) for index in range(STREAMS))
        await asyncio.gather(
            *(client.complete(each, 300, s) for each, s in zip(asked, streams, strict=True))
        )
    begin_s = max(stream.tokens_s[0] for stream in streams)
    end_s = min(stream.tokens_s[-1] for stream in streams)
    tokens = sum(begin_s < at_s <= end_s for stream in streams for at_s in stream.tokens_s)
    return tokens / (end_s - begin_s)


# Pool


def pool_figures(place: Place) -> list[Figure]:
    """First token of a long prompt that was asked before and has left the device since."""
    with redis_server() as port:
        kinds = {
            "recompute": "",
            "host": HOST,
            "disk": DISK.format(folder=place.folder / "disk tier"),
            "shared pool": POOL,
            "pool over Redis": REDIS.format(port=port),
        }
        found = {}
        for name, tiers in kinds.items():
            folder = place.folder / f"pool {name}"
            with cluster(place.model, folder, ONE, tiers=tiers, kv=SMALL_KV) as running:
                found[name] = summarised(asyncio.run(second_visits(running)))
                print(f"{name}: {found[name].median * 1e3:.0f} ms, {fetched(running)} fetched")
    whole = found.pop("recompute")
    return [
        Figure(f"first token of {HIT_TOKENS} known tokens, {name}", 1e3 * ours.median, "ms",
               1e3 * ours.spread, 1e3 * whole.median, "ms, computed again", "<= 0.33",
               higher_is_better=False)
        for name, ours in found.items()
    ]  # fmt: skip


def fetched(running: Running) -> int:
    """Tokens that came from slower tiers."""
    return sum(worker.get("fetched_tokens", 0) for worker in running.status()["workers"])


async def second_visits(running: Running) -> list[float]:
    """Seconds to the first token at the second visit; others have filled the device between."""
    ttfts_s = []
    async with session() as http:
        client = Client(http, running.url)
        for round_ in range(HIT_ROUNDS + 1):
            for serial in (round_, *(5000 + 10 * round_ + other for other in range(3)), round_):
                stream = Stream()
                await client.complete(prompt(serial, HIT_TOKENS), 8, stream)
            ttfts_s.append(stream.ttft_s)
    return ttfts_s[1:]


# Turns


def turns_figures(place: Place) -> list[Figure]:
    figures, found = [], {}
    for name, tiers in (("without tiers", ""), ("with host and pool", HOST_AND_POOL)):
        folder = place.folder / f"turns {name}"
        with cluster(place.model, folder, ONE, tiers=tiers, kv=SMALL_KV) as running:
            found[name, "chat"] = asyncio.run(conversations(running))
            found[name, "documents"] = asyncio.run(documents(running))
            print(f"{name}: {fetched(running)} tokens fetched")
    for what in ("chat", "documents"):
        ours, bare = (
            summarised(found[name, what]) for name in ("with host and pool", "without tiers")
        )
        figures.append(
            Figure(f"first token, {what}, later visits", 1e3 * ours.median, "ms",
                   1e3 * ours.spread, 1e3 * bare.median, "ms, without tiers", "<= 0.5",
                   higher_is_better=False)
        )  # fmt: skip
    return figures


async def conversations(running: Running) -> list[float]:
    """Seconds to the first token of later turns: sessions take turns, each longer than before."""
    ttfts_s = []
    async with session() as http:
        client = Client(http, running.url)
        for turn in range(TURNS):
            for number in range(SESSIONS):
                stream = Stream()
                tokens = prompt(20_000 + number, TURN_TOKENS * (turn + 2))
                await client.complete(tokens, 32, stream)
                if turn:
                    ttfts_s.append(stream.ttft_s)
    return ttfts_s


async def documents(running: Running) -> list[float]:
    """The same for questions about long documents, one after the other."""
    ttfts_s = []
    async with session() as http:
        client = Client(http, running.url)
        for question in range(QUESTIONS):
            for number in range(DOCUMENTS):
                stream = Stream()
                text = prompt(30_000 + number, DOCUMENT_TOKENS)
                tokens = [*text, *prompt(40_000 + 10 * question + number, 40)]
                await client.complete(tokens, 16, stream)
                if question:
                    ttfts_s.append(stream.ttft_s)
    return ttfts_s


SECTIONS = {
    "recovery": recovery_figures,
    "kills": kills_figures,
    "checkpoint": checkpoint_figures,
    "pool": pool_figures,
    "turns": turns_figures,
}


def main(
    only: Annotated[str, typer.Option(help="Sections, separated by commas.")] = "",
    minutes: Annotated[float, typer.Option(help="Load of `kills`, calm and again.")] = 5.0,
    rate: Annotated[float, typer.Option(help="Requests a second of `kills`.")] = 1.0,
    output: Annotated[Path, typer.Option(help="JSON of the figures.")] = Path(
        "results/survive.json"
    ),
) -> None:
    """Measure and print."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        place = Place(model, Path(folder), minutes, rate)
        for name in only.split(",") if only else SECTIONS:
            figures += SECTIONS[name](place)
    show(figures, "Survival")
    write(figures, output)


if __name__ == "__main__":
    typer.run(main)
