"""Inference-time scaling on the bundled model's arithmetic: accuracy against samples, latency and
tokens, of a greedy call, of gangs that the server runs, and of a client that makes the calls.

python bench/scaling.py [--draws 600] [--tasks 100] [--products 50] [--only greedy,vote-8]
    [--minutes 4] [--results FILE] [--plot docs/scaling.png]

A real `tandem serve`, real HTTP. *Timed*: one user at a time, each question in all ways before the
next one; a client's calls have the seeds of the gang's samples, so that they draw the same tokens
and their difference is what the server adds. *Drawn*: a gang's samples are the choices of a call
with `n`, so that 16 choices to each of many more questions, put before the very policy that decides
for the server, tell the accuracy of every gang. What was measured is kept in FILE, and only the
rest is run.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Annotated, Any

import aiohttp
import typer
from rich.console import Console
from rich.table import Table

from scaling_drawn import (
    MOST_SAMPLES,
    SAMPLES,
    Results,
    draw,
    gain_interval,
    is_product,
    show_drawn,
)
from tandem.bench.tasks.arithmetic import arithmetic
from tandem.bench.tasks.evaluation import wilson_interval
from tandem.bench.tasks.task import Task, last_answer
from tandem.facts.sampling import SamplingParameters
from tandem_process import serving

MAX_TOKENS = 200
PATIENCE_S = 300.0
# Where single samples are worse, and votes have more to mend.
HOTTER = 1.3


@dataclass(frozen=True)
class Outcome:
    """One question, answered in one way."""

    right: bool
    seconds: float
    tokens: int
    started: int


Ask = Callable[["Server", Task, int], Awaitable[Outcome]]


class Server:
    """Chats with a server. `temperature` is that of samples."""

    def __init__(self, http: aiohttp.ClientSession, url: str, temperature: float) -> None:
        self._http, self._url, self.temperature = http, url, temperature

    async def chat(self, task: Task, **fields: Any) -> dict[str, Any]:
        body = {"messages": list(task.messages), "max_tokens": MAX_TOKENS, **fields}
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            document: dict[str, Any] = await answer.json()
            return document


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def tokens_of(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["completion_tokens"])


async def greedy(server: Server, task: Task, seed: int) -> Outcome:
    begin_s = time.perf_counter()
    answer = await server.chat(task, temperature=0, seed=seed)
    seconds = time.perf_counter() - begin_s
    return Outcome(last_answer(text_of(answer)) == task.answer, seconds, tokens_of(answer), 1)


def scaled(**scaling: Any) -> Ask:
    """The server does it all."""

    async def ask(server: Server, task: Task, seed: int) -> Outcome:
        begin_s = time.perf_counter()
        # Rounds begin with the greedy answer.
        temperature = 0 if scaling["method"] == "re-query" else server.temperature
        answer = await server.chat(task, temperature=temperature, seed=seed, scaling=scaling)
        seconds = time.perf_counter() - begin_s
        right = last_answer(text_of(answer)) == task.answer
        started = answer["scaling"]["samples"]["started"]
        return Outcome(right, seconds, tokens_of(answer), started)

    return ask


def voted_by_client(count: int) -> Ask:
    """So many calls at once; their client votes when it has all of them."""

    async def ask(server: Server, task: Task, seed: int) -> Outcome:
        base = SamplingParameters(seed=seed)
        begin_s = time.perf_counter()
        answers = await asyncio.gather(
            *(
                server.chat(task, temperature=server.temperature, seed=base.seed_of_choice(number))
                for number in range(count)
            )
        )
        votes = Counter(last_answer(text_of(each)) for each in answers)
        seconds = time.perf_counter() - begin_s
        # The first of those with most votes, as `Counter` keeps the order of arrival by number.
        leader = votes.most_common(1)[0][0]
        return Outcome(leader == task.answer, seconds, sum(map(tokens_of, answers)), count)

    return ask


VOTE = {"method": "self-consistency", "vote": "after:Answer:"}
WAYS: dict[str, tuple[str, Ask]] = {
    "greedy": ("one greedy call", greedy),
    "sample": ("one sampled call", voted_by_client(1)),
    **{f"vote-{k}": (f"self-consistency, {k}", scaled(samples=k, **VOTE)) for k in SAMPLES},
    **{f"client-{k}": (f"{k} calls, the client votes", voted_by_client(k)) for k in SAMPLES},
    "adaptive": (
        "self-consistency, up to 16, 4 at a time, confidence 0.95",
        scaled(samples=16, parallel=4, confidence=0.95, **VOTE),
    ),
    "best-4": ("best of 4 by log-probability", scaled(method="best-of-n", samples=4)),
    "best-8": ("best of 8 by log-probability", scaled(method="best-of-n", samples=8)),
    "weighted-8": (
        "best of 8, scores of equal answers add up",
        scaled(method="best-of-n", samples=8, vote="after:Answer:"),
    ),
    "requery": (
        "re-query, up to 3 rounds, the question again",
        scaled(method="re-query", rounds=3, prompt="{question}", vote="after:Answer:"),
    ),
    "requery-check": (
        "re-query, up to 3 rounds, its own words",
        scaled(method="re-query", rounds=3, vote="after:Answer:"),
    ),
}


@dataclass(frozen=True)
class Plan:
    """At which `temperature` samples are drawn, for how many `minutes` to ask at most, and the
    `file` that keeps what was measured."""

    temperature: float
    minutes: float
    file: Path | None

    def key(self, name: str, way: str) -> str:
        return f"{name} {way} {self.temperature:g}"


def questions(tasks: int, products: int) -> dict[str, list[Task]]:
    """The evaluation's own mix, and products of two digits by two, which the model finds hard."""
    mixed = [arithmetic(Random(f"scaling {number}")) for number in range(tasks)]
    hard: list[Task] = []
    number = 0
    while len(hard) < products:
        task = arithmetic(Random(f"scaling products {number}"))
        number += 1
        if is_product(task):
            hard.append(task)
    return {"mixed": mixed, "products": hard}


