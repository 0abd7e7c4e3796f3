"""A model cascade on the evaluation of the bundled models: accuracy, latency and tokens of the
draft alone, of `tandem-mini` alone, and of both as a cascade at several floors.

python bench/cascade.py [--questions 200] [--window 4] [--floors 0,.5,.7,.9,.97,1]

A real `tandem serve` and real HTTP for each way, greedy, one user at a time, the questions of
`tandem eval` (arithmetic with written steps, tool calls). *Computed* are the tokens of the large +
the small model for a question, those included that no client saw.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

import aiohttp
import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from tandem.bench.tasks.chat import openai_message
from tandem.bench.tasks.evaluation import (
    Suite,
    choose_suites,
    make_tasks,
    scaled_counter,
    wilson_interval,
)
from tandem.bench.tasks.task import Task, score
from tandem_process import serving

SMALL, LARGE = "tandem-mini-draft", "tandem-mini"
WARM_UP = 5
_COMPUTED = re.compile(r'^tandem:generation_tokens_total{model_name="([^"]+)"} (\S+)$', re.M)


@dataclass(frozen=True)
class Way:
    """A server that answers, by the words of its command line."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """One question. `by_small` is None where there is only one model."""

    right: bool
    by_small: bool | None
    seconds: float
    tokens: int


@dataclass(frozen=True)
class Measured:
    """All questions of a suite in one way, and the tokens that each model computed for them."""

    outcomes: list[Outcome]
    computed: dict[str, float]


def ways(floors: Sequence[float], window: int) -> list[Way]:
    pair = (LARGE, "--cascade-model", SMALL, "--cascade-window", str(window))
    return [
        Way(f"{SMALL} alone", (SMALL,)),
        Way(f"{LARGE} alone", (LARGE,)),
        *(Way(f"floor {floor:g}", (*pair, "--cascade-floor", str(floor))) for floor in floors),
    ]


class Server:
    """Asks a server the questions of a suite."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url = http, url

    async def ask(self, task: Task, suite: Suite) -> Outcome:
        body: dict[str, Any] = {
            "messages": [openai_message(each) for each in task.messages],
            "max_tokens": suite.max_tokens,
            "temperature": 0,
        }
        if task.tools:
            body["tools"] = list(task.tools)
        begin_s = time.perf_counter()
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            document = await answer.json()
            said = answer.headers.get("X-Tandem-Cascade")
        seconds = time.perf_counter() - begin_s
        message = document["choices"][0]["message"]
        calls = [each["function"] for each in message.get("tool_calls") or ()]
        right = score(task, message["content"] or "", calls)
        by_small = None if said is None else said == "small"
        return Outcome(right, by_small, seconds, document["usage"]["completion_tokens"])

    async def computed(self) -> dict[str, float]:
        """Tokens so far by model."""
        async with self._http.get(f"{self._url}/metrics") as answer:
            return {name: float(count) for name, count in _COMPUTED.findall(await answer.text())}

    async def measure(self, tasks: Sequence[Task], suite: Suite) -> Measured:
        before = await self.computed()
        outcomes = [await self.ask(task, suite) for task in tasks]
        after = await self.computed()
        return Measured(outcomes, {name: after[name] - before[name] for name in after})


async def measure(way: Way, suites: Sequence[Suite], questions: int) -> dict[str, Measured]:
    """One server, all suites."""
    # Shorter than the server's: a connection is not reused in the instant at which it is closed.
    connections = aiohttp.TCPConnector(keepalive_timeout=2.0)
    with serving("serve", "--port", "0", *way.words) as url:
        async with aiohttp.ClientSession(connector=connections) as http:
            server, found = Server(http, url), {}
            for suite in suites:
                # Neither suite needs to count tokens.
                tasks = make_tasks(suite, questions, 0, scaled_counter(1.0))
                for warming in make_tasks(suite, WARM_UP, 1, scaled_counter(1.0)):
                    await server.ask(warming, suite)
                found[suite.name] = await server.measure(tasks, suite)
            return found


def table_of(suite: str, found: dict[str, Measured]) -> Table:
    """A row for each way, as Markdown."""
    table = Table(box=MARKDOWN)
    table.add_column(suite)
    for head in ("right, %", "95 %", "by the small one, %", "mean s", "tokens", "computed"):
        table.add_column(head, justify="right")
    for way, measured in found.items():
        outcomes = measured.outcomes
        right = sum(each.right for each in outcomes)
        low, high = wilson_interval(right, len(outcomes))
        by_small = [each.by_small for each in outcomes if each.by_small is not None]
        computed = " + ".join(
            f"{count / len(outcomes):.0f}" for _, count in sorted(measured.computed.items())
        )
        table.add_row(
            way,
            f"{100 * right / len(outcomes):.1f}",
            f"{100 * low:.1f}-{100 * high:.1f}",
            f"{100 * fmean(by_small):.0f}" if by_small else "",
            f"{fmean(each.seconds for each in outcomes):.3f}",
            f"{fmean(each.tokens for each in outcomes):.0f}",
            computed,
        )
    return table


def main(
    questions: Annotated[int, typer.Option(help="Of each suite.")] = 200,
    window: Annotated[int, typer.Option(help="Tokens in a row that must be so probable.")] = 4,
    floors: Annotated[str, typer.Option(help="With commas between.")] = "0,.5,.7,.9,.97,1",
    tasks: Annotated[str, typer.Option(help="Suites of `tandem eval`.")] = "arithmetic,tool-call",
) -> None:
    """Measures one way after the other, and shows all of it."""
    suites = choose_suites(tasks)
    found: dict[str, dict[str, Measured]] = {suite.name: {} for suite in suites}
    for way in ways([float(each) for each in floors.split(",")], window):
        for name, measured in asyncio.run(measure(way, suites, questions)).items():
            found[name][way.name] = measured
    for name, by_way in found.items():
        Console(width=120).print(table_of(name, by_way))


if __name__ == "__main__":
    typer.run(main)