@asynccontextmanager
async def model_server(temperature: float, connections: int = 100) -> AsyncIterator[Server]:
    """A server of the bundled model in a process of its own, over so many connections at most."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    # Shorter than the server's: a connection is not reused in the instant at which it is closed.
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=2.0)
    with serving("serve", "--port", "0") as url:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            yield Server(http, url, temperature)


async def measure(
    sets: dict[str, list[Task]], ways: list[str], plan: Plan, results: Results
) -> None:
    """Fills in what `results` lacks, until time is up. Each question is asked in all ways before
    the next one, so that what else the machine does meets all of them alike."""
    end_s = time.perf_counter() + 60 * plan.minutes
    async with model_server(plan.temperature) as server:
        for task in sets["mixed"][:5]:
            await server.chat(task, temperature=0)
        for number in range(max(map(len, sets.values()))):
            for name, tasks in sets.items():
                for way in ways:
                    done = results.setdefault(plan.key(name, way), [])
                    if len(done) == number < len(tasks):
                        outcome = await WAYS[way][1](server, tasks[number], 101 * number)
                        done.append(asdict(outcome))
            if plan.file:
                plan.file.write_text(json.dumps(results))
            if time.perf_counter() > end_s:
                break


async def draw_samples(count: int, temperatures: Sequence[float], kept: Results) -> None:
    """Fills in the choices of a call with `n` to each of so many questions of `tandem eval`, as
    answer and mean log-probability, and the greedy answers."""
    if all(f"drawn {each:g}" in kept for each in (0.0, *temperatures)):
        return
    async with model_server(0.0, connections=2) as server:

        async def choices(number: int, temperature: float) -> list[list[Any]]:
            answer = await server.chat(
                arithmetic(Random(f"arithmetic 0 {number}")),
                temperature=temperature,
                n=MOST_SAMPLES if temperature else 1,
                seed=number,
                logprobs=True,
            )
            return [
                [
                    last_answer(each["message"]["content"]),
                    fmean(token["logprob"] for token in each["logprobs"]["content"]),
                ]
                for each in answer["choices"]
            ]

        for temperature in (0.0, *temperatures):
            if (key := f"drawn {temperature:g}") not in kept:
                asked = (choices(number, temperature) for number in range(count))
                kept[key] = await asyncio.gather(*asked)


def rights(rows: list[dict[str, Any]]) -> list[bool]:
    return [row["right"] for row in rows]


def table_of(name: str, found: dict[str, list[dict[str, Any]]]) -> Table:
    """One row a way to answer."""
    table = Table(title=f"{name}: {len(next(iter(found.values())))} questions")
    for column in ("", "right %", "95 %", "over greedy", "mean s", "p50 s", "tokens", "samples"):
        table.add_column(column, justify="left" if not column else "right")
    for way, rows in found.items():
        right = sum(rights(rows))
        low, high = wilson_interval(right, len(rows))
        gain, least, most = gain_interval(rights(rows), rights(found["greedy"]))
        table.add_row(
            WAYS[way][0],
            f"{100 * right / len(rows):.1f}",
            f"{100 * low:.1f}-{100 * high:.1f}",
            "" if way == "greedy" else f"{gain:+.1f} ({least:+.1f} to {most:+.1f})",
            f"{fmean(row['seconds'] for row in rows):.3f}",
            f"{median(row['seconds'] for row in rows):.3f}",
            f"{fmean(row['tokens'] for row in rows):.0f}",
            f"{fmean(row['started'] for row in rows):.1f}",
        )
    return table


def main(
    draws: Annotated[int, typer.Option(help="Questions that 16 samples are drawn for.")] = 600,
    tasks: Annotated[int, typer.Option(help="Questions of the evaluation's mix.")] = 200,
    products: Annotated[int, typer.Option(help="Products of two digits by two.")] = 150,
    temperature: Annotated[float, typer.Option(help="Of samples.")] = 1.0,
    only: Annotated[str, typer.Option(help="Ways to answer, with commas between.")] = "",
    minutes: Annotated[float, typer.Option(help="Stops then; ask again for the rest.")] = 60.0,
    results: Annotated[Path | None, typer.Option(help="Keeps what was measured.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draws all of it.")] = None,
) -> None:
    """Measures what is not measured yet, and shows all of it."""
    plan = Plan(temperature, minutes, results)
    kept: Results = json.loads(results.read_text()) if results and results.exists() else {}
    sets = questions(tasks, products)
    ways = only.split(",") if only else list(WAYS)
    temperatures = (temperature, HOTTER)
    asyncio.run(draw_samples(draws, temperatures, kept))
    show_drawn(kept, temperatures)
    asyncio.run(measure(sets, ways, plan, kept))
    if results:
        results.write_text(json.dumps(kept))
    shown: dict[str, Results] = {}
    for name in sets:
        found = {way: kept[key] for way in WAYS if (key := plan.key(name, way)) in kept}
        # What all ways were asked.
        count = min(map(len, found.values()))
        shown[name] = {way: rows[:count] for way, rows in found.items()}
        if count and "greedy" in found:
            Console(width=130).print(table_of(name, shown[name]))
    if plot:
        draw(kept, shown, temperature, plot)


if __name__ == "__main__":
    typer.run(main)
